"""Every kernel set seals what another implementation of its suite does, opens only that, touches only its buffers."""

from __future__ import annotations

import ctypes
import mmap
import random
import secrets
from pathlib import Path

import numpy as np
import pytest

from securecoll import _engine
from securecoll.suites import Suite
from tests.host.conftest import AeadMaker, ReferenceMaker
from tests.host.kernel_sets import EMULATED, FAR, NAMES, NATIVE, TAG, Aead, TestLibrary, suite_of

KEY = bytes(range(32))
NONCE = bytes(range(12))


def seeded() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def test_the_sets_are_those_of_this_cpu() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split())
    wide = {"avx2", "f16c", "bmi2", "aes", "pclmulqdq", "vaes", "vpclmulqdq", "3dnowprefetch"} <= flags
    wider = wide and {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
    gcm = ["vaes512"] * wider + ["vaes256"] * wide + ["libcrypto"]
    aegis = ["aegis-vaes512"] * wider + ["aegis-vaes256"] * wide + ["aegis-aesni"] * ({"aes", "avx"} <= flags)
    assert _engine.aead_names(Suite.AES_256_GCM) == gcm == _engine.aead_names()
    assert _engine.aead_names(Suite.AEGIS_256X4) == aegis
    assert gcm + aegis == NATIVE
    assert _engine.aead_name(Suite.AES_256_GCM) == gcm[0] == _engine.aead_name()
    if aegis:
        assert _engine.aead_name(Suite.AEGIS_256X4) == aegis[0]


def test_an_unknown_suite_has_no_kernels() -> None:
    for number in (0, 2, 3, 5, 255):
        assert _engine.aead_names(number) == []
        with pytest.raises(ValueError, match=f"no kernels of suite {number}"):
            _engine.aead_name(number)


@pytest.mark.parametrize("name", ["", "vaes1024", "LIBCRYPTO", "naive"])
def test_an_unknown_set_is_an_error_that_says_where_to_look(name: str) -> None:
    with pytest.raises(ValueError, match=r"aead_names\(\)"):
        _engine.Aead(name, KEY)


def test_every_length_equals_the_reference(make_aead: AeadMaker, make_reference: ReferenceMaker) -> None:
    # Unaligned on purpose, and with guards on both sides of what is written.
    rng = seeded()
    aead, reference = make_aead(KEY), make_reference(KEY)
    guard = 64
    for size in range(1100):  # two strides of the widest set and what may follow
        aad = rng.randbytes((size * 7) % 81)
        text = rng.randbytes(size)
        nonce = rng.randbytes(12)
        sealed = reference.seal(nonce, aad, text)

        shift = rng.choice([rng.randrange(1, 64), 16, 32, 64])
        source = memoryview(bytearray(shift) + text)[shift:]
        out = bytearray(b"\xa5" * (guard + shift + size + TAG + guard))
        at = guard + shift
        aead.seal_into(nonce, aad, source, memoryview(out)[at : at + size + TAG])
        assert out[at : at + size + TAG] == sealed, size
        assert out[:at] == b"\xa5" * at and out[at + size + TAG :] == b"\xa5" * guard, size

        plain = bytearray(b"\xa5" * (guard + shift + size + guard))
        source = memoryview(bytearray(shift) + sealed)[shift:]
        assert aead.open_into(nonce, aad, source, memoryview(plain)[at : at + size]), size
        assert plain[at : at + size] == text, size
        assert plain[:at] == b"\xa5" * at and plain[at + size :] == b"\xa5" * guard, size


def test_random_records_equal_the_reference(make_aead: AeadMaker, make_reference: ReferenceMaker) -> None:
    rng = seeded()
    for round_number in range(250):
        key, nonce = rng.randbytes(32), rng.randbytes(12)
        size = rng.choice([rng.randrange(1000), rng.randrange(20_000), rng.randrange(16_000, 70_000)])
        aad, text = rng.randbytes(rng.choice([0, 32, rng.randrange(3000)])), rng.randbytes(size)
        sealed = make_reference(key).seal(nonce, aad, text)
        aead = make_aead(key)
        assert aead.seal(nonce, aad, text) == sealed, round_number
        assert aead.open(nonce, aad, sealed) == text, round_number


def test_a_megabyte_equals_the_reference(make_aead: AeadMaker, make_reference: ReferenceMaker) -> None:
    text = np.random.default_rng(5).bytes((1 << 20) + 7)
    assert make_aead(KEY).seal(NONCE, b"", text) == make_reference(KEY).seal(NONCE, b"", text)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 128, 255, 256, 319, 320, 511, 512, 768, 1000, 20_000])
