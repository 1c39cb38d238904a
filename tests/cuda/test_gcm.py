"""The kernels seal what ``cryptography`` seals, open only that, and release nothing that did not verify."""

from __future__ import annotations

import ctypes
import random
import secrets
import threading
import time

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.cuda.card import (
    KERNELS,
    KEY_BYTES,
    MACRO_BYTES,
    MAX_PARTS,
    RECORDS,
    SHARED,
    TAG,
    Card,
    Chunk,
    GateArgs,
    Record,
    u32,
    u64,
)
from tests.cuda.conftest import Cards
from tests.emulator.emulator import EmulatorError, Order, build
from tests.emulator.sanitizers import run_under
from tests.host.test_aead_vectors import Vector, cavp, wycheproof

HASHES = ["tensor", "portable"]
NO_COUNT = {bytes(4)}


def seeded() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


class Sealed:
    """One record's secrets and texts, on the card and off it."""

    def __init__(self, card: Card, rng: random.Random, size: int, key: tuple[bytes, int] | None = None) -> None:
        self.card, self.size = card, size
        self.raw = rng.randbytes(32) if key is None else key[0]
        self.key = card.expand(self.raw)[0] if key is None else key[1]
        self.nonce, self.associated = rng.randbytes(12), rng.randbytes(32)
        self.plain = rng.randbytes(size)
        self.record = AESGCM(self.raw).encrypt(self.nonce, self.plain, self.associated)

    def chunk(self, source: int, target: int, **more: int) -> Chunk:
        return Chunk(self.key, source, target, self.size, self.nonce, self.associated, **more)

    def sealing(self, offset: int = 0) -> Chunk:
        return self.chunk(self.card.upload(self.plain, offset), self.card.room(self.size + TAG))

    def opening(self, offset: int = 0, copied: bool = False, record: bytes | None = None, index: int = 0) -> Chunk:
        source = self.card.upload(self.record if record is None else record)
        copy = self.card.room(self.size) if copied else 0
        return self.chunk(source, self.card.room(self.size, offset), copy=copy, index=index)


def check(
    card: Card, records: list[Sealed], parts: int, offset: int = 0, copied: bool = False, commits: bool = True
) -> None:
    """Seals and opens, and compares with ``cryptography``."""
    sealing = [one.sealing(offset) for one in records]
    card.crypt("sc_seal", sealing, parts)
    for one, chunk in zip(records, sealing, strict=True):
        assert card.read(chunk.output, one.size + TAG) == one.record, (one.size, parts, offset)
    opening = [one.opening(offset, copied) for one in records]
    card.crypt("sc_verify", opening, parts)
    assert card.failed() == (0, None), (parts, offset)
    if commits:
        card.crypt("sc_commit", opening, parts)
        for one, chunk in zip(records, opening, strict=True):
            assert card.read(chunk.output, one.size) == one.plain, (one.size, parts, offset)
    assert card.counters() == NO_COUNT
    for chunk in (*sealing, *opening):
        for at in (chunk.input, chunk.output, chunk.copy):
            if at:
                card.emulator.release(at & ~255)


# ---- published vectors; their associated data have any length, so they go through a kernel of the tests


class ProbeArgs(ctypes.Structure):
    _fields_ = [
        ("status", u64),
        ("partials", u64),
        ("associated", u64),
        ("left_behind", u64),
        ("associated_bytes", u32),
        ("parts", u32),
        ("record", Record),
    ]


