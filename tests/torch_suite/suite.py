"""The suite inside torch's wheel, over the groups of a run.

Importing this module imports the suite, which looks at the environment while it does so: ``BACKEND``, the name of the
backend that it tests, and ``WORLD_SIZE``. Beside them ``GROUPS`` says what groups are really made of; it may differ
from the name. Only runs.py imports this, in a process of its own for each run.
"""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal import common_distributed

import securecoll.torch  # noqa: F401 (registers the backend where torch has not)

NAME, GROUPS = os.environ["BACKEND"], os.environ["GROUPS"]


class NoGloo(dist.ProcessGroupGloo):
    """In place of gloo's class where no group may be gloo's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("a group of gloo was made in a run over securecoll")


def make_gloo_for_the_name_securecoll() -> None:
    """The reference for what runs under the name of a third party."""
    distributed_c10d.Backend._plugins["SECURECOLL"] = distributed_c10d.Backend._BackendPlugin(
        lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout=timeout), False
    )


def make_securecoll_for_the_name_gloo() -> None:
    """Groups asked for as gloo's are made, by torch's own code, as securecoll's; then torch's table of groups, which
    ``get_backend`` and ``monitored_barrier`` look at, is made to say gloo."""
    make = distributed_c10d._new_process_group_helper

    def make_as_securecoll(size: int, rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if backend != "gloo":
            return make(size, rank, ranks, backend, *args, **kwargs)
        group, store = make(size, rank, ranks, distributed_c10d.Backend("securecoll"), *args, **kwargs)
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            distributed_c10d._world.pg_map[group] = (distributed_c10d.Backend("gloo"), store)
        return group, store

    distributed_c10d._new_process_group_helper = make_as_securecoll


def leave_out_the_debug_level_detail() -> None:
    """securecoll refuses TORCH_DISTRIBUTED_DEBUG=DETAIL. Tests that repeat themselves at several levels run at the
    others; those for DETAIL alone keep it."""
    at_levels = common_distributed.with_dist_debug_levels

    def at_other_levels(levels: list[str]) -> Any:
        return at_levels([level for level in levels if level != "DETAIL"] or levels)

    common_distributed.with_dist_debug_levels = at_other_levels


def look_at_profiles_of_securecoll(suite: ModuleType) -> None:
    """Tests look for collectives in profiles of some backends only. Those that look for gloo's are shown securecoll's
    under gloo's prefix."""
    find = suite.get_profiling_event

    def find_under_their_prefix(name: str, profile: Any, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("gloo:"):
            events = profile.events() if isinstance(profile, torch.profiler.profile) else profile.function_events
            for event in events:
                event.name = re.sub("^securecoll:", "gloo:", event.name)
        return find(name, profile, *args, **kwargs)

    suite.get_profiling_event = find_under_their_prefix
    suite.PROFILING_SUPPORTED_BACKENDS.append("securecoll")
    suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("securecoll")


if NAME == "securecoll":
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(NAME)
    if GROUPS == "gloo":
        make_gloo_for_the_name_securecoll()
elif GROUPS == "securecoll":
    make_securecoll_for_the_name_gloo()
if GROUPS == "securecoll":
    distributed_c10d.ProcessGroupGloo = NoGloo
    leave_out_the_debug_level_detail()
torch.set_num_threads(1)

from torch.testing._internal.distributed import distributed_test  # noqa: E402 (it sees the above)

if GROUPS == "securecoll":
    look_at_profiles_of_securecoll(distributed_test)


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """torch's tests. Ranks are forked: it has them start as new processes, which import torch again for each test."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def run_test(self, name: str, pipe: Any) -> None:
        """In each rank, in its default group."""
        made_of = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).name()
        if made_of != GROUPS:
            raise AssertionError(f"the default group is made of {made_of}, not of {GROUPS}")
        super().run_test(name, pipe)
