"""Exchanges: the right bytes in the right places, within limits and deadlines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securecoll import rendezvous
from securecoll.errors import ConfigError, HandshakeError
from securecoll.handshake import Session, establish
from securecoll.rendezvous import DirectoryExchange, StoreExchange
from tests.handshake.group import KEY, POLICY, agree, in_threads, params, secret
from tests.memory_exchange import Hub

ROOT = Path(__file__).parents[1]


class Store:
    """A store with torch's interface that counts what it is asked."""

    def __init__(self):
        self.values = {}
        self.operations = 0
        self.changed = threading.Condition()

    def count(self):
        self.operations += 1

    def set(self, key, value):
        with self.changed:
            self.count()
            assert value
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            self.count()
            return self.values[key]

    def multi_get(self, keys):
        with self.changed:
            self.count()
            return [self.values[key] for key in keys]

    def check(self, keys):
        with self.changed:
            self.count()
            return all(key in self.values for key in keys)

    def wait(self, keys, timeout):
        with self.changed:
            self.count()
            if not self.changed.wait_for(lambda: all(k in self.values for k in keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")


class PlainStore(Store):
    """One that lacks what torch's stores have beyond set, get and wait."""

    multi_get = None
    check = None

    def __getattribute__(self, name):
        if name in ("multi_get", "check"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def stores(kind, size, tmp_path):
    """A store for each rank, or one for all. torch's networked stores serve one call at a time, so each rank has its
    own."""
    if kind in ("store", "plain store"):
        return [Store() if kind == "store" else PlainStore()] * size
    dist = pytest.importorskip("torch.distributed")
    if kind == "hash":
        return [dist.HashStore()] * size
    if kind == "file":
        return [dist.FileStore(str(tmp_path / "store"), size) for _ in range(size)]
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30))
    clients = [dist.TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=30)) for _ in range(size - 1)]
    return [dist.PrefixStore("some/prefix", store) for store in (server, *clients)]


KINDS = ["memory", "directory", "store", "plain store", "hash", "file", "tcp"]


@pytest.fixture(params=KINDS)
def exchanges(request, tmp_path):
    """exchanges(size): one exchange a rank, all of one kind."""

    def make(size):
        if request.param == "memory":
            hub = Hub(size)
            return [hub.exchange(rank) for rank in range(size)]
        if request.param == "directory":
            return [DirectoryExchange(tmp_path, rank, size) for rank in range(size)]
        group = zip(range(size), stores(request.param, size, tmp_path), strict=True)
        return [StoreExchange(store, rank, size) for rank, store in group]

    return make


def soon(seconds=20.0):
    return time.monotonic() + seconds


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_all_ranks_get_all_blobs_round_by_round_and_attempt_by_attempt(exchanges, size):
    group = exchanges(size)
    blobs = {
        (attempt, round, rank): bytes([attempt, round, rank]) * (7 * rank)
        for attempt in (1, 2)
        for round in (1, 2, 3)
        for rank in range(size)
    }

    def run(rank):
        got = []
        for attempt in (1, 2):
            for round in (1, 2, 3):
                got.append(group[rank].exchange(round, blobs[attempt, round, rank], 1000, soon()))
        return got

    expected = [[blobs[a, r, rank] for rank in range(size)] for a in (1, 2) for r in (1, 2, 3)]
    assert in_threads(run, size) == [expected] * size
    assert [(e.rank, e.size) for e in group] == [(rank, size) for rank in range(size)]


def test_the_handshake_runs_over_it(exchanges):
    group = exchanges(3)

    def run(rank):
        return establish(params(3), POLICY, secret(KEY), group[rank], b"here", len, soon())

    assert agree(in_threads(run, 3))


def test_a_rank_that_never_comes_ends_it_at_the_deadline(exchanges):
    group = exchanges(3)
    start = time.monotonic()
    ends = in_threads(lambda rank: rank == 2 or group[rank].exchange(1, b"x", 10, soon(0.6)), 3)
    assert time.monotonic() - start < 3
    for end in ends[:2]:
        # An exchange with a collector tells the others by an empty blob.
        assert isinstance(end, HandshakeError) or end == [b"x", b"x", b""], end
    assert isinstance(ends[0], HandshakeError)