def verdicts_and_texts(card: Card, vectors: list[Vector], *kernels: str) -> None:
    """Every vector is verified, and sealed if it is a right one."""
    keys = card.expand(*(vector.key for vector in vectors))
    for number, (vector, key) in enumerate(zip(vectors, keys, strict=True)):
        size = len(vector.sealed) - TAG
        args = ProbeArgs(status=card.status, partials=card.partials, parts=1)
        args.associated, args.associated_bytes = card.upload(vector.aad), len(vector.aad)
        if "probe_verify" in kernels:
            Chunk(key, card.upload(vector.sealed), 0, size, vector.iv, bytes(32)).fill(args.record)
            card.launch("probe_verify", args, shared=SHARED)
            assert (card.failed()[0] == 0) == (vector.plain is not None), number
            card.emulator.write(card.status, bytes(64))
        if "probe_seal" in kernels and vector.plain is not None:
            Chunk(key, card.upload(vector.plain), card.room(size + TAG), size, vector.iv, bytes(32)).fill(args.record)
            card.launch("probe_seal", args, shared=SHARED)
            assert card.read(args.record.output, size + TAG) == vector.sealed, number


@pytest.mark.parametrize("hash", HASHES)
def test_every_cavp_encryption_comes_out(make_card: Cards, hash: str) -> None:
    vectors = cavp("gcmEncryptExtIV256.rsp")
    assert len(vectors) >= 300
    verdicts_and_texts(make_card(hash=hash), vectors, "probe_seal")


@pytest.mark.parametrize("hash", HASHES)
def test_every_cavp_decryption_is_accepted_and_every_forged_one_refused(make_card: Cards, hash: str) -> None:
    vectors = cavp("gcmDecrypt256.rsp")
    assert len(vectors) >= 300
    verdicts_and_texts(make_card(hash=hash), vectors, "probe_verify")


@pytest.mark.parametrize("hash", HASHES)
def test_every_wycheproof_case_comes_out_and_every_forged_one_is_refused(make_card: Cards, hash: str) -> None:
    vectors = wycheproof()
    assert len(vectors) >= 60
    verdicts_and_texts(make_card(hash=hash), vectors, "probe_verify", "probe_seal")


# ---- lengths, parts, orders


@pytest.mark.parametrize("hash", HASHES)
def test_lengths_around_every_boundary_equal_cryptography(make_card: Cards, hash: str) -> None:
    rng = seeded()
    card = make_card(hash=hash)
    key = Sealed(card, rng, 0)
    # Blocks, a warp's run, and macro-blocks, with and without the three blocks that are no text.
    edges = [0, 16, 32, 512, 4096, MACRO_BYTES - 48, MACRO_BYTES, 2 * MACRO_BYTES - 48, 2 * MACRO_BYTES]
    sizes = sorted({size for edge in edges for size in (edge - 17, edge - 1, edge, edge + 1, edge + 15) if size >= 0})
    records = [Sealed(card, rng, size, (key.raw, key.key)) for size in sizes]
    for start in range(0, len(records), RECORDS):
        check(card, records[start : start + RECORDS], parts=1)


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("hash", HASHES)
def test_random_records_in_every_order_without_races(make_card: Cards, hash: str, order: Order) -> None:
    rng = seeded()
    card = make_card("race", hash, order, seed=rng.randrange(1, 1 << 30))
    chunk = 2 * MACRO_BYTES
    for round_number in range(3):
        count = rng.randint(1, 3)
        records = [Sealed(card, rng, rng.randrange((round_number + 1) * chunk)) for _ in range(count)]
        check(
            card,
            records,
            rng.choice([1, 2, 3, 5]),
            rng.choice([0, 0, 4, 2, 1, 7]),
            rng.random() < 0.5,
            hash == "tensor",
        )


@pytest.mark.parametrize("hash", HASHES)
def test_every_number_of_parts_gives_the_same_record(make_card: Cards, hash: str) -> None:
    rng = seeded()
    card = make_card(hash=hash)
    few = [Sealed(card, rng, 3 * MACRO_BYTES + 1000)]  # fewer macro-blocks than parts, mostly
    for parts in range(1, MAX_PARTS + 1):
        check(card, few, parts)
    many = [Sealed(card, rng, 70 * MACRO_BYTES)]
    for parts in (2, 33, MAX_PARTS):
        check(card, many, parts)