def test_one_flipped_bit_anywhere_is_refused_and_leaves_zeros(make_aead: AeadMaker, size: int) -> None:
    rng = seeded()
    aead, text, aad = make_aead(KEY), rng.randbytes(size), rng.randbytes(32)
    sealed = aead.seal(NONCE, aad, text)
    places = range(len(sealed)) if size < 600 else [*rng.sample(range(size), 64), *range(size - 8, size + TAG)]
    for place in places:
        forged = bytearray(sealed)
        forged[place] ^= 1 << rng.randrange(8)
        assert aead.open(NONCE, aad, bytes(forged)) is None, place
    for place in range(32):
        other = bytearray(aad)
        other[place] ^= 1 << rng.randrange(8)
        assert aead.open(NONCE, bytes(other), sealed) is None, place
    for place in range(12):
        nonce = bytearray(NONCE)
        nonce[place] ^= 1 << rng.randrange(8)
        assert aead.open(bytes(nonce), aad, sealed) is None, place
    assert make_aead(bytes(32)).open(NONCE, aad, sealed) is None
    assert aead.open(NONCE, aad, sealed) == text


@pytest.mark.parametrize("name", NATIVE)
def test_what_did_not_verify_is_zeroed(name: str) -> None:
    aead = _engine.Aead(name, KEY)
    forged = bytearray(aead.seal(NONCE, b"", b"x" * 5000))
    forged[-1] ^= 1
    plain = bytearray(b"y" * 5000)
    assert not aead.open_into(NONCE, b"", forged, plain)
    assert plain == bytes(5000)


@pytest.mark.parametrize("size", [0, 5, 100, 5000])
def test_a_tag_of_zeros_or_of_another_record_is_refused(make_aead: AeadMaker, size: int) -> None:
    aead = make_aead(KEY)
    text = bytes(size)
    sealed = aead.seal(NONCE, b"a", text)
    assert aead.open(NONCE, b"a", sealed[:size] + bytes(TAG)) is None
    assert aead.open(NONCE, b"a", sealed[:size] + b"\xff" * TAG) is None
    other = aead.seal(NONCE, b"b", text)
    assert aead.open(NONCE, b"a", other) is None
    assert aead.open(NONCE, b"a", sealed[:size] + other[size:]) is None


@pytest.mark.parametrize("tag_bytes", [0, 1, 4, 8, 12, 15, 17])
def test_a_tag_of_another_length_is_refused(make_aead: AeadMaker, tag_bytes: int) -> None:
    aead = make_aead(KEY)
    for size in (0, 1, 16, 100):
        sealed = aead.seal(NONCE, b"", bytes(size))
        record = (sealed + b"\0")[: size + tag_bytes]
        if len(record) < TAG:
            with pytest.raises(ValueError, match="tag"):
                aead.open(NONCE, b"", record)
        else:
            assert aead.open(NONCE, b"", record) is None


