"""A host that flips bytes of shared memory while records are sealed into it and opened from it.

An engine that reads a byte of ciphertext twice opens one text and verifies another; one that hashes what it finds in
memory, instead of what it wrote there, puts a valid tag on the host's text. The same race must catch an engine that
does both: plain use of libcrypto on shared memory.
"""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.host.conftest import AeadMaker
from tests.host.kernel_sets import TAG, Aead, TestLibrary

KEY = bytes(range(32))
NONCE = bytes(range(12))
SIZES = (65536, 4096, 45)
SECONDS = 0.5  # for each size and direction
SLOT_SECONDS = SECONDS / 8  # for each flipped byte in turn
NAIVE_SECONDS = 25  # at most: it is caught within the first few, unless the machine is very busy


@dataclass
class Tally:
    records: int = 0
    verified: int = 0
    altered: int = 0


def text_of(size: int) -> bytes:
    return bytes(i * 7 & 255 for i in range(size))


def places(size: int) -> Iterator[int]:
    """Bytes to flip, again and again: some in the middle, in the last, partial vector, and at both ends."""
    return itertools.cycle([size // 2 + 5, size - 3, 17 % size, size // 3])


def race_open(library: TestLibrary, aead: Aead, size: int, seconds: float, until_altered: bool = False) -> Tally:
    """Opens a record while one of its bytes changes; counts those that verified as another text.

    Goes on, at most NAIVE_SECONDS, until the byte was seen both right and wrong: else nothing raced.
    """
    text, tally = text_of(size), Tally()
    end = time.monotonic() + seconds
    last_end = max(end, time.monotonic() + NAIVE_SECONDS)
    sealed = aead.seal(NONCE, b"", text)
    shared, plain = memoryview(mmap.mmap(-1, size + TAG)), bytearray(size)
    for place in places(size):
        shared[:] = sealed
        with library.flipping(shared[place : place + 1], sealed[place] ^ 1, sealed[place]):
            slot_end = time.monotonic() + SLOT_SECONDS
            while time.monotonic() < slot_end:
                for _ in range(20):
                    tally.records += 1
                    if aead.open_into(NONCE, b"", shared, memoryview(plain)):
                        tally.verified += 1
                        tally.altered += plain != text
        raced = 0 < tally.verified < tally.records
        if time.monotonic() > (end if raced else last_end) or (until_altered and tally.altered):
            return tally
    raise AssertionError("unreachable")


def race_seal(library: TestLibrary, aead: Aead, size: int, seconds: float, until_altered: bool = False) -> Tally:
    """Seals a record while one of its bytes is overwritten; counts those whose tag fits the host's text.

    ``verified`` counts those whose tag is that of the text.
    """
    text, tally, end = text_of(size), Tally(), time.monotonic() + seconds
    sealed = aead.seal(NONCE, b"", text)
    shared = memoryview(mmap.mmap(-1, size + TAG))
    for place in places(size):
        altered = bytearray(sealed)
        altered[place] ^= 1
        with library.flipping(shared[place : place + 1], altered[place], altered[place]):
            slot_end = time.monotonic() + SLOT_SECONDS
            while time.monotonic() < slot_end:
                for _ in range(20):
                    tally.records += 1
                    aead.seal_into(NONCE, b"", memoryview(text), shared)
                    tag = bytes(shared[size:])
                    if tag == sealed[size:]:
                        tally.verified += 1
                    else:
                        altered[size:] = tag
                        tally.altered += aead.open(NONCE, b"", bytes(altered)) is not None
        if time.monotonic() > end or (until_altered and tally.altered):
            return tally
    raise AssertionError("unreachable")


@pytest.mark.parametrize("size", SIZES)
def test_no_record_that_changed_while_it_was_opened_is_accepted(
    library: TestLibrary, make_aead: AeadMaker, size: int
) -> None:
    tally = race_open(library, make_aead(KEY), size, SECONDS)
    print(tally)
    assert tally.altered == 0
    assert 0 < tally.verified < tally.records, "the flipping thread did not run beside the victim"


@pytest.mark.parametrize("size", SIZES)
def test_no_record_that_changed_while_it_was_sealed_has_a_valid_tag(
    library: TestLibrary, make_aead: AeadMaker, size: int
) -> None:
    tally = race_seal(library, make_aead(KEY), size, SECONDS)
    print(tally)
    assert tally.altered == 0
    assert tally.verified == tally.records > 0


def test_the_race_catches_a_naive_open(library: TestLibrary) -> None:
    tally = race_open(library, library.aead("naive", KEY), 4096, NAIVE_SECONDS, until_altered=True)
    print(tally)
    assert tally.altered > 0


def test_the_race_catches_a_naive_seal(library: TestLibrary) -> None:
    tally = race_seal(library, library.aead("naive", KEY), 65536, NAIVE_SECONDS, until_altered=True)
    print(tally)
    assert tally.altered > 0