JOINED_PARTS = """
import random, sys
from pathlib import Path
from tests.cuda.card import MACRO_BYTES, Card
from tests.cuda.test_gcm import Sealed, check
from tests.emulator.emulator import Order

rng = random.Random(int(sys.argv[2]))
card = Card(Path(sys.argv[1]), Order.RANDOM, int(sys.argv[2]))
for parts in (2, 5):
    check(card, [Sealed(card, rng, 2 * MACRO_BYTES + 100)], parts, commits=False)
print("finished")
"""


def test_thread_sanitizer_finds_nothing_unordered_between_the_parts_of_a_record() -> None:
    seed = str(secrets.randbits(30))
    print(f"seed {seed}")
    library = build([KERNELS / "key.cu", KERNELS / "seal.cu"], "tsan")
    done = run_under("tsan", JOINED_PARTS, str(library), seed)
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr


def test_a_launch_takes_sixteen_records_with_keys_and_lengths_of_their_own(make_card: Cards) -> None:
    rng = seeded()
    card = make_card(order=Order.RANDOM)
    check(card, [Sealed(card, rng, rng.randrange(3 * MACRO_BYTES)) for _ in range(RECORDS)], parts=2)


@pytest.mark.parametrize("offset", range(16))
def test_plaintext_lies_at_any_address(make_card: Cards, offset: int) -> None:
    rng = seeded()
    card = make_card(seed=offset + 1)
    records = [Sealed(card, rng, size) for size in (5, 16, 4096 + 3, MACRO_BYTES + 77)]
    check(card, records, parts=1, offset=offset)


# ---- forgeries


def forgeries(one: Sealed, rng: random.Random) -> dict[str, tuple[bytes, bytes, bytes, int]]:
    """Record, nonce, associated data, key: each wrong in one place."""

    def flipped(data: bytes, at: int) -> bytes:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]

    right = (one.record, one.nonce, one.associated, one.key)
    wrong = {f"tag byte {at}": (flipped(one.record, one.size + at), *right[1:]) for at in range(TAG)}
    for at in sorted(rng.sample(range(one.size), min(one.size, 12))):
        wrong[f"byte {at}"] = (flipped(one.record, at), *right[1:])
    wrong["nonce"] = (one.record, flipped(one.nonce, rng.randrange(12)), one.associated, one.key)
    for at in (0, 15, 16, 31):
        wrong[f"associated byte {at}"] = (one.record, one.nonce, flipped(one.associated, at), one.key)
    wrong["another key"] = (*right[:3], one.card.expand(rng.randbytes(32))[0])
    return wrong


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("size", [0, 1, 16, 5000, MACRO_BYTES + 5])
def test_a_forged_record_is_refused_and_its_launch_commits_nothing(make_card: Cards, hash: str, size: int) -> None:
    rng = seeded()
    card = make_card(hash=hash)
    one, other = Sealed(card, rng, size), Sealed(card, rng, 100)
    before = bytes([0xA5]) * max(size, 100)
    for name, (record, nonce, associated, key) in forgeries(one, rng).items():
        card.emulator.write(card.status, bytes(64))
        bad = one.opening(record=record, index=7)
        bad.nonce, bad.associated, bad.key = nonce, associated, key
        chunks = [other.opening(index=3), bad]
        for chunk in chunks:
            card.emulator.write(chunk.output, before[: chunk.size])
        card.crypt("sc_verify", chunks, parts=2)
        assert card.failed() == (1, 7), name
        card.crypt("sc_commit", chunks, parts=2)
        for chunk in chunks:
            assert card.read(chunk.output, chunk.size) == before[: chunk.size], name


def test_of_several_forged_records_the_lowest_index_is_kept(make_card: Cards) -> None:
    rng = seeded()
    card = make_card(order=Order.RANDOM)
    one = Sealed(card, rng, 33)
    forged = one.record[:-1] + bytes([one.record[-1] ^ 1])
    card.crypt("sc_verify", [one.opening(index=i, record=forged) for i in (900, 12, 4000, 0x7FFFFFFF)])
    assert card.failed() == (4, 12)
    card.crypt("sc_verify", [one.opening(index=0, record=forged), one.opening(index=1)])
    assert card.failed() == (5, 0)


