"""A part of torch's suite that touches everything once. `make torch-suite` runs the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.torch_suite.runs import Run, Setting, Status

THIRD_PARTY = Setting("securecoll", 2)
IMPERSONATOR = Setting("gloo", 4)
TEST_SECONDS = 60


@pytest.fixture(scope="module")
def runs() -> Iterator[Callable[[Setting], Run]]:
    """Gives the run of a setting, started on first use."""
    started: dict[Setting, Run] = {}
    with ExitStack() as stack:

        def get(setting: Setting) -> Run:
            if setting not in started:
                started[setting] = stack.enter_context(Run(setting))
            return started[setting]

        yield get


@pytest.mark.parametrize(
    ("setting", "test"),
    [
        (THIRD_PARTY, "test_DistributedDataParallelCPU_grad_is_view"),
        (THIRD_PARTY, "test_all_reduce_sum_async"),
        (THIRD_PARTY, "test_all_gather_object_default_pg"),
        (THIRD_PARTY, "test_isend_autograd_profiler"),
        (THIRD_PARTY, "test_send_recv_any_source"),
        (THIRD_PARTY, "test_static_graph_api_cpu"),
        (IMPERSONATOR, "test_accumulate_gradients_no_sync_allreduce_with_then_hook"),
        (IMPERSONATOR, "test_all_gather_coalesced_with_empty"),
        (IMPERSONATOR, "test_barrier_timeout_full_group"),
        (IMPERSONATOR, "test_batch_isend_irecv_gloo_tags"),
        (IMPERSONATOR, "test_new_subgroups_with_group_param"),
        (IMPERSONATOR, "test_reduce_full_group_product"),
    ],
    ids=str,
)
def test_torchs_own(setting: Setting, test: str, runs: Callable[[Setting], Run]) -> None:
    outcome = runs(setting).test(test, TEST_SECONDS)
    assert outcome.status is Status.PASSED, f"{outcome.why}\n{outcome.output}"
