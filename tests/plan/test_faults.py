"""The checker catches planted faults: each plan here is one change away from a proven one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from securecoll.codes import Collective
from securecoll.plan.check import PlanError, check
from securecoll.plan.ir import INPUT, OUTPUT, Block, Plan, Record, Step, StepOp, Stream, from_all, from_rank, to_all
from securecoll.plan.topology import Topology
from tests.plan.cases import group

DEPTH = 4
Change = Callable[[Step], Step]


def edited(plans: list[Plan], rank: int, index: int, change: Change) -> list[Plan]:
    steps = list(plans[rank].steps)
    steps[index] = change(steps[index])
    return with_steps(plans, rank, steps)


def with_steps(plans: list[Plan], rank: int, steps: list[Step]) -> list[Plan]:
    return [replace(p, steps=tuple(steps)) if p.rank == rank else p for p in plans]


def streams(step: Step) -> set[Stream]:
    """What a step reads."""
    return {source.stream for source in step.sources if isinstance(source, Record)}


def everywhere(plans: list[Plan], change: Callable[[Plan], Plan]) -> list[Plan]:
    return [change(p) for p in plans]


def fields(**values: object) -> Change:
    return lambda step: replace(step, **values)  # type: ignore[arg-type]


def refuses(plans: list[Plan], sentence: str, depth: int = DEPTH) -> None:
    """The plans fail with this sentence, in which "..." stands for anything."""
    pattern = ".*".join(re.escape(part) for part in sentence.split("..."))
    with pytest.raises(PlanError, match=f"^{pattern}$"):
        check(plans, depth)


@pytest.fixture
def direct() -> list[Plan]:
    """all_reduce, 3 ranks, 2 chunks a slice. Steps: seals for the next and the one after, the sum, two opens."""
    return group(Collective.ALL_REDUCE, "direct", 3, 3 * 128, wave=2)


@pytest.fixture
def ring() -> list[Plan]:
    """all_reduce, 3 ranks, 2 chunks a slice. Steps: seal, reduce, completing reduce, forward, open."""
    return group(Collective.ALL_REDUCE, "ring", 3, 3 * 128, wave=2)


@pytest.fixture
def one_shot() -> list[Plan]:
    """all_reduce, 3 ranks, 2 chunks. Steps: announce, combine."""
    return group(Collective.ALL_REDUCE, "one_shot", 3, 128, wave=2)


def test_the_plans_that_faults_are_planted_in_are_right(
    direct: list[Plan], ring: list[Plan], one_shot: list[Plan]
) -> None:
    for plans in (direct, ring, one_shot):
        assert check(plans, DEPTH).sealed


# The group


def test_no_plans() -> None:
    refuses([], "there are no plans")


def test_a_lane_without_slots(direct: list[Plan]) -> None:
    refuses(direct, "a lane needs at least one slot, not 0", depth=0)


def test_a_plan_for_nothing(direct: list[Plan]) -> None:
    refuses([replace(direct[0], call=None), *direct[1:]], "rank 0's plan does not say what it is for")


def test_a_rank_that_is_missing(direct: list[Plan]) -> None:
    refuses(direct[:2], "plan 0 of 2 is for rank 0 of 3")


def test_ranks_in_another_order(direct: list[Plan]) -> None:
    refuses([direct[0], direct[2], direct[1]], "plan 1 of 3 is for rank 2 of 3")


def test_a_plan_for_another_call(direct: list[Plan]) -> None:
    refuses([direct[0], replace(direct[1], call=direct[0].call), direct[2]], "rank 1's plan is for another call...")


def test_chunks_that_differ(direct: list[Plan]) -> None:
    refuses([*direct[:2], replace(direct[2], chunk=128)], "chunk is 128 on rank 2 but 64 on rank 0")


def test_waves_that_differ(direct: list[Plan]) -> None:
    refuses([*direct[:2], replace(direct[2], wave=1)], "wave is 1 on rank 2 but 2 on rank 0")


def test_identities_that_differ(direct: list[Plan]) -> None:
    refuses([*direct[:2], replace(direct[2], identity=bytes(32))], "identity is ... on rank 2 but ... on rank 0")


def test_blocks_that_differ(direct: list[Plan]) -> None:
    refuses([*direct[:2], replace(direct[2], blocks=1)], "blocks is 1 on rank 2 but 14 on rank 0")


def test_blocks_that_are_wrong(direct: list[Plan]) -> None:
    refuses(
        everywhere(direct, lambda p: replace(p, blocks=13)),
        "the busiest stream costs 14 cipher blocks but the plans say 13",
    )


def test_blocks_under_the_busiest_edge_of_an_all_to_all() -> None:
    plans = group(Collective.ALL_TO_ALL, "one_shot", 3, 128)
    refuses(everywhere(plans, lambda p: replace(p, blocks=13)), "the busiest stream costs 14 cipher blocks...")


def test_calls_of_other_sizes(direct: list[Plan]) -> None:
    call = direct[2].call
    assert call is not None
    refuses(
        [*direct[:2], replace(direct[2], call=replace(call, nbytes=4))],
        "the call's nbytes is 4 on rank 2 but 384 on rank 0",
    )


def test_an_edge_whose_ends_disagree() -> None:
    plans = group(Collective.ALL_TO_ALL, "one_shot", 2, edges=[[4, 8], [16, 4]])
    call = plans[1].call
    assert call is not None
    wrong = replace(plans[1], call=replace(call, recv=(4, 4)))
    refuses([plans[0], wrong], "rank 0 sends 8 bytes to rank 1, which expects 4")


def test_a_ragged_chunk(direct: list[Plan]) -> None:
    refuses(
        everywhere(direct, lambda p: replace(p, chunk=96)), "the chunk must be a positive multiple of 64 bytes, not 96"
    )


def test_a_wave_of_nothing(direct: list[Plan]) -> None:
    refuses(everywhere(direct, lambda p: replace(p, wave=0)), "the wave must be at least 1, not 0")


# One step


@pytest.mark.parametrize(
    ("index", "change", "sentence"),
    [
        (0, fields(length=-1), "has the length -1"),
        (0, fields(block=None), "must seal its block and nothing else"),
        (0, fields(sources=(Block(INPUT, 0, 128),)), "must seal its block and nothing else"),
        (0, fields(stream=None), "must seal on a stream into a lane"),
        (0, fields(lanes=()), "must seal on a stream into a lane"),
        (0, fields(finish=True), "finishes, which only REDUCE does"),
        (0, fields(after=(9,)), "waits for step 9, which is not another step"),
        (0, fields(after=(0,)), "waits for step 0, which is not another step"),
        (0, fields(lanes=(0,)), "writes to lane 0, which it does not have"),
        (0, fields(lanes=(4,)), "writes to lane 4, which it does not have"),
        (0, fields(lanes=(1, 1)), "uses a lane twice"),
        (0, fields(stream=Stream(1, 0)), "seals on a stream of rank 1"),
        (0, fields(stream=Stream(0, 0)), "seals for rank 0, which is no other rank"),
        (0, fields(stream=Stream(0, 3)), "seals for rank 3, which is no other rank"),
        (0, fields(record=(1 << 24) - 1), "seals records up to 16777217 of 16777216"),
        (0, fields(block=Block(INPUT, 320, 128)), "uses bytes [320, 448) of a buffer that has 384"),
        (0, fields(block=Block(INPUT, -64, 128)), "uses bytes [-64, 64) of a buffer that has 384"),
        (0, fields(block=Block(INPUT, 126, 128)), "cuts elements of 4 bytes"),
        (0, fields(block=Block(INPUT, 128, 64)), "has a block of 64 bytes but covers 128"),
        (0, fields(block=Block(2, 0, 128)), "names buffer 2"),
        (2, fields(sources=()), "must have something to reduce"),
        (2, fields(block=None, stream=None, lanes=()), "reduces into nothing"),
        (2, fields(stream=None), "has lanes but writes nothing to them"),
        (2, fields(block=Block(INPUT, 0, 128)), "writes to the input"),
        (3, fields(sources=()), "must have one record as its source"),
        (3, fields(block=None), "must open into a block"),
        (3, fields(block=Block(INPUT, 128, 128)), "writes to the input"),
        (3, fields(stream=Stream(0)), "has a stream but seals nothing"),
        (3, fields(scale=True), "scales, which only SEAL and REDUCE do"),
        (3, fields(sources=(Record(3, Stream(0)),)), "reads from lane 3, which it does not have"),
        (3, fields(sources=(Record(6, Stream(1)),)), "reads from lane 6, which it does not have"),
        (3, fields(sources=(Record(4, Stream(1, 2)),)), "opens a record that is for rank 2"),
        (3, fields(sources=(Record(4, Stream(0)),)), "opens a record of its own"),
        (3, fields(op=StepOp.FORWARD), "must pass its record on"),
        (3, fields(op=StepOp.COPY), "must copy one block to another"),
    ],
)
def test_a_malformed_step(direct: list[Plan], index: int, change: Change, sentence: str) -> None:
    refuses(edited(direct, 0, index, change), f"rank 0 step {index} (...) {sentence}")


# Lanes


def test_two_steps_of_a_lane_in_another_order(ring: list[Plan]) -> None:
    steps = list(ring[1].steps)
    steps[1], steps[2] = steps[2], steps[1]
    refuses(
        with_steps(ring, 1, steps),
        "record 0 on the lane from rank 0 to rank 1 is 64 bytes as record 0 of the link stream from rank 0 to rank 1 "
        "to rank 0 step 0 (SEAL) chunk 0 but 64 bytes as record 2 of the link stream ... to rank 1 step 1 (REDUCE)...",
    )


def test_a_lane_swapped_for_another(direct: list[Plan]) -> None:
    refuses(
        edited(direct, 0, 0, fields(lanes=(2,))), "the lane from rank 0 to rank 1 gets 0 records but rank 1 reads 2"
    )


def test_a_lane_to_one_where_all_read(direct: list[Plan]) -> None:
    refuses(edited(direct, 0, 2, fields(lanes=(1,))), "...the lane from rank 0 to ...")


def test_a_record_number_the_reader_does_not_expect(direct: list[Plan]) -> None:
    refuses(
        edited(direct, 0, 0, fields(record=1)),
        "record 0 on the lane from rank 0 to rank 1 is 64 bytes as record 1 of the link stream from rank 0 to rank 1 "
        "to rank 0 ... but 64 bytes as record 0 of the link stream...",
    )


def test_a_stream_the_reader_does_not_expect(direct: list[Plan]) -> None:
    refuses(
        edited(direct, 0, 2, fields(stream=Stream(0, 1), record=2)),
        "record 0 on the lane from rank 0 to all is 64 bytes as record 2 of the link stream from rank 0 to rank 1 ... "
        "but 64 bytes as record 0 of the sender stream of rank 0...",
    )


def test_a_length_the_reader_does_not_expect(direct: list[Plan]) -> None:
    refuses(
        edited(direct, 0, 0, fields(length=124, block=Block(INPUT, 128, 124))),
        "record 1 on the lane from rank 0 to rank 1 is 60 bytes ... but 64 bytes...",
    )


def test_a_reader_that_skips_a_lane_to_all(direct: list[Plan]) -> None:
    refuses(
        with_steps(direct, 2, list(direct[2].steps[:-1])), "the lane from rank 1 to all gets 2 records but rank 2 ..."
    )


def test_records_that_nobody_sends(direct: list[Plan]) -> None:
    refuses(with_steps(direct, 0, list(direct[0].steps[1:])), "the lane from rank 0 to rank 1 gets 0 records ...")


# Nonces


def test_a_nonce_used_twice(ring: list[Plan]) -> None:
    """The link from rank 0 carries two slices; both as record 0."""
    plans = edited(ring, 0, 1, fields(record=0))
    expect = plans[1].steps[2].sources
    assert isinstance(expect[0], Record)
    plans = edited(plans, 1, 2, fields(sources=(replace(expect[0], record=0), *expect[1:])))
    refuses(plans, "rank 0 steps 0 and 1 both seal record 0 of the link stream from rank 0 to rank 1")


def test_nonces_that_overlap_by_one(ring: list[Plan]) -> None:
    plans = edited(ring, 0, 1, fields(record=1))
    expect = plans[1].steps[2].sources
    assert isinstance(expect[0], Record)
    plans = edited(plans, 1, 2, fields(sources=(replace(expect[0], record=1), *expect[1:])))
    refuses(plans, "rank 0 steps 0 and 1 both seal record 1 of the link stream from rank 0 to rank 1")


# Progress


def test_lanes_too_shallow_for_a_ring(ring: list[Plan]) -> None:
    check(ring, 3)
    refuses(ring, "deadlock, lanes of 2 slots are too shallow: rank ...", depth=2)


def test_steps_that_wait_for_each_other(direct: list[Plan]) -> None:
    plans = edited(edited(direct, 1, 0, fields(after=(1,))), 1, 1, fields(after=(0,)))
    refuses(plans, "deadlock, whatever the depth of lanes: rank 1 step ... which waits for rank 1 step ...")


def test_ranks_that_wait_for_each_other() -> None:
    plans = group(Collective.ALL_TO_ALL, "one_shot", 2, 64)
    for rank in (0, 1):
        plans = edited(plans, rank, 0, fields(after=(1,)))
    refuses(plans, "deadlock, whatever the depth of lanes: ...")


def test_a_step_that_waits_for_a_later_one_of_its_lane() -> None:
    """Nothing but the order of records on the lane to the root stands against it."""
    plans = group(Collective.REDUCE, "direct", 2, 128)
    assert plans[1].steps[0].lanes == plans[1].steps[1].lanes
    refuses(edited(plans, 1, 0, fields(after=(1,))), "deadlock, whatever the depth of lanes: rank 1 step ...")


# Races


def test_a_missing_edge_before_memory_is_written_again(one_shot: list[Plan]) -> None:
    refuses(
        edited(one_shot, 1, 1, fields(after=())),
        "rank 1 step 0 (REDUCE) chunk 0 and rank 1 step 1 (REDUCE) chunk 0 touch the same memory and nothing...",
    )


def test_a_write_over_input_that_is_not_sent_yet() -> None:
    """Apart, INPUT and OUTPUT are safe; in place the opened part lands on what a later step still sends."""
    plans = group(Collective.ALL_REDUCE, "direct", 3, 3 * 64)
    steps = list(plans[0].steps)
    steps.append(Step(StepOp.COPY, 64, block=Block(OUTPUT, 64, 64), sources=(Block(INPUT, 0, 64),)))
    refuses(
        with_steps(plans, 0, steps),
        "rank 0 step ... and rank 0 step ... touch the same memory and nothing orders them",
    )


def test_a_copy_that_races_only_with_distinct_buffers() -> None:
    """In place OUTPUT is INPUT and the copy does nothing; apart, the root may send what is not there yet."""
    plans = edited(group(Collective.BROADCAST, "one_shot", 2, 64), 0, 0, fields(block=Block(OUTPUT, 0, 64)))
    refuses(
        plans, "rank 0 step 0 (SEAL) chunk 0 and rank 0 step 1 (COPY) chunk 0 touch the same memory and nothing..."
    )
    check(edited(plans, 0, 0, fields(after=(1,))), DEPTH)


def test_a_step_that_overlaps_its_own_source_in_place() -> None:
    plans = group(Collective.BROADCAST, "one_shot", 2, 128)
    wrong = fields(length=64, block=Block(OUTPUT, 32, 64), sources=(Block(INPUT, 0, 64),))
    refuses(edited(plans, 0, 1, wrong), "rank 0 step 1 (COPY) writes over a part of its own source in place")


def test_memory_read_before_anything_is_written() -> None:
    plans = group(Collective.ALL_REDUCE, "one_shot", 2, 64)
    plans = edited(plans, 0, 0, fields(block=None))
    refuses(plans, "rank 0 step 1 (REDUCE) chunk 0 reads memory that nothing has written")


# Values


def test_a_contribution_that_is_missing(direct: list[Plan]) -> None:
    plans = edited(direct, 1, 2, lambda s: replace(s, sources=(s.sources[0], s.sources[2])))
    refuses(plans, "with distinct buffers rank 0's output [128, 256) lacks the contribution of rank 1")


def test_a_contribution_that_is_there_twice(direct: list[Plan]) -> None:
    plans = edited(direct, 1, 2, lambda s: replace(s, sources=(*s.sources, s.sources[1])))
    refuses(plans, "with distinct buffers rank 0's output [128, 256) has the contribution of rank 1 more than once")


def test_a_sum_that_is_not_finished(direct: list[Plan]) -> None:
    refuses(
        edited(direct, 2, 2, fields(finish=False)),
        "with distinct buffers rank 0's output [256, 384) was not finished",
    )


def test_a_sum_that_is_finished_too_early(ring: list[Plan]) -> None:
    refuses(edited(ring, 2, 1, fields(finish=True)), "...was finished before it was complete")


def test_a_contribution_without_its_factor(direct: list[Plan]) -> None:
    refuses(edited(direct, 2, 0, fields(scale=False)), "... has the contribution of rank 2 without its factor")


def test_a_factor_on_what_is_not_raw_input(one_shot: list[Plan]) -> None:
    refuses(
        edited(one_shot, 0, 1, fields(scale=True)),
        "rank 0 step 1 (REDUCE) chunk 0 scales something else than its rank's own input",
    )


def test_an_order_of_addition_that_differs_between_ranks(one_shot: list[Plan]) -> None:
    plans = edited(one_shot, 1, 1, lambda s: replace(s, sources=s.sources[::-1]))
    refuses(plans, "with distinct buffers ranks 0 and 1 reduce in different orders or round differently")


def test_a_rank_that_adds_its_own_contribution_unrounded() -> None:
    """SEAL rounds what it scales; REDUCE does not. Both on one contribution, and ranks end with different bits."""
    plans = []
    for plan in group(Collective.ALL_REDUCE, "one_shot", 2, 64):
        announce, combine = plan.steps
        own = Block(INPUT, 0, 64)
        seal = replace(announce, op=StepOp.SEAL, block=own, sources=())
        sources = tuple(own if isinstance(s, Block) else s for s in combine.sources)
        plans.append(replace(plan, steps=(seal, replace(combine, sources=sources, scale=True))))
    refuses(plans, "with distinct buffers ranks 0 and 1 reduce in different orders or round differently")


def test_elements_of_different_places_added(direct: list[Plan]) -> None:
    plans = edited(edited(direct, 0, 0, fields(block=Block(INPUT, 0, 128))), 0, 2, fields(after=(0,)))
    refuses(plans, "with distinct buffers rank 0's output [128, 256) combines elements of different places")


def test_a_whole_slice_of_another_place() -> None:
    plans = group(Collective.REDUCE_SCATTER, "one_shot", 2, 64)
    plans = edited(edited(plans, 1, 0, fields(block=Block(INPUT, 64, 64))), 1, 1, fields(after=(0,)))
    plans = edited(plans, 0, 1, lambda s: replace(s, sources=(Block(INPUT, 64, 64), s.sources[1])))
    refuses(plans, "... rank 0's output [0, 64) is the reduction of bytes from 64, not from 0")


def test_an_output_that_is_never_written() -> None:
    plans = group(Collective.BROADCAST, "one_shot", 3, 128)
    refuses(
        with_steps(plans, 0, list(plans[0].steps[:1])),
        "with distinct buffers a part of rank 0's output is never written",
    )


def test_parts_in_the_wrong_place() -> None:
    plans = group(Collective.ALL_GATHER, "one_shot", 3, 64)
    plans = edited(plans, 0, 2, fields(block=Block(OUTPUT, 128, 64)))
    plans = edited(plans, 0, 3, fields(block=Block(OUTPUT, 64, 64)))
    refuses(plans, "with distinct buffers rank 0's output [64, 128) is rank 2's input at 0, not rank 1's input at 0")


def test_a_plan_that_is_right_only_with_distinct_buffers() -> None:
    """Rank 1's part passes through the place of rank 0's own, which in place destroys it."""
    plans = group(Collective.ALL_GATHER, "one_shot", 2, 64)
    seal, keep, take = plans[0].steps
    own, other = Block(OUTPUT, 0, 64), Block(OUTPUT, 64, 64)
    through = Step(StepOp.COPY, 64, block=other, sources=(own,), after=(1,))
    steps = [seal, replace(take, block=own, after=(0,)), through, replace(keep, after=(2,))]
    refuses(
        with_steps(plans, 0, steps), "in place rank 0's output [0, 64) is rank 1's input at 0, not rank 0's input at 0"
    )


def test_a_record_that_is_right_only_with_distinct_buffers() -> None:
    """As above, but rank 0 seals its own part after it was destroyed."""
    plans = group(Collective.ALL_GATHER, "one_shot", 2, 64)
    seal, keep, take = plans[0].steps
    own, other = Block(OUTPUT, 0, 64), Block(OUTPUT, 64, 64)
    through = Step(StepOp.COPY, 64, block=other, sources=(own,), after=(0,))
    steps = [replace(take, block=own), through, replace(seal, after=(1,)), replace(keep, after=(2,))]
    refuses(
        with_steps(plans, 0, steps), "rank 0 step 2 (SEAL) chunk 0 seals something else when its rank runs in place"
    )


# Hosts


@pytest.fixture
def across() -> list[Plan]:
    """all_gather, hosts of ranks 0, 1 and 2, 3. Steps: seal, keep, then what rank 0 or 2 or 1 or 3 sealed: the host's
    other rank's, then of the other host what that one relays and what this rank relays."""
    return group(Collective.ALL_GATHER, "one_shot", 4, 128, wave=2, topology=Topology.even(2, 2))