def test_a_record_of_zeros_is_refused(make_card: Cards) -> None:
    # What sealing leaves once something has failed.
    rng = seeded()
    card = make_card()
    one = Sealed(card, rng, 100)
    card.crypt("sc_verify", [one.opening(record=bytes(100 + TAG), index=5)])
    assert card.failed() == (1, 5)


# ---- once something has failed


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("size", [0, 50, 2 * MACRO_BYTES + 9])
def test_nothing_is_sealed_once_something_failed(make_card: Cards, size: int, parts: int) -> None:
    rng = seeded()
    card = make_card()
    one, onward = Sealed(card, rng, size), Sealed(card, rng, size)
    card.fail()
    chunk = one.sealing()
    card.crypt("sc_seal", [chunk], parts)
    assert card.read(chunk.output, size + TAG) == bytes(size + TAG)
    opened, sealed = one.opening(), onward.chunk(0, card.room(size + TAG))
    card.emulator.write(opened.output, b"b" * size)
    card.reseal([opened], [sealed], parts)
    assert card.read(sealed.output, size + TAG) == bytes(size + TAG)
    assert card.read(opened.output, size) == b"b" * size
    assert card.counters() == NO_COUNT


@pytest.mark.parametrize("kernel", ["sc_seal", "sc_commit_seal"])
def test_a_failure_while_a_record_is_sealed_withholds_its_tag(make_card: Cards, kernel: str) -> None:
    rng = seeded()
    card = make_card()
    status = (ctypes.c_uint32 * 16)()
    card.status = ctypes.addressof(status)
    card.emulator.map(card.status, 64)
    key = Sealed(card, rng, 0)
    one = Sealed(card, rng, 64 * MACRO_BYTES, (key.raw, key.key))
    sealed, opened = one.sealing(), one.opening()

    def run() -> None:
        if kernel == "sc_seal":
            card.crypt(kernel, [sealed])
        else:
            card.reseal([opened], [sealed])

    # The failure has to fall between the record's first byte and its tag. That can come too late on a busy machine.
    for _ in range(10):
        status[0] = 0
        card.emulator.write(sealed.output, bytes(one.size + TAG))
        sealing = threading.Thread(target=run)
        sealing.start()
        while sealing.is_alive() and not any(card.read(sealed.output, 64)):
            time.sleep(0.001)
        status[0] = 1
        sealing.join()
        record = card.read(sealed.output, one.size + TAG)
        assert record[: one.size] == one.record[: one.size]
        if not any(record[one.size :]):
            return
    pytest.fail("no tag was withheld")


def test_the_gate_lets_through_only_while_nothing_has_failed(make_card: Cards) -> None:
    card = make_card()
    card.launch("sc_gate", GateArgs(status=card.status), block=32)
    card.fail()
    with pytest.raises(EmulatorError, match="trap"):
        card.launch("sc_gate", GateArgs(status=card.status), block=32)


# ---- memory that others write to


def test_a_commit_takes_what_was_verified_and_does_not_read_the_slot_again(make_card: Cards) -> None:
    rng = seeded()
    card = make_card()
    for size in (5, 4096, MACRO_BYTES + 100):
        one = Sealed(card, rng, size)
        chunk = one.opening(copied=True)
        card.crypt("sc_verify", [chunk], parts=2)
        card.emulator.write(chunk.input, rng.randbytes(size + TAG))
        card.crypt("sc_commit", [chunk], parts=2)
        assert card.failed() == (0, None)
        assert card.read(chunk.output, size) == one.plain


