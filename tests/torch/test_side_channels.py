"""What torch sends without us. docs/torch.md says so of each; these tests say whether it is still true, and that the
one channel that would stand beside every group of ours is refused."""

from __future__ import annotations

import inspect
import os
import pickle
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from securecoll.errors import ConfigError
from tests.torch.ranks import key_for, on_ranks
from tests.torch.test_loading import python


def test_the_debug_level_detail_is_refused(tmp_path: Path) -> None:
    script = """
        import sys, torch.distributed as dist
        from securecoll.errors import ConfigError
        try:
            dist.init_process_group("securecoll", init_method="file://" + sys.argv[1], rank=1, world_size=2)
        except ConfigError as e:
            print("refused:", e)
    """
    store = tmp_path / "store"
    process = python(script, str(store), SECURECOLL_KEY_FILE=str(key_for(tmp_path)), TORCH_DISTRIBUTED_DEBUG="DETAIL")
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    for words in ("refused: rank 1: TORCH_DISTRIBUTED_DEBUG=DETAIL", "gloo", "plaintext", "set it to INFO"):
        assert words in output, output


def test_a_rank_that_is_refused_does_not_leave_its_peers_waiting(tmp_path: Path) -> None:
    script = """
        import os, sys, time, torch.distributed as dist
        rank = int(sys.argv[2])
        began = time.monotonic()
        try:
            dist.init_process_group("securecoll", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
        except RuntimeError as e:
            print(type(e).__name__, e, "after", time.monotonic() - began < 20)
    """
    key = str(key_for(tmp_path))
    store = str(tmp_path / "store")
    ranks = [
        python(script, store, str(rank), SECURECOLL_KEY_FILE=key, TORCH_DISTRIBUTED_DEBUG=("OFF", "DETAIL")[rank])
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=90)[0] for process in ranks]
    assert "HandshakeError" in outputs[0] and "rank 1 gave up" in outputs[0] and "after True" in outputs[0], outputs
    assert "ConfigError" in outputs[1], outputs


@on_ranks(2)
def test_every_other_debug_level_works_and_groups_look_again(rank: int, size: int) -> None:
    before = dist.get_debug_level()
    try:
        for level in (dist.DebugLevel.OFF, dist.DebugLevel.INFO):
            dist.set_debug_level(level)
            x = torch.ones(3)
            dist.all_reduce(x, group=dist.new_group([0, 1]))
            assert (x == size).all()
        dist.set_debug_level(dist.DebugLevel.DETAIL)  # after the default group was made
        with pytest.raises(ConfigError, match="plaintext"):
            dist.new_group([0, 1])
        dist.all_reduce(x)
    finally:
        dist.set_debug_level(before)
    assert (x == size * size).all()


def cpu_backend() -> object:
    assert dist.group.WORLD is not None
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def backends() -> list[str]:
    """Of every group of this process."""
    return [str(kind) for kind, _ in dist.distributed_c10d._world.pg_map.values()]


@on_ranks(2)
def test_a_data_loader_over_a_data_pipe_opens_a_gloo_group(rank: int, size: int) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data.datapipes.iter import IterableWrapper

    before = list(dist.distributed_c10d._world.pg_map)
    assert "gloo" not in backends()
    assert len(list(DataLoader([1, 2, 3]))) == 3
    assert "gloo" not in backends(), "an ordinary data set needs none"
    assert len(list(DataLoader(IterableWrapper([1, 2, 3])))) == 3
    assert "gloo" in backends()
    for group in set(dist.distributed_c10d._world.pg_map) - set(before):
        dist.destroy_process_group(group)


@on_ranks(1)
def test_a_mesh_made_before_the_group_takes_a_plaintext_backend(rank: int, size: int) -> None:
    dist.destroy_process_group()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(launcher)
    dist.init_device_mesh("cpu", (1,))
    assert dist.get_backend() == "undefined"
    assert isinstance(cpu_backend(), dist.ProcessGroupGloo)
    dist.destroy_process_group()
    dist.init_process_group("securecoll", store=dist.HashStore(), rank=0, world_size=1)
    dist.init_device_mesh("cpu", (1,))
    assert backends() == [dist.get_backend()] == ["securecoll"]
    assert not isinstance(cpu_backend(), dist.ProcessGroupGloo)


def test_a_store_sends_what_it_is_given_in_plaintext() -> None:
    secret = b"what a program puts into the store"
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            here, _ = listener.accept()
            with here, socket.create_connection(("127.0.0.1", server.port)) as there:
                back = threading.Thread(target=pump, args=(there, here))
                back.start()
                pump(here, there)
                back.join()

        def pump(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(4096):
                seen.extend(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=relay)
        thread.start()
        port = listener.getsockname()[1]
        client = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=10))
        client.set("key", secret.decode())
        assert server.get("key") == secret
        del client
        thread.join(10)
    assert secret in seen


def test_remote_calls_and_the_checkpoint_process_use_gloo() -> None:
    from torch.distributed.checkpoint import _async_process_executor as process
    from torch.distributed.rpc import backend_registry as rpc

    assert "ProcessGroupGloo(" in inspect.getsource(rpc._init_process_group)
    assert "init_process_group(backend=dist.Backend.GLOO)" in inspect.getsource(process)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_loading_a_checkpoint_runs_what_its_metadata_says(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    folder, marker = tmp_path / "checkpoint", tmp_path / "marker"
    dcp.save({"x": torch.ones(3)}, checkpoint_id=folder, no_dist=True)
    (folder / ".metadata").write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(dcp.CheckpointException):  # after it ran
        dcp.load({"x": torch.zeros(3)}, checkpoint_id=folder, no_dist=True)
    assert marker.exists()
