"""What memory this process holds, read from /proc."""

from __future__ import annotations

from pathlib import Path


def private_bytes() -> int:
    """Resident memory that belongs to this process alone: heaps and stacks, not files or shared memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/self/status has no RssAnon")


def owned_shared_bytes() -> int:
    """Shared memory that this process may write, whatever it is named; a segment that is mapped twice counts once.

    Of a segment that is mapped read-only, another rank is the owner. Files on disk do not count.
    """
    segments = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _offset, _device, inode, *path = line.split(maxsplit=5)
        name = path[0] if path else ""
        in_memory = not name or name.startswith(("/dev/shm/", "/memfd:", "/dev/zero"))
        if in_memory and permissions[1] == "w" and permissions[3] == "s":
            start, end = (int(address, 16) for address in addresses.split("-"))
            segments[inode, end - start] = end - start
    return sum(segments.values())