def test_a_missing_rank_is_named_by_everyone(exchanges, request):
    group = exchanges(3)

    def run(rank):
        return establish(params(3), POLICY, secret(KEY), group[rank], b"", len, soon(0.6))

    ends = in_threads(lambda rank: rank == 1 or run(rank), 3)
    for rank in (0, 2):
        assert isinstance(ends[rank], HandshakeError)
        # A plain store cannot tell, and a FileStore waits in whole seconds.
        if "plain store" not in request.node.name and "file" not in request.node.name:
            assert "[1]" in str(ends[rank]) or "rank 1 " in str(ends[rank]), ends[rank]


def test_an_oversized_blob_ends_it_for_all(exchanges):
    group = exchanges(3)
    ends = in_threads(lambda rank: group[rank].exchange(1, b"x" * (11 if rank == 1 else 10), 10, soon(2)), 3)
    for end in ends:
        assert isinstance(end, HandshakeError) or end[1] == b"", end


def test_past_the_deadline_a_blob_is_still_published(exchanges):
    group = exchanges(2)
    with pytest.raises(HandshakeError):
        group[1].exchange(1, b"late", 10, time.monotonic() - 1)
    assert group[0].exchange(1, b"x", 10, soon()) == [b"x", b"late"]


@pytest.mark.parametrize("size", range(2, 33))
def test_a_round_costs_at_most_3n_plus_1_store_operations(size):
    store = Store()
    group = [StoreExchange(store, rank, size) for rank in range(size)]
    ends = in_threads(lambda rank: group[rank].exchange(1, b"x", 1, soon()), size)
    assert ends == [[b"x"] * size] * size
    assert store.operations <= 3 * size + 1


def test_groups_with_other_prefixes_do_not_meet():
    store = Store()
    groups = [[StoreExchange(store, rank, 2, prefix) for rank in range(2)] for prefix in ("a", "b")]
    ends = in_threads(lambda i: groups[i // 2][i % 2].exchange(1, b"%d" % i, 1, soon()), 4)
    assert ends == [[b"0", b"1"]] * 2 + [[b"2", b"3"]] * 2


def test_a_second_group_under_the_same_prefix_is_refused_by_rank_0_and_ends_for_all():
    store = Store()

    def run(rank):
        exchange = StoreExchange(store, rank, 2)
        return establish(params(2), POLICY, secret(KEY), exchange, b"", len, soon())

    assert agree(in_threads(run, 2))
    start = time.monotonic()
    ends = in_threads(run, 2)
    assert isinstance(ends[0], ConfigError)
    assert "give each its own prefix" in str(ends[0])
    assert isinstance(ends[1], HandshakeError)
    assert time.monotonic() - start < 5


def test_a_store_that_fails_is_an_error_of_the_tree():
    class Broken(Store):
        def wait(self, keys, timeout):
            raise OSError("connection reset\nsecond line")

    for rank in (0, 1):
        with pytest.raises(HandshakeError, match=r"the store failed in round 1: OSError: connection reset$"):
            StoreExchange(Broken(), rank, 2).exchange(1, b"", 1, soon())


def pack(blobs):
    return b"".join(len(blob).to_bytes(4, "big") + blob for blob in blobs)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5))
def test_a_collection_unpacks_to_what_was_packed(blobs):
    assert rendezvous._unpack(pack(blobs), 1, len(blobs), 9) == blobs


@given(st.data())
def test_any_other_collection_is_refused(data):
    size = data.draw(st.integers(1, 4))
    blob = pack(data.draw(st.lists(st.binary(max_size=9), min_size=size, max_size=size)))
    at = data.draw(st.integers(0, len(blob)))
    cut = data.draw(st.integers(0, len(blob) - at))
    hurt = data.draw(
        st.one_of(st.binary(max_size=60), st.just(blob[:at] + data.draw(st.binary(max_size=8)) + blob[at + cut :]))
    )
    try:
        blobs = rendezvous._unpack(hurt, 1, size, 9)
    except HandshakeError:
        return
    assert len(blobs) == size
    assert max(map(len, blobs)) <= 9
    assert pack(blobs) == hurt


@pytest.mark.parametrize(
    "packed",
    [b"", b"\0" * 7, pack([b"ab"]), pack([b"ab"] * 3), pack([b"a" * 9, b""]), b"\xff" * 8, pack([b"ab"] * 2) + b"\0"],
)
def test_a_hostile_collection_is_refused_before_use(packed):
    store = Store()
    store.values["securecoll/1/1/all"] = packed
    with pytest.raises(HandshakeError, match="malformed"):
        StoreExchange(store, 1, 2).exchange(1, b"ab", 8, soon())