def test_bits_flipped_while_a_slot_is_verified_never_become_plaintext(make_card: Cards) -> None:
    rng = seeded()
    card = make_card()
    one = Sealed(card, rng, 3 * MACRO_BYTES)
    slot = ctypes.create_string_buffer(one.record, one.size + TAG + 16)
    at = (ctypes.addressof(slot) + 15) & ~15
    ctypes.memmove(at, one.record, one.size + TAG)
    card.emulator.map(at, one.size + TAG)
    place = ctypes.cast(at + 40_000, ctypes.POINTER(ctypes.c_uint8))
    right, stop = place[0], threading.Event()

    def flip() -> None:
        while not stop.is_set():
            place[0] = right ^ 1
            time.sleep(rng.random() / 1000)
            place[0] = right
            time.sleep(rng.random() / 1000)

    flipping = threading.Thread(target=flip)
    flipping.start()
    opened = 0
    try:
        for _ in range(30):
            card.emulator.write(card.status, bytes(64))
            chunk = one.chunk(at, card.room(one.size), copy=card.room(one.size))
            card.crypt("sc_verify", [chunk])
            card.crypt("sc_commit", [chunk])
            if card.failed()[0] == 0:
                opened += 1
                assert card.read(chunk.output, one.size) == one.plain
            card.emulator.release(chunk.output)
            card.emulator.release(chunk.copy)
    finally:
        stop.set()
        flipping.join()
    print(f"{opened} of 30 opened")


# ---- keys


@pytest.mark.parametrize("hash", HASHES)
def test_a_sealed_key_expands_as_the_raw_one_does(make_card: Cards, hash: str) -> None:
    rng = seeded()
    card = make_card("race" if hash == "tensor" else "plain", hash, Order.RANDOM)
    outer = rng.randbytes(32)
    wrapping = card.expand(outer)[0]
    raw, nonces = [rng.randbytes(32) for _ in range(3)], [rng.randbytes(12) for _ in range(3)]
    sealed = [AESGCM(outer).encrypt(nonce, key, None) for key, nonce in zip(raw, nonces, strict=True)]
    unwrapped = card.expand(*sealed, wrapping=wrapping, nonces=nonces)
    assert card.failed() == (0, None)
    for key, at in zip(raw, unwrapped, strict=True):
        one = Sealed(card, rng, 1000, (key, at))
        check(card, [one], parts=1)


def test_a_key_whose_tag_is_wrong_stays_zero_and_stops_everything(make_card: Cards) -> None:
    rng = seeded()
    for at in (0, 31, 32, 47):
        card = make_card()
        outer, nonce = rng.randbytes(32), rng.randbytes(12)
        wrapping = card.expand(outer)[0]
        sealed = bytearray(AESGCM(outer).encrypt(nonce, rng.randbytes(32), None))
        sealed[at] ^= 0x10
        key = card.expand(bytes(sealed), wrapping=wrapping, nonces=[nonce])[0]
        assert card.failed()[0] == 1
        assert not any(card.read(key, KEY_BYTES - 256))


def test_no_key_is_made_once_something_failed(make_card: Cards) -> None:
    # Else a wrapping key that stayed zero would open what anyone can seal.
    card = make_card()
    card.fail()
    assert not any(card.read(card.expand(bytes(range(32)))[0], KEY_BYTES - 256))


@pytest.mark.parametrize("kernel", ["probe_seal", "probe_verify", "probe_commit", "probe_expand_key"])
def test_no_secret_stays_behind_in_shared_memory(make_card: Cards, kernel: str) -> None:
    rng = seeded()
    card = make_card()
    one = Sealed(card, rng, 5000)
    args = ProbeArgs(status=card.status, partials=card.partials, parts=1, associated_bytes=32)
    args.associated = card.upload(one.associated)
    size = SHARED // 2
    args.left_behind = card.room(size)
    card.emulator.write(args.left_behind, b"\xa5" * size)
    if kernel == "probe_expand_key":
        args.record.input, args.record.output = card.upload(one.raw), card.room(KEY_BYTES)
    else:
        (one.sealing() if kernel == "probe_seal" else one.opening()).fill(args.record)
    card.launch(kernel, args, shared=SHARED)
    left = card.read(args.left_behind, size)
    shown = len(left.rstrip(b"\xa5"))
    assert shown > 500
    assert not any(left[:shown])
