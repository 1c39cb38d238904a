"""All AEAD kernel sets of all suites behind one interface: the engine's own, and those that only tests build."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyaegis import Aegis256X4

from securecoll import _engine
from securecoll.suites import Suite

ROOT = Path(__file__).resolve().parents[2]
TAG = 16

NATIVE = [name for suite in Suite for name in _engine.aead_names(suite)]
# The sources of "vaes512" and "aegis-vaes512" on emulated registers, whether or not the CPU has AVX-512.
EMULATED = [name + far for name in ("emulated512", "aegis-emulated512") for far in ("", "/far")]
EMULATED = EMULATED if "vaes256" in NATIVE else []
# "/far": sealed and opened with stores that pass the caches.
FAR = [f"{name}/far" for name in NATIVE if name not in ("libcrypto", "aegis-aesni")]
NAMES = NATIVE + FAR + EMULATED
# What takes whole nonces: the sources of AEGIS-256X4's sets.
WHOLE = ["aegis128"] * ("aegis-aesni" in NATIVE) + ["aegis256", "aegis512"] * ("aegis-vaes256" in NATIVE)


def suite_of(name: str) -> Suite:
    """The suite of a set of kernels."""
    return Suite.AEGIS_256X4 if name.startswith("aegis-") else Suite.AES_256_GCM


class Reference:
    """Another implementation of a suite's AEAD: OpenSSL's AES-256-GCM, libaegis's AEGIS-256X4."""

    def __init__(self, suite: Suite, key: bytes) -> None:
        self._suite, self._key = suite, key

    def seal(self, nonce: bytes, aad: bytes, plain: bytes) -> bytes:
        """ciphertext || tag."""
        if self._suite is Suite.AES_256_GCM:
            return AESGCM(self._key).encrypt(nonce, plain, aad)
        sealed: bytes = Aegis256X4(tag_size=TAG).encrypt(self._key, nonce + bytes(20), plain, aad)
        return sealed


class Aead(Protocol):
    """A key on a set of kernels; ``securecoll._engine.Aead`` says what each method does."""

    def seal(self, nonce: bytes, aad: bytes, plain: bytes) -> bytes: ...
    def open(self, nonce: bytes, aad: bytes, sealed: bytes) -> bytes | None: ...
    def seal_into(self, nonce: bytes, aad: bytes, plain: memoryview, sealed: memoryview) -> None: ...
    def open_into(self, nonce: bytes, aad: bytes, sealed: memoryview, plain: memoryview) -> bool: ...


class TestLibrary:
    """``sets.cpp`` and what it includes, compiled into ``folder``."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("c++")
        if compiler is None:
            pytest.skip("needs a C++ compiler")
        library = folder / "sets.so"
        sources = [ROOT / "tests/host/sets.cpp", ROOT / "kernels/host/aead_known_answers.cpp"]
        if EMULATED:
            sources.append(ROOT / "tests/host/emulated512.cpp")
        sources += [ROOT / f"tests/host/{name}.cpp" for name in WHOLE]
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-Wno-psabi", f"-I{ROOT / 'kernels'}"]
        if not EMULATED:
            flags.append("-DNO_EMULATION")
        subprocess.run([compiler, *flags, *map(str, sources), "-lcrypto", "-o", str(library)], check=True)
        self._c = ctypes.CDLL(str(library))
        self._c.find_set.restype = ctypes.c_void_p
        self._c.key_bytes.restype = ctypes.c_size_t

    def aead(self, name: str, key: bytes) -> Aead:
        """A key on one of the library's own sets."""
        return _LibraryAead(self._c, self.find(name), key)

    def seal_under(self, name: str, key: bytes, nonce: bytes, aad: bytes, plain: bytes) -> bytes:
        """Seals under a whole nonce with one of ``WHOLE``."""
        assert (len(key), len(nonce)) == (32, 32)
        sealed = ctypes.create_string_buffer(len(plain) + TAG)
        seal = getattr(self._c, f"seal_{name}")
        seal(key, nonce, aad, ctypes.c_size_t(len(aad)), plain, ctypes.c_size_t(len(plain)), sealed)
        return sealed.raw

    def open_under(self, name: str, key: bytes, nonce: bytes, aad: bytes, sealed: bytes) -> bytes | None:
        """Opens under a whole nonce with one of ``WHOLE``."""
        assert (len(key), len(nonce)) == (32, 32)
        size = len(sealed) - TAG
        plain = ctypes.create_string_buffer(size or 1)
        opens = getattr(self._c, f"open_{name}")
        verified = opens(key, nonce, aad, ctypes.c_size_t(len(aad)), sealed, ctypes.c_size_t(size), plain)
        return plain.raw[:size] if verified else None

    def find(self, name: str) -> ctypes.c_void_p:
        found = self._c.find_set(name.encode())
        assert found, name
        return ctypes.c_void_p(found)

    def known_answers(self, name: str) -> str:
        """What the check of known answers says about a set; empty when it passes."""
        message = ctypes.create_string_buffer(500)
        self._c.known_answers(self.find(name), message, ctypes.c_size_t(len(message)))
        return message.value.decode()

    @contextmanager
    def flipping(self, byte: memoryview, first: int, second: int) -> Iterator[None]:
        """Meanwhile a thread writes ``first`` and ``second`` to a byte of memory in turn."""
        assert len(byte) == 1
        self._c.flip_start(_address(byte), ctypes.c_uint8(first), ctypes.c_uint8(second))
        try:
            yield
        finally:
            self._c.flip_stop()


class _LibraryAead:
    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p, key: bytes) -> None:
        assert len(key) == 32
        self._c, self._set = library, handle
        self._key = ctypes.create_string_buffer(library.key_bytes())
        self._c.set_expand(self._set, self._key, key)

    def seal(self, nonce: bytes, aad: bytes, plain: bytes) -> bytes:
        sealed = bytearray(len(plain) + TAG)
        self.seal_into(nonce, aad, memoryview(plain), memoryview(sealed))
        return bytes(sealed)

    def open(self, nonce: bytes, aad: bytes, sealed: bytes) -> bytes | None:
        if len(sealed) < TAG:
            raise ValueError("shorter than a tag")
        plain = bytearray(len(sealed) - TAG)
        return bytes(plain) if self.open_into(nonce, aad, memoryview(sealed), memoryview(plain)) else None

    def seal_into(self, nonce: bytes, aad: bytes, plain: memoryview, sealed: memoryview) -> None:
        assert len(nonce) == 12
        assert len(sealed) == len(plain) + TAG
        n, a = ctypes.c_size_t(len(plain)), ctypes.c_size_t(len(aad))
        self._c.set_seal(self._set, self._key, nonce, aad, a, _address(plain), n, _address(sealed))

    def open_into(self, nonce: bytes, aad: bytes, sealed: memoryview, plain: memoryview) -> bool:
        assert len(nonce) == 12
        assert len(sealed) == len(plain) + TAG
        n, a = ctypes.c_size_t(len(plain)), ctypes.c_size_t(len(aad))
        return bool(self._c.set_open(self._set, self._key, nonce, aad, a, _address(sealed), n, _address(plain)))


def _address(view: memoryview) -> ctypes.c_void_p:
    """Where a buffer starts: also a read-only or an empty one, whose address ctypes refuses to tell."""
    return ctypes.c_void_p(np.frombuffer(view, np.uint8).ctypes.data if len(view) else None)