@pytest.mark.parametrize("value", [b"", b"\0\0\0\1", b"\0\0\0\1ab", b"\0\0\0\x09" + b"x" * 9, b"\xff\xff\xff\xff"])
def test_a_hostile_entry_is_collected_as_a_goodbye(value):
    store = Store()
    store.values["securecoll/1/1/1"] = value
    assert StoreExchange(store, 0, 2).exchange(1, b"ab", 8, soon()) == [b"ab", b""]


@pytest.mark.parametrize(
    "make", [lambda r, n: StoreExchange(Store(), r, n), lambda r, n: DirectoryExchange("/tmp", r, n)]
)
@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0, -1), (0, 2**16 + 1)])
def test_a_rank_or_size_out_of_range_is_refused(make, rank, size):
    with pytest.raises(ConfigError, match=f"rank {rank} of {size}|group of {size}"):
        make(rank, size)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a" * 65, "a\n"])
def test_names_that_are_no_names_are_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="prefix"):
        StoreExchange(Store(), 0, 1, prefix=name)
    with pytest.raises(ConfigError, match="attempt"):
        DirectoryExchange(tmp_path, 0, 1, attempt=name)


# Directories


def test_a_directory_is_left_empty(tmp_path):
    group = [DirectoryExchange(tmp_path, rank, 3) for rank in range(3)]
    in_threads(lambda rank: [group[rank].exchange(round, b"x", 1, soon()) for round in (1, 2, 3)], 3)
    assert len(list(tmp_path.iterdir())) == 3  # the last round's, which others may still be reading
    for exchange in group:
        exchange.close()
        exchange.close()
    assert list(tmp_path.iterdir()) == []


def test_messages_are_readable_by_their_owner_only(tmp_path):
    DirectoryExchange(tmp_path, 0, 1).exchange(1, b"x", 1, soon())
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_f7_messages_of_an_earlier_start_are_refused_and_another_attempt_does_not_see_them(tmp_path):
    old = [DirectoryExchange(tmp_path, rank, 2) for rank in range(2)]
    in_threads(lambda rank: old[rank].exchange(1, b"old", 9, soon()), 2)
    with pytest.raises(ConfigError, match="earlier start as rank 1 in attempt '0'"):
        DirectoryExchange(tmp_path, 1, 2)
    new = [DirectoryExchange(tmp_path, rank, 2, attempt="1") for rank in range(2)]
    assert in_threads(lambda rank: new[rank].exchange(1, b"new", 9, soon()), 2) == [[b"new"] * 2] * 2


def test_a_draft_of_an_earlier_start_is_refused_too(tmp_path):
    (tmp_path / ".0.1.1.0.draft").write_bytes(b"")
    with pytest.raises(ConfigError, match="earlier start"):
        DirectoryExchange(tmp_path, 0, 2)
    assert DirectoryExchange(tmp_path, 1, 2).rank == 1


def test_a_directory_that_is_a_symbolic_link_a_file_or_not_there_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_bytes(b"")
    for name in ("link", "file", "none"):
        with pytest.raises(ConfigError, match=f"{name}' cannot be used to meet"):
            DirectoryExchange(tmp_path / name, 0, 1)
    assert DirectoryExchange(tmp_path / "real", 0, 1).size == 1


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda path: path.symlink_to("/etc/hostname"), "symbolic link"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (lambda path: path.write_bytes(b"x" * 11), "more than 10 bytes"),
    ],
)
def test_a_planted_message_is_refused(tmp_path, plant, words):
    exchange = DirectoryExchange(tmp_path, 0, 2)
    plant(tmp_path / "0.1.1.1")
    with pytest.raises(HandshakeError, match=f"rank 1.*{words}"):
        exchange.exchange(1, b"", 10, soon())


def test_a_symbolic_link_in_place_of_the_own_draft_is_not_followed(tmp_path):
    target = tmp_path / "target"
    exchange = DirectoryExchange(tmp_path, 0, 1)
    (tmp_path / ".0.1.1.0.draft").symlink_to(target)
    with pytest.raises(HandshakeError, match="File exists"):
        exchange.exchange(1, b"x", 10, soon())
    assert not target.exists()


PROCESS = """
import sys, time
sys.path[:0] = {path!r}
{prelude}
from securecoll.handshake import establish
from securecoll.rendezvous import DirectoryExchange
from tests.handshake.group import KEY, POLICY, fingerprints, params, secret
rank, size = int(sys.argv[2]), int(sys.argv[3])
exchange = DirectoryExchange(sys.argv[1], rank, size)
session = establish(params(size), POLICY, secret(KEY), exchange, b"here", len, time.monotonic() + 60)
print(session.id.hex(), fingerprints(session)["sender 0"].hex())
"""