def test_the_plans_across_hosts_that_faults_are_planted_in_are_right(across: list[Plan]) -> None:
    assert check(across, DEPTH).carried == (128,) * 4


def test_ranks_placed_on_other_hosts(across: list[Plan]) -> None:
    call = across[1].call
    assert call is not None
    other = replace(across[1], call=replace(call, topology=Topology((0, 1, 0, 1))))
    refuses([across[0], other, *across[2:]], "rank 1 places ranks on other hosts than rank 0")


def test_a_lane_to_all_read_from_another_host(across: list[Plan]) -> None:
    astray = fields(sources=(Record(from_all(4, 2), Stream(2)),))
    refuses(edited(across, 0, 4, astray), "rank 0 step 4 (FORWARD) reads from lane 6, which it does not have")


def test_a_lane_to_all_of_a_rank_that_is_alone() -> None:
    plans = group(Collective.BROADCAST, "one_shot", 2, 64, topology=Topology.even(2, 1))
    astray = fields(lanes=(to_all(2),))
    refuses(edited(plans, 0, 0, astray), "rank 0 step 0 (SEAL) writes to lane 2, which it does not have")


def test_a_relay_that_keeps_its_host_waiting(across: list[Plan]) -> None:
    """Rank 0 opens what rank 2 sealed but does not pass it on to rank 1."""
    kept = fields(op=StepOp.OPEN, lanes=())
    refuses(edited(across, 0, 4, kept), "the lane from rank 0 to all gets 2 records but rank 1 reads 4")


