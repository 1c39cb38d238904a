"""An emulated GPU with securecoll's kernels on it: the structs of kernels/cuda/launch.hpp, and launches by name."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.emulator.emulator import Emulator, Order

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "cuda"
PROBES = Path(__file__).parent

RECORDS = 16
MAX_PARTS = 64
THREADS = 256
SHARED = 131072
KEY_BYTES = 17408
PARTIAL_BYTES = 16 * MAX_PARTS + 64
MACRO_BYTES = 2048 * 16
TAG = 16

u8, u32, u64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64


class Record(ctypes.Structure):
    _fields_ = [
        ("key", u64),
        ("input", u64),
        ("output", u64),
        ("operand", u64),
        ("copy", u64),
        ("index", u32),
        ("bytes", u32),
        ("nonce", u8 * 12),
        ("reserved", u32),
        ("associated", u8 * 32),
    ]


class Reduction(ctypes.Structure):
    _fields_ = [
        ("dtype", u8),
        ("op", u8),
        ("flags", u8),
        ("opened_is_a", u8),
        ("world", u32),
        ("factor", ctypes.c_double),
    ]


class KeyArgs(ctypes.Structure):
    _fields_ = [
        ("wrapping", u64),
        ("status", u64),
        ("count", u32),
        ("reserved", u32),
        ("sealed", u64 * RECORDS),
        ("keys", u64 * RECORDS),
        ("nonce", (u8 * 12) * RECORDS),
    ]


class CryptArgs(ctypes.Structure):
    _fields_ = [
        ("status", u64),
        ("partials", u64),
        ("records", u32),
        ("parts", u32),
        ("reduction", Reduction),
        ("record", Record * RECORDS),
    ]


class ResealArgs(ctypes.Structure):
    _fields_ = [
        ("status", u64),
        ("partials", u64),
        ("records", u32),
        ("parts", u32),
        ("reduction", Reduction),
        ("open", Record * (RECORDS // 2)),
        ("seal", Record * (RECORDS // 2)),
    ]


class ReduceArgs(ctypes.Structure):
    _fields_ = [("out", u64), ("a", u64), ("b", u64), ("count", u64), ("reduction", Reduction)]


class GateArgs(ctypes.Structure):
    _fields_ = [("status", u64)]


@dataclass
class Chunk:
    """One record, by addresses on the card."""

    key: int
    input: int
    output: int
    size: int
    nonce: bytes
    associated: bytes
    operand: int = 0
    copy: int = 0
    index: int = 0

    def fill(self, record: Record) -> None:
        record.key, record.input, record.output = self.key, self.input, self.output
        record.operand, record.copy = self.operand, self.copy
        record.index, record.bytes = self.index, self.size
        record.nonce[:] = self.nonce
        record.associated[:] = self.associated


@dataclass
class Card:
    """The device, its status word, and how its threads take turns."""

    kernels: Path
    order: Order = Order.IN_TURN
    seed: int = 1
    memory_bytes: int = 256 << 20
    emulator: Emulator = field(init=False)
    status: int = field(init=False)
    partials: int = field(init=False)

    def __post_init__(self) -> None:
        self.emulator = Emulator(self.kernels, self.memory_bytes, self.seed)
        self.status = self.emulator.upload(bytes(64))
        self.partials = self.emulator.upload(bytes(PARTIAL_BYTES * RECORDS))

    def launch(
        self, kernel: str, args: ctypes.Structure, grid: int = 1, block: int = THREADS, shared: int = 0
    ) -> None:
        self.emulator.run(kernel, bytes(args), grid=grid, block=block, shared=shared, order=self.order, seed=self.seed)

    def upload(self, data: bytes, offset: int = 0) -> int:
        """A copy of ``data`` that begins ``offset`` bytes after a multiple of 256, with nothing behind it."""
        return self.emulator.upload(bytes(offset) + data) + offset

    def room(self, size: int, offset: int = 0) -> int:
        return self.emulator.allocate(max(1, size + offset)) + offset

    def read(self, at: int, size: int) -> bytes:
        return self.emulator.read(at, size)

    def expand(self, *raw: bytes, wrapping: int = 0, nonces: Sequence[bytes] = ()) -> list[int]:
        """Expanded keys, from raw ones or, with ``wrapping``, from sealed ones."""
        keys = []
        for start in range(0, len(raw), RECORDS):
            batch = raw[start : start + RECORDS]
            args = KeyArgs(wrapping=wrapping, status=self.status, count=len(batch))
            for i, sealed in enumerate(batch):
                args.sealed[i] = self.upload(sealed)
                args.keys[i] = self.room(KEY_BYTES)
                if nonces:
                    args.nonce[i][:] = nonces[start + i]
            self.launch("sc_expand_key", args, grid=len(batch), shared=SHARED)
            for i in range(len(batch)):
                keys.append(args.keys[i])
                self.emulator.release(args.sealed[i])
        return keys

    def crypt(self, kernel: str, chunks: Iterable[Chunk], parts: int = 1, reduction: Reduction | None = None) -> None:
        """``sc_seal``, ``sc_verify`` or ``sc_commit``."""
        chunks = list(chunks)
        args = CryptArgs(status=self.status, partials=self.partials, records=len(chunks), parts=parts)
        if reduction is not None:
            args.reduction = reduction
        for i, chunk in enumerate(chunks):
            chunk.fill(args.record[i])
        self.launch(kernel, args, grid=len(chunks) * parts, shared=SHARED)

    def reseal(
        self, opened: Sequence[Chunk], sealed: Sequence[Chunk], parts: int = 1, reduction: Reduction | None = None
    ) -> None:
        args = ResealArgs(status=self.status, partials=self.partials, records=len(opened), parts=parts)
        if reduction is not None:
            args.reduction = reduction
        for i, (a, b) in enumerate(zip(opened, sealed, strict=True)):
            a.fill(args.open[i])
            b.fill(args.seal[i])
        self.launch("sc_commit_seal", args, grid=len(opened) * parts, shared=SHARED)

    def failed(self) -> tuple[int, int | None]:
        """How many records did not verify, and the index of the first."""
        status = self.read(self.status, 64)
        first = int.from_bytes(status[4:8], "little")
        return int.from_bytes(status[:4], "little"), None if first == 0 else ~first & 0xFFFFFFFF

    def fail(self) -> None:
        self.emulator.write(self.status, (1).to_bytes(4, "little"))

    def counters(self) -> set[bytes]:
        """The counters of arrivals behind the partial hashes."""
        places = (self.partials + PARTIAL_BYTES * i + 16 * MAX_PARTS for i in range(RECORDS))
        return {self.read(at, 4) for at in places}