def process_code(code):
    """Code for a new process that loads the extension this process has, and nothing else of the package."""
    from tests.engine.test_secrets import PRELUDE, _engine

    prelude = PRELUDE.format(file=_engine.__file__, package=str(ROOT / "securecoll"))
    return code.format(path=[str(ROOT), *(p for p in sys.path if p)], prelude=prelude)


def test_processes_meet_in_a_directory(tmp_path):
    code = process_code(PROCESS)
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(rank), "3"], stdout=subprocess.PIPE)
        for rank in range(3)
    ]
    outputs = {p.communicate(timeout=90)[0] for p in started}
    assert {p.returncode for p in started} == {0}
    assert len(outputs) == 1


MPI = """
import sys, time
sys.path[:0] = {path!r}
{prelude}
from mpi4py import MPI
from securecoll.errors import HandshakeError
from securecoll.handshake import establish
from securecoll.rendezvous import MPIExchange
from tests.handshake.group import KEY, POLICY, fingerprints, params, secret
world = MPI.COMM_WORLD
exchange = MPIExchange(world)
rank, size = exchange.rank, exchange.size
assert (rank, size) == (world.Get_rank(), world.Get_size())
for round in (1, 2):
    got = exchange.exchange(round, b"%d" % rank * (3 * rank), 100, time.monotonic() + 30)
    assert got == [b"%d" % r * (3 * r) for r in range(size)], got
session = establish(params(size), POLICY, secret(KEY), exchange, b"here", len, time.monotonic() + 30)
assert len(set(world.allgather((session.id, fingerprints(session)["sender 0"])))) == 1
try:
    exchange.exchange(1, bytes(101 if rank == 1 else 100), 100, time.monotonic() + 30)
    raise SystemExit("an oversized blob went through")
except HandshakeError as e:
    assert "ranks [1] published more than 100 bytes" in str(e), e
def connect(endpoints):
    if rank == 0:
        raise OSError("no space")
try:
    establish(params(size), POLICY, secret(KEY), exchange, b"here", connect, time.monotonic() + 30)
    raise SystemExit("joined without rank 0")
except HandshakeError as e:
    assert ("no space" if rank == 0 else "rank 0 gave up") in str(e), e
exchange.close()
late = MPIExchange(world)
if rank != 0:
    start = time.monotonic()
    try:
        late.exchange(1, b"", 1, start + 0.3)
        raise SystemExit("met a rank that was not there")
    except HandshakeError as e:
        assert "did not appear" in str(e), e
    assert time.monotonic() - start < 3
    try:
        late.exchange(2, b"", 1, start + 0.3)
        raise SystemExit("went on after a lost collective")
    except HandshakeError as e:
        assert "given up" in str(e), e
world.Barrier()
if rank == 0:  # so that MPI can finish what the others began
    late.exchange(1, b"", 1, time.monotonic() + 30)
else:
    late._abandoned[0][0].Wait()
    late._abandoned.clear()
    late._comm.Iallgatherv([b"", MPI.BYTE], [bytearray(), [0] * size, [0] * size, MPI.BYTE]).Wait()
print("done", flush=True)
"""


def test_ranks_meet_over_mpi_and_its_deadline_holds():
    pytest.importorskip("mpi4py")
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("there is no mpirun")
    done = subprocess.run(
        [mpirun, "-n", "2", sys.executable, "-c", process_code(MPI)], capture_output=True, timeout=100, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2  # MPI may put both ranks' output on one line


def test_e3_a_session_is_made_over_the_wire_of_a_store_with_a_deceiving_host():
    """The store's owner swaps two members' blobs: everyone ends with an error."""

    class Swaps(Store):
        def get(self, key):
            value = super().get(key)
            if key.endswith("/2/all"):
                size = len(value) // 3
                return value[:size] + value[2 * size :] + value[size : 2 * size]
            return value

    store = Swaps()
    group = [StoreExchange(store, rank, 3) for rank in range(3)]
    ends = in_threads(lambda r: establish(params(3), POLICY, secret(KEY), group[r], b"", len, soon()), 3)
    assert not any(isinstance(end, Session) for end in ends), ends
    for end in ends[1:]:
        assert isinstance(end, HandshakeError)