def test_a_relay_that_opens_before_it_passes_on_in_another_order(across: list[Plan]) -> None:
    """Rank 1 takes what rank 0 relays before what rank 0 sealed itself."""
    seal, keep, near, relayed, own = across[1].steps
    refuses(
        with_steps(across, 1, [seal, keep, relayed, near, own]),
        "record 0 on the lane from rank 0 to all is 64 bytes as record 0 of the sender stream of rank 0 ... "
        "but 64 bytes as record 0 of the sender stream of rank 2 ...",
    )


def test_ciphertext_that_crosses_twice(across: list[Plan]) -> None:
    """Right in every other way, but rank 1 gets its own copy of what rank 2 sealed, past the relay."""
    passing = fields(op=StepOp.OPEN, lanes=())
    plans = edited(across, 0, 4, passing)
    plans = edited(plans, 1, 3, fields(sources=(Record(from_rank(2), Stream(2)),)))
    plans = edited(plans, 2, 0, fields(lanes=(*across[2].steps[0].lanes, 1)))
    refuses(plans, "rank 2 seals 128, opens 384 and carries 256 bytes, but 128, 384 and 128 are documented")


def test_an_exchange_whose_ends_add_in_different_orders() -> None:
    plans = group(Collective.ALL_REDUCE, "recursive_doubling", 2, 128, topology=Topology.even(2, 1))
    turned = fields(sources=plans[1].steps[1].sources[::-1])
    refuses(edited(plans, 1, 1, turned), "... ranks 0 and 1 reduce in different orders or round differently")


