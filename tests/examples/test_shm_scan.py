"""The scanner that the demo's claim about shared memory rests on."""

from __future__ import annotations

import mmap
import os
import random
import tempfile

import numpy as np
import pytest
from shm_scan import Region, find, find_all, planted, snapshot, windows


@pytest.fixture
def secret() -> bytes:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed).standard_normal(5000).astype(np.float32).tobytes()


def test_fifteen_bytes_are_found_wherever_they_lie(secret: bytes) -> None:
    needles = windows(secret)
    noise = os.urandom(4096)
    for place in range(1000, 1016):
        for begin in (0, 1, 777, len(secret) - 15):
            content = noise[:place] + secret[begin : begin + 15] + noise[place:]
            assert find(needles, Region("", content)) >= 1


def test_what_is_not_there_is_not_found(secret: bytes) -> None:
    needles = windows(secret)
    for content in (b"", bytes(1 << 16), os.urandom(1 << 20), b"abc"):
        assert find(needles, Region("", content)) == 0
    for alike in (bytes(100_000), np.ones(1000, np.float32).tobytes()):
        assert len(windows(alike)) == 0


def test_shared_memory_of_every_kind_is_searched_and_private_memory_is_not(secret: bytes) -> None:
    before = len(snapshot())
    private = bytearray(secret)
    assert find_all([secret], snapshot()) == 0, "the secret itself lies in private memory"
    with mmap.mmap(-1, len(secret)) as anonymous:  # MAP_SHARED | MAP_ANONYMOUS
        anonymous.write(secret)
        assert find_all([secret], snapshot()) > 1000
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="securecoll-test-") as file:
        file.truncate(len(secret))
        with mmap.mmap(file.fileno(), len(secret)) as named:
            named.write(secret)
            file.close()  # unlinked, as the engine's segments are
            assert find_all([secret], snapshot()) > 1000
    assert len(snapshot()) == before
    assert private == secret


def test_a_planted_secret_is_found_and_gone_afterwards(secret: bytes) -> None:
    other = os.urandom(4096)
    with planted(secret[:4096]):
        assert find_all([secret], snapshot()) > 400
        assert find_all([other], snapshot()) == 0
    assert find_all([secret], snapshot()) == 0