@pytest.mark.parametrize("name", NATIVE)
def test_lengths_are_checked(name: str) -> None:
    aead = _engine.Aead(name, KEY)
    for size in (0, 16, 31, 33):
        with pytest.raises(ValueError, match=f"the key must have 32 bytes, not {size}"):
            _engine.Aead(name, bytes(size))
    for size in (0, 11, 13, 16):
        with pytest.raises(ValueError, match=f"the nonce must have 12 bytes, not {size}"):
            aead.seal(bytes(size), b"", b"")
        with pytest.raises(ValueError, match=f"the nonce must have 12 bytes, not {size}"):
            aead.open(bytes(size), b"", bytes(16))
    for size in (0, 5, 20, 22):
        with pytest.raises(ValueError, match=f"must have 21 bytes, not {size}"):
            aead.seal_into(NONCE, b"", b"plain", bytearray(size))
    for size in (0, 4, 6):
        with pytest.raises(ValueError, match=f"must have 5 bytes, not {size}"):
            aead.open_into(NONCE, b"", bytes(21), bytearray(size))
    with pytest.raises(ValueError, match="has 15 in all"):
        aead.open_into(NONCE, b"", bytes(15), bytearray(0))
    with pytest.raises(BufferError):
        aead.seal_into(NONCE, b"", b"plain", bytes(21))


class FencedPage:
    """A page between two that cannot be touched: an access beyond its ends kills the process."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, 3 * page)
        self.bytes = memoryview(self._map)[page : 2 * page]
        start = np.frombuffer(self._map, np.uint8).ctypes.data
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for fence in (start, start + 2 * page):
            assert protect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0


def test_nothing_is_read_or_written_beyond_either_end(make_aead: AeadMaker) -> None:
    aead = make_aead(KEY)
    first, second = FencedPage(), FencedPage()
    page = mmap.PAGESIZE
    for size in [*range(200), 255, 256, 257, 319, 511, 513, 767, 769, page - TAG]:
        for at_end in (False, True):
            plain = first.bytes[page - size :] if at_end else first.bytes[:size]
            sealed = second.bytes[page - size - TAG :] if at_end else second.bytes[: size + TAG]
            plain[:] = b"t" * size
            aead.seal_into(NONCE, b"aad", plain, sealed)
            plain[:] = bytes(size)
            assert aead.open_into(NONCE, b"aad", sealed, plain)
            assert plain == b"t" * size


FAULTS = [
    "wrong last byte",
    "opens anything",
    "opens nothing",
    "short tag",
    "ignores aad",
    "seals otherwise far",
    "opens anything far",
    "opens nothing far",
    "another suite",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_known_answers_find_a_broken_set(library: TestLibrary, fault: str) -> None:
    assert f'"{fault}" give wrong answers' in library.known_answers(fault)


@pytest.mark.parametrize("name", ["naive", *EMULATED])
def test_known_answers_pass_a_right_set(library: TestLibrary, name: str) -> None:
    assert library.known_answers(name) == ""


@pytest.mark.parametrize("name", NATIVE)
def test_rates_are_measured(name: str) -> None:
    seal, opened = _engine.aead_rate(name, 65536, 0.02)
    assert 0.01 < seal < 1000 and 0.01 < opened < 1000
    for size, seconds in ((0, 0.1), (1, 0.0), (1, -1.0), (1, float("nan")), (1, 61.0)):
        with pytest.raises(ValueError, match="aead_rate"):
            _engine.aead_rate(name, size, seconds)


def test_every_set_opens_what_every_other_of_its_suite_sealed_and_nothing_else(library: TestLibrary) -> None:
    aeads: dict[str, Aead] = {name: _engine.Aead(name, KEY) for name in NATIVE + FAR}
    aeads |= {name: library.aead(name, KEY) for name in EMULATED}
    assert aeads.keys() == set(NAMES)
    for size in (0, 8, 700, 9000):
        records = {name: aead.seal(NONCE, b"x" * 32, b"s" * size) for name, aead in aeads.items()}
        for name, record in records.items():
            for other, aead in aeads.items():
                alike = suite_of(name) is suite_of(other)
                assert (record == records[other]) is alike, (name, other)
                assert aead.open(NONCE, b"x" * 32, record) == (b"s" * size if alike else None), (name, other)