def test_an_exchange_that_adds_what_it_has_not_rounded() -> None:
    """A rank that adds its input where the other one adds what it sealed."""
    plans = group(Collective.ALL_REDUCE, "recursive_doubling", 2, 128, topology=Topology.even(2, 1))
    received = plans[0].steps[1].sources[1]
    unrounded = fields(sources=(Block(INPUT, 0, 128), received), scale=True, block=Block(OUTPUT, 0, 128))
    plans = edited(plans, 0, 1, unrounded)
    refuses(edited(plans, 0, 0, fields(block=None)), "... reduce in different orders or round differently")


# Witnesses


def test_a_barrier_that_hears_not_everyone() -> None:
    """Right in every other way: rank 0 says nothing, and nobody listens."""
    plans = group(Collective.BARRIER, "one_shot", 3)
    for rank in range(3):
        steps = [s for s in plans[rank].steps if s.stream != Stream(0) and Stream(0) not in streams(s)]
        plans = with_steps(plans, rank, steps)
    refuses(plans, "rank 1 opens no record of rank 0")


def test_a_barrier_whose_hosts_tell_of_what_they_have_not_heard() -> None:
    """Four hosts: without waiting for the first round, a second record speaks of no more than its writer's host."""
    plans = group(Collective.BARRIER, "hierarchical", 4, topology=Topology.even(4, 1))
    assert check(plans, DEPTH).records_opened == (2, 2, 2, 2)
    for rank in range(4):
        plans = edited(plans, rank, 2, fields(after=()))
    refuses(plans, "rank 0 opens no record of rank 1")


