"""Looks for plaintext in the memory that this process shares with others: what a curious host could read.

A host sees shared memory, whatever an API says was sent. So after a step of training the demo takes all of it and
searches for the bytes of the gradients. A search that finds nothing proves nothing, unless the same search finds
something that is there: :func:`planted` is that control.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WINDOW = 8
"""Bytes that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Region:
    """A copy of one shared mapping of this process."""

    name: str
    content: bytes

    @property
    def written(self) -> int:
        """Bytes in it that are not zero."""
        return int(np.count_nonzero(np.frombuffer(self.content, np.uint8)))


def snapshot() -> list[Region]:
    """Copies all memory that this process shares: every shared mapping, named or not, but those of files on disk.

    This rank's own segment is among them, and those of its peers, which it maps to read what they send.
    """
    regions = []
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, permissions, _offset, _device, _inode, *path = line.split(maxsplit=5)
            name = path[0] if path else "(anonymous)"
            if not permissions.startswith("r") or permissions[3] != "s":
                continue
            if name.startswith("/") and not name.startswith(("/dev/shm/", "/memfd:", "/dev/zero")):
                continue
            start, end = (int(address, 16) for address in addresses.split("-"))
            regions.append(Region(name, os.pread(memory.fileno(), end - start, start)))
    return regions


def windows(secret: bytes) -> NDArray[np.uint64]:
    """Every run of WINDOW bytes of ``secret`` that is unlikely to occur by chance, as integers, sorted.

    Left out are runs with fewer than six different bytes, such as zeros: those say nothing about where they came from.
    """
    runs = np.lib.stride_tricks.sliding_window_view(np.frombuffer(secret, np.uint8), WINDOW)
    ordered = np.sort(runs, axis=1)
    different = 1 + np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    telling = np.ascontiguousarray(runs[different >= 6])
    return np.unique(telling.view(np.uint64))


def find(needles: NDArray[np.uint64], region: Region) -> int:
    """How many words of a region are among ``needles`` (from :func:`windows`).

    Only aligned words are looked up; since needles begin at every byte of the secret, that finds any 15 bytes of it,
    wherever they lie. By chance, a word is a needle with a probability of len(needles) / 2^64.
    """
    content = region.content[: len(region.content) // WINDOW * WINDOW]
    words = np.frombuffer(content, np.uint64)
    words = words[words != 0]
    if len(needles) == 0 or len(words) == 0:
        return 0
    places = np.minimum(np.searchsorted(needles, words), len(needles) - 1)
    return int(np.count_nonzero(needles[places] == words))


def find_all(secrets: Sequence[bytes], regions: Sequence[Region]) -> int:
    """How many words of the regions come from any of the secrets."""
    needles = np.unique(np.concatenate([windows(secret) for secret in secrets]))
    return sum(find(needles, region) for region in regions)


@contextmanager
def planted(secret: bytes) -> Iterator[None]:
    """While open, ``secret`` lies in shared memory of this process, at an odd address: a scan must find it."""
    descriptor = os.memfd_create("planted")
    try:
        os.ftruncate(descriptor, len(secret) + 2 * mmap.PAGESIZE)
        with mmap.mmap(descriptor, 0) as memory:
            memory.seek(mmap.PAGESIZE + 1)
            memory.write(secret)
            yield
    finally:
        os.close(descriptor)
