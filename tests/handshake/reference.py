"""SC-GKA/1 a second time, from the text of docs/protocol.md alone: no line is shared with the package.

One function plays all members of a pre-shared-key group on plain bytes. Run as a script, it rewrites ``vectors.json``:

    python tests/handshake/reference.py
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyaegis import Aegis256X4

VECTORS = Path(__file__).with_name("vectors.json")
FINGERPRINT = b"fingerprint"
NAMES = {"2": (2, 1), "3": (3, 1), "3, suite 4": (3, 4)}
"""Ranks and suite of each vector."""


def H(data):
    return hashlib.sha256(data).digest()


def MAC(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def TH(label, *xs):
    h = hashlib.sha256()
    h.update(b"SCOLL/1 ")
    h.update(label.encode("ascii"))
    h.update(b"\x00")
    for x in xs:
        h.update(struct.pack(">I", len(x)))
        h.update(x)
    return h.digest()


def extract(salt, ikm):
    return MAC(salt, ikm)


def XL(secret, label, ctx, length):
    full = b"scoll1 " + label.encode("ascii")
    info = struct.pack(">HB", length, len(full)) + full + struct.pack(">B", len(ctx)) + ctx
    out, last, i = b"", b"", 1
    while len(out) < length:
        last = MAC(secret, last + info + bytes([i]))
        out += last
        i += 1
    return out[:length]


def x25519(private, public):
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def lp(data):
    return struct.pack(">I", len(data)) + data


def encode_params(p):
    members = b"".join(struct.pack(">I", r) for r in p["ranks"])
    comm_id = TH("comm", p["job_id"], p["parent"], members, struct.pack(">Q", p["use"]))
    return b"".join(
        [
            struct.pack(">BB", 1, p.get("suite", 1)),
            H(p["policy"]),
            H(p["manifest"]),
            p["parent"],
            comm_id,
            struct.pack(">I", p["epoch"]),
            struct.pack(">I", len(p["ranks"])),
            members,
            struct.pack(">H", p["channels"]),
            struct.pack(">I", p["max_chunk"]),
            p["plan_table_hash"],
            lp(p["job_id"]),
        ]
    )


def seal(suite, key, nonce, aad, plain):
    if suite == 1:
        return AESGCM(key).encrypt(nonce, plain, aad)
    assert suite == 4
    return Aegis256X4(tag_size=16).encrypt(key, nonce + bytes(20), plain, aad)


def play(p, psk, e, nonces, z, endpoints):
    """Everything that a run of the protocol computes, public and secret, by name."""
    n = len(p["ranks"])
    u32 = [struct.pack(">I", r) for r in range(n)]
    params = encode_params(p)
    ph = TH("params", params)
    shares = [X25519PrivateKey.from_private_bytes(k).public_key().public_bytes_raw() for k in e]
    hellos = [ph + u32[r] + nonces[r] + shares[r] + bytes(32) + H(b"") for r in range(n)]
    t1 = TH("hello", ph, *hellos)
    es = extract(bytes(32), psk)
    ka = XL(es, "auth", t1, 32)
    auths = []
    for r in range(n):
        core = u32[r] + t1 + H(b"") + H(b"") + H(endpoints[r])
        mac = MAC(ka, b"mac" + core + H(b""))
        auths.append(u32[r] + lp(b"") + lp(b"") + lp(endpoints[r]) + lp(b"") + lp(mac))
    t2 = TH("auth", t1, *[H(a) for a in auths])
    wraps = b""
    for r in range(1, n):
        kw = XL(extract(XL(es, "derived", t2, 32), x25519(e[0], shares[r])), "wrap", u32[r] + t2, 32)
        wraps += seal(p.get("suite", 1), kw, bytes(12), t2 + u32[r], z)
    ms = extract(XL(es, "derived2", t2, 32), z)
    fins = [u32[r] + MAC(XL(ms, "confirm", t2, 32), b"fin" + u32[r] + t2) for r in range(n)]
    group = XL(ms, "group", t2, 32)
    roots = {f"sender {s}": XL(group, "sender", u32[s], 32) for s in range(n)}
    roots["child"] = XL(ms, "child", t2, 32)
    for s in range(n):
        for d in range(n):
            if s != d:
                lo, hi = sorted((s, d))
                pair = extract(XL(ms, "pair", u32[lo] + u32[hi], 32), x25519(e[s], shares[d]))
                for name, label in (("link", "link"), ("p2p", "p2p"), ("control", "ctl"), ("conn", "conn")):
                    roots[f"{name} {s} {d}"] = XL(pair, label, u32[s] + u32[d], 32)
    return {
        "params": params,
        "PH": ph,
        "hello": hellos,
        "T1": t1,
        "auth": auths,
        "T2": t2,
        "wrap": wraps,
        "fin": fins,
        "session": TH("session", t2),
        "roots": roots,
    }


def inputs(n, suite=1):
    """Fixed, and without meaning: hashes of names."""
    given = {
        "p": {
            "policy": b"\x01\x01",
            "manifest": b"",
            "parent": bytes(32),
            "epoch": 0,
            "ranks": [7 * r + 3 for r in range(n)],
            "use": 5,
            "channels": 2,
            "max_chunk": 65536,
            "plan_table_hash": H(b"plan table"),
            "job_id": b"vectors",
        },
        "psk": H(b"psk") + H(b"more psk")[: n - 2],
        "e": [H(b"e %d" % r) for r in range(n)],
        "nonces": [H(b"nonce %d" % r) for r in range(n)],
        "z": H(b"z"),
        "endpoints": [b"endpoint of %d" % r * r for r in range(n)],
    }
    if suite != 1:
        given["p"]["suite"] = suite
    return given


def vector(n, suite=1):
    """One entry of vectors.json. Roots appear only as fingerprints: HMAC(root, "fingerprint")."""
    given = inputs(n, suite)
    out = play(**given)
    out["roots"] = {name: MAC(root, FINGERPRINT) for name, root in out["roots"].items()}
    return {"inputs": given, "outputs": out}


def to_json(value):
    """Bytes as hex, and nothing else changed."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [to_json(v) for v in value]
    return value


if __name__ == "__main__":
    vectors = {name: to_json(vector(*of)) for name, of in NAMES.items()}
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")