def test_a_barrier_that_releases_a_host_too_early() -> None:
    plans = group(Collective.BARRIER, "hierarchical", 4, topology=Topology.even(2, 2))
    refuses(edited(plans, 0, 3, fields(after=(0,))), "rank 1 opens no record of rank 2")


def test_a_gather_that_skips_an_empty_part() -> None:
    plans = group(Collective.GATHER, "one_shot", 3, counts=[4, 0, 4])
    plans = with_steps(with_steps(plans, 1, []), 0, [s for s in plans[0].steps if s.length])
    refuses(plans, "rank 0 opens no record of rank 1")


# Traffic


def test_bytes_sealed_twice() -> None:
    """Right in every other way, but rank 0 sends the same broadcast to rank 1 once more."""
    plans = group(Collective.BROADCAST, "one_shot", 2, 64)
    again = Step(StepOp.SEAL, 64, block=Block(INPUT, 0, 64), lanes=(1,), stream=Stream(0, 1))
    take = Step(StepOp.OPEN, 64, block=Block(OUTPUT, 0, 64), sources=(Record(from_rank(0), Stream(0, 1)),), after=(0,))
    plans = with_steps(with_steps(plans, 0, [*plans[0].steps, again]), 1, [*plans[1].steps, take])
    refuses(plans, "rank 0 seals 128, opens 0 and carries 0 bytes, but 64, 0 and 0 are documented")
