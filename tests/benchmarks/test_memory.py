"""What a rank holds, as peers.py reports it."""

from __future__ import annotations

import mmap
import tempfile

from harness.memory import owned_shared_bytes, private_bytes

MIB = 1 << 20


def test_private_memory_is_counted_once_touched_and_until_freed() -> None:
    before = private_bytes()
    with mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        assert private_bytes() - before < 4 * MIB
        block.write(b"x" * len(block))
        assert private_bytes() - before > 28 * MIB
    assert private_bytes() - before < 36 * MIB


def test_shared_memory_counts_for_its_writer_and_files_on_disk_do_not() -> None:
    before = owned_shared_bytes()
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="securecoll-test-") as segment:
        segment.truncate(8 * MIB)
        with (
            mmap.mmap(segment.fileno(), 8 * MIB),
            mmap.mmap(segment.fileno(), 8 * MIB),
            mmap.mmap(segment.fileno(), 4 * MIB, access=mmap.ACCESS_READ),
        ):
            assert owned_shared_bytes() - before == 8 * MIB
    with tempfile.NamedTemporaryFile(dir=tempfile.gettempdir()) as file:
        file.truncate(MIB)
        with mmap.mmap(file.fileno(), MIB):
            assert owned_shared_bytes() == before
