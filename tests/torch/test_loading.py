"""Registration, options, a binding that does not fit, and the end of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import securecoll.torch
from securecoll._engine import Secret
from securecoll.errors import ConfigError
from securecoll.identity import KeyFile
from tests.torch.ranks import key_for, on_ranks


def python(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_backend_is_registered() -> None:
    assert dist.Backend("securecoll") == "securecoll"
    assert dist.Backend.backend_capability["securecoll"] == ["cpu", "cuda"]
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # torch's default stays


def test_registering_never_breaks_the_import_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("another torch")

    monkeypatch.setattr(dist.Backend, "backend_list", [])
    monkeypatch.setattr(dist.Backend, "register_backend", broken)
    with pytest.warns(UserWarning, match="another torch"):
        securecoll.torch._autoload()


def test_a_binding_for_another_torch_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for = ModuleType("securecoll.torch._built_for")
    built_for.TORCH_VERSION = "1.2.3"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "securecoll.torch._built_for", built_for)
    with pytest.raises(ImportError, match=r"built for torch 1\.2\.3.*pip install --no-build-isolation"):
        dist.init_process_group("securecoll", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()


def test_a_missing_binding_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "securecoll.torch._built_for", None)
    with pytest.raises(ImportError, match=r"without its binding.*pip install --no-build-isolation"):
        securecoll.torch._binding()


def test_another_engine_table_is_refused() -> None:
    script = """
        import ctypes, torch, securecoll._engine
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        for version, size, name in ((99, 8 * 64, b"table"), (3, 8, b"table"), (3, 8, b"another")):
            words = (ctypes.c_uint32 * 64)(version, size)
            name = b"securecoll.engine." + name
            securecoll._engine.table = new(ctypes.addressof(words), name, None)
            try:
                import securecoll._torch
            except ImportError as e:
                print("refused:", e)
    """
    process = python(script)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert "built for version 3" in output and "has version 99" in output, output
    assert "has version 3 (8 bytes)" in output and "capsule" in output, output
    assert output.count("refused:") == output.count("reinstall securecoll") == 3, output


@on_ranks(2)
def test_options_of_another_kind_are_refused(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match="SecureCollOptions"):
        securecoll.torch._create(_options(rank, size), {"key": "value"})


@on_ranks(2)
def test_a_group_can_have_its_own_key(rank: int, size: int) -> None:
    path = Path(os.environ["SECURECOLL_KEY_FILE"]).with_name(f"other{rank}")
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    group = dist.new_group([0, 1], pg_options=securecoll.torch.SecureCollOptions(key=path))
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    assert x.item() == 2


class CountingKey:
    """A key source that knows how often it was asked."""

    def __init__(self) -> None:
        self.file = KeyFile(os.environ["SECURECOLL_KEY_FILE"])
        self.asked = 0

    def psk(self) -> Secret:
        self.asked += 1
        return self.file.psk()


@on_ranks(2)
def test_groups_of_members_of_the_default_group_do_not_ask_for_the_key(rank: int, size: int) -> None:
    """They prove to each other that they are members."""
    path = Path(os.environ["SECURECOLL_KEY_FILE"]).with_name("inherited")
    key = CountingKey()
    dist.destroy_process_group()
    dist.init_process_group(
        "securecoll",
        store=dist.FileStore(str(path), size),
        rank=rank,
        world_size=size,
        pg_options=securecoll.torch.SecureCollOptions(key=key),
    )
    assert key.asked == 1
    for members in ([0, 1], [1, 0], [1]):
        group = dist.new_group(members)
        if rank in members:
            x = torch.full((5,), float(rank))
            dist.all_reduce(x, group=group)
            assert x.tolist() == [float(sum(members))] * 5
    assert key.asked == 1


@on_ranks(2)
def test_destroying_and_making_groups_again_over_one_store(rank: int, size: int) -> None:
    path = Path(os.environ["SECURECOLL_KEY_FILE"]).with_name("again")
    store = dist.FileStore(str(path), size)
    dist.destroy_process_group()
    for _ in range(3):
        dist.init_process_group("securecoll", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
        x = torch.ones(2)
        dist.all_reduce(x)
        group = dist.new_group([0, 1])
        dist.all_reduce(x, group=group)
        assert (x == 4).all()
        dist.destroy_process_group()
    dist.init_process_group(
        "cpu:securecoll,cuda:securecoll", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )
    dist.all_reduce(x)
    dist.barrier()
    found: list[object] = [None, None]
    dist.all_gather_object(found, rank)
    assert found == [0, 1]
    beside = dist.new_group([0, 1], backend="gloo")
    dist.all_reduce(x, group=beside)
    assert (x == 16).all()


def _options(rank: int, size: int) -> object:
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = dist.HashStore(), rank, size
    options.timeout, options.group_id, options.global_ranks_in_group = timedelta(seconds=5), "x", []
    return options


def test_a_script_that_never_destroys_its_group_exits_cleanly(tmp_path: Path) -> None:
    script = """
        import sys, time, torch, torch.distributed as dist, securecoll.torch
        rank = int(sys.argv[1])
        dist.init_process_group("securecoll", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
        x = torch.ones(1000)
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(0.5)
        work = dist.all_reduce(x, async_op=True)
        work.get_future().add_done_callback(lambda f: print("sum", f.value()[0][0].item(), flush=True))
    """
    processes = [
        python(script, str(rank), str(tmp_path / "store"), SECURECOLL_KEY_FILE=str(key_for(tmp_path)))
        for rank in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=90)
        assert process.returncode == 0, output
        assert "sum 4.0" in output, output


def test_a_script_that_dies_with_work_in_flight_exits_soon(tmp_path: Path) -> None:
    script = """
        import sys, time, torch, torch.distributed as dist, securecoll.torch
        rank = int(sys.argv[1])
        dist.init_process_group("securecoll", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
        x = torch.ones(1000)
        dist.all_reduce(x)
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            raise ValueError("on purpose")
        try:
            time.sleep(1)
            dist.all_reduce(x[:10])
            dist.barrier()
            print("no error")
        except RuntimeError as e:
            print("peer saw:", e)
    """
    processes = [
        python(script, str(rank), str(tmp_path / "store"), SECURECOLL_KEY_FILE=str(key_for(tmp_path)))
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert processes[0].returncode == 1 and "on purpose" in outputs[0], outputs[0]
    assert processes[1].returncode == 0 and "peer saw" in outputs[1], outputs[1]
