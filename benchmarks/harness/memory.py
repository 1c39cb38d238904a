"""What memory this process holds, read from /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of ``/proc/self/maps``: addresses ``start`` to below ``end``."""

    start: int
    end: int
    permissions: str
    inode: int
    path: str

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.end - self.start


def shared_mappings() -> list[Mapping]:
    """All memory of this process that other processes may see or change, whatever it is named.

    That is every shared mapping of ``/dev/shm``, a memfd or anonymous shared memory, but not of files on disk.
    """
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _offset, _device, inode, *path = line.split(maxsplit=5)
        name = path[0] if path else ""
        if permissions[3] == "s" and (not name or name.startswith(("/dev/shm/", "/memfd:", "/dev/zero"))):
            start, end = (int(address, 16) for address in addresses.split("-"))
            found.append(Mapping(start, end, permissions, int(inode), name))
    return found


def private_bytes() -> int:
    """Resident memory that belongs to this process alone: heaps and stacks, not files or shared memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/self/status has no RssAnon")


def owned_shared_bytes() -> int:
    """Shared memory that this process may write: of a segment that is mapped read-only, another rank is the owner."""
    writable = [mapping for mapping in shared_mappings() if "w" in mapping.permissions]
    return sum({(mapping.inode, mapping.path, mapping.nbytes): mapping.nbytes for mapping in writable}.values())
