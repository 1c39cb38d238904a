"""The arena and the handles into it: where the bytes lie, and that they go."""

from __future__ import annotations

import copy
import gc
import hashlib
import hmac
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st
from pyaegis import Aegis256X4

from securecoll import _engine
from securecoll._engine import Secret, arena_used_bytes, expand_label, hkdf_extract, hmac_sha256, hmac_verify

SUITES = [suite for suite in (1, 4) if _engine.aead_names(suite)]
needs_aegis = pytest.mark.skipif(4 not in SUITES, reason="this CPU has no AES instructions")
CANARY = b"canary of the arena: 48 bytes that occur nowhere"


def secret(data):
    return Secret.absorb(bytearray(data))


def regions():
    """(start, end, flags) of this process's memory."""
    out = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line):
            out.append([int(found[1], 16), int(found[2], 16), found[3], set()])
        elif line.startswith("VmFlags:"):
            out[-1][3] = set(line.split()[1:])
    return out


def arena_regions():
    return [r for r in regions() if {"lo", "dd", "wf"} <= r[3]]


MASK = 0x5A


def find(masked):
    """Regions of writable memory that hold the bytes whose XOR with MASK is given.

    The search itself leaves no copy: what it reads it masks in place, in one buffer.
    """
    pattern = re.compile(re.escape(masked))
    buffer = np.zeros(1 << 20, np.uint8)
    found = {}
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for start, end, mode, flags in regions():
            if not mode.startswith("rw") or "io" in flags:
                continue
            for at in range(start, end, len(buffer) - len(masked)):
                window = buffer[: min(len(buffer), end - at)]
                memory.seek(at)
                try:
                    got = memory.readinto(window)
                except OSError:  # a mapping that its driver does not let us read
                    break
                window ^= MASK
                if pattern.search(memoryview(window[:got])):
                    found[start] = flags
                buffer[:] = 0
    return list(found.values())


def test_a_secrets_memory_is_locked_not_dumped_and_wiped_in_children():
    kept = Secret.random(32)
    assert arena_regions()
    for _start, _end, mode, _flags in arena_regions():
        assert mode == "rw-p"
    assert kept.size == 32


# Runs in a process of its own: it reads all of its memory, where other tests may have left copies.
SCAN = """
import sys
sys.path[:0] = {path!r}
{prelude}
from tests.engine.test_secrets import MASK, find
from securecoll import _engine
from securecoll._engine import Secret, hmac_sha256
import os
masked = os.read(0, 48)
data = bytearray(masked)
for i in range(48):
    data[i] ^= MASK
handle = Secret.absorb(data)
from securecoll._engine import aead_names, expand_label, hkdf_extract, hmac_verify, unwrap, wrap
short = bytearray(masked[:32])
for i in range(32):
    short[i] ^= MASK
key = Secret.absorb(short)
for _ in range(3):
    hmac_verify(key, b"data", hmac_sha256(key, b"data"))
    expand_label(hkdf_extract(key, key), "label", b"", 64)
    for suite in (suite for suite in (1, 4) if aead_names(suite)):
        assert unwrap(key, b"", wrap(key, b"", key, suite), suite).size == 32
        assert unwrap(key, b"", bytes(48), suite) is None
assert len(find(masked[:32])) == 1, "using a key left copies of it"
key.erase()
places = find(masked)
assert len(places) == 1, places
assert {{"lo", "dd", "wf"}} <= places[0], places
child = os.fork()
if child == 0:
    code = 0
    try:
        assert find(masked) == []
        try:
            hmac_sha256(handle, b"")
            code = 2
        except RuntimeError as e:
            assert "fork" in str(e)
        mine = Secret.random(32)  # the child has an arena of its own
        assert hmac_verify(mine, b"", hmac_sha256(mine, b""))
        assert _engine.arena_used_bytes() == 64
        handle.erase()
        del handle
        assert _engine.arena_used_bytes() == 64
    except BaseException as e:
        print(repr(e), file=sys.stderr, flush=True)
        code = 1
    os._exit(code)
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert len(find(masked)) == 1
handle.erase()
assert find(masked) == []
print("done")
"""

# The child of a test runs the very extension that this process runs.
PRELUDE = """
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("securecoll._engine", {file!r})
spec = importlib.util.spec_from_file_location("securecoll._engine", {file!r}, loader=loader)
import types
package = types.ModuleType("securecoll")
package.__path__ = [{package!r}]
sys.modules["securecoll"] = package
module = importlib.util.module_from_spec(spec)
loader.exec_module(module)
sys.modules["securecoll._engine"] = package._engine = module
"""


def alone(code, **kwargs):
    """Runs Python code in a new process that has the engine but nothing else of the package."""
    root = Path(__file__).parents[2]
    prelude = PRELUDE.format(file=_engine.__file__, package=str(root / "securecoll"))
    code = code.format(path=[str(root), *(p for p in sys.path if p)], prelude=prelude)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=100, cwd=root, **kwargs)


def test_a_secret_lies_in_the_arena_only_also_when_used_is_gone_in_a_child_and_when_erased():
    done = alone(SCAN, input=os.urandom(48))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"done\n"


LIMIT = """
import sys
sys.path[:0] = {path!r}
import resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT, LIMIT))
import ctypes
# Without this capability the limit holds for root too.
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
data = (ctypes.c_uint32 * 6)()
ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), data)
{prelude}
from securecoll._engine import Secret
kept = []
try:
    for _ in range(4096):
        kept.append(Secret.random(1024))
except RuntimeError as e:
    print(len(kept), e)
"""


@pytest.mark.parametrize(("limit", "least"), [(0, 0), (64 << 10, 60), (100 << 10, 90)])
def test_a_limit_on_locked_memory_is_used_up_and_then_named_with_its_remedy(limit, least):
    done = alone(LIMIT.replace("LIMIT)", f"{limit})").replace("(LIMIT,", f"({limit},"))
    assert done.returncode == 0, done.stderr.decode()
    count, words = done.stdout.decode().split(" ", 1)
    assert least <= int(count) <= limit >> 10
    assert f"limit: {limit} bytes" in words
    assert "ulimit -l" in words


def test_absorbing_overwrites_the_callers_own_buffer():
    for data in (bytearray(CANARY), bytes(bytearray(CANARY))):
        alias = data
        assert Secret.absorb(data).size == 48
        assert bytes(alias) == bytes(48)


@pytest.mark.parametrize("bad", [b"", b"x", b"x" * 15, bytearray(65537)])
def test_sizes_that_are_no_secret_are_refused_and_left_alone(bad):
    before = bytes(bad)
    with pytest.raises(ValueError, match="16 to 65536 bytes"):
        Secret.absorb(bad)
    assert bytes(bad) == before
    if len(bad) < 16:
        with pytest.raises(ValueError, match="16 to 65536 bytes"):
            Secret.random(len(bad))


@pytest.mark.parametrize("bad", ["x" * 32, memoryview(bytes(32)), [1] * 32, None])
def test_only_buffers_that_can_be_overwritten_are_absorbed(bad):
    with pytest.raises(TypeError):
        Secret.absorb(bad)


def test_random_secrets_differ():
    marks = {hmac_sha256(Secret.random(32), b"") for _ in range(100)}
    assert len(marks) == 100
    assert Secret.random(600).size == 600


def test_memory_is_reused_and_counted():
    gc.collect()
    before = arena_used_bytes()
    kept = [Secret.random(16 + n) for n in range(0, 500, 7)]
    assert arena_used_bytes() - before == sum((s.size + 63) // 64 * 64 for s in kept)
    del kept
    assert arena_used_bytes() == before
    for _ in range(2):  # while a list is made, the one before it is still there
        kept = [Secret.random(16 + n) for n in range(0, 500, 7)]
    locked = sum(end - start for start, end, _, _ in arena_regions())
    for _ in range(200):
        kept = [Secret.random(16 + n) for n in range(0, 500, 7)]
    assert sum(end - start for start, end, _, _ in arena_regions()) == locked
    del kept


def test_threads_share_the_arena():
    gc.collect()
    before = arena_used_bytes()
    wrong = []

    def work(n):
        data = bytes([n]) * 40
        mac = hmac.new(data, b"mark", hashlib.sha256).digest()
        for _ in range(300):
            handles = [secret(data) for _ in range(5)]
            if any(hmac_sha256(h, b"mark") != mac for h in handles):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert arena_used_bytes() == before


def test_a_secret_shows_its_size_and_nothing_else():
    handle = secret(CANARY)
    assert repr(handle) == str(handle) == "<Secret of 48 bytes>"
    assert {name for name in dir(handle) if not name.startswith("_")} == {"absorb", "empty", "erase", "random", "size"}


def test_a_secret_has_no_constructor_no_subclass_no_copy_no_pickle_and_no_buffer():
    handle = secret(CANARY)
    with pytest.raises(TypeError):
        Secret()
    with pytest.raises(TypeError):
        type("Sub", (Secret,), {})
    for clone in (copy.copy, copy.deepcopy, pickle.dumps, lambda s: pickle.dumps(s, 0)):
        with pytest.raises(TypeError, match=r"cannot be (copied|pickled)"):
            clone(handle)
    for export in (bytes, memoryview, bytearray, list):
        with pytest.raises(TypeError):
            export(handle)
    with pytest.raises(AttributeError):
        handle.note = 1


def test_an_erased_secret_is_no_key():
    handle = secret(CANARY)
    handle.erase()
    handle.erase()
    assert handle.empty
    assert handle.size == 0
    for use in (
        lambda: hmac_sha256(handle, b""),
        lambda: hmac_verify(handle, b"", bytes(32)),
        lambda: expand_label(handle, "x", b"", 32),
        lambda: hkdf_extract(handle, secret(CANARY)),
        lambda: hkdf_extract(None, handle),
        lambda: _engine.wrap(handle, b"", Secret.random(32)),
        lambda: _engine.wrap(Secret.random(32), b"", handle),
        lambda: _engine.unwrap(handle, b"", bytes(48)),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            use()


# Against other implementations

SECRETS = st.binary(min_size=16, max_size=200)


@given(SECRETS, st.binary(max_size=300))
def test_hmac_is_hmac(key, data):
    mac = hmac.new(key, data, hashlib.sha256).digest()
    assert hmac_sha256(secret(key), data) == mac
    assert hmac_verify(secret(key), data, mac)


@given(st.integers(0, 255))
def test_a_mac_with_any_bit_flipped_does_not_verify(bit):
    key, data = secret(CANARY), b"data"
    mac = bytearray(hmac_sha256(key, data))
    mac[bit // 8] ^= 1 << bit % 8
    assert not hmac_verify(key, data, bytes(mac))


@pytest.mark.parametrize("length", [0, 1, 16, 31, 33, 64])
def test_a_mac_of_another_length_does_not_verify(length):
    mac = hmac_sha256(secret(CANARY), b"data")
    assert not hmac_verify(secret(CANARY), b"data", (mac * 2)[:length])


@given(st.none() | SECRETS, SECRETS, st.text("abc", max_size=20), st.binary(max_size=255), st.integers(1, 300))
def test_extract_and_expand_are_rfc_5869_with_the_protocols_labels(salt, ikm, label, ctx, length):
    prk = hmac.new(salt if salt is not None else bytes(32), ikm, hashlib.sha256).digest()
    full = b"scoll1 " + label.encode()
    info = length.to_bytes(2, "big") + bytes([len(full)]) + full + bytes([len(ctx)]) + ctx
    out = HKDFExpand(hashes.SHA256(), length, info).derive(prk)
    found = expand_label(hkdf_extract(None if salt is None else secret(salt), secret(ikm)), label, ctx, length)
    assert found.size == length
    assert hmac_sha256(found, b"mark") == hmac.new(out, b"mark", hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("label", "ctx", "length"), [("x" * 249, b"", 32), ("x", bytes(256), 32), ("x", b"", 0), ("x", b"", 8161)]
)
def test_what_does_not_fit_its_length_field_is_refused(label, ctx, length):
    with pytest.raises(ValueError, match="out of range"):
        expand_label(Secret.random(32), label, ctx, length)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(max_size=80))
def test_wrapping_is_aes_256_gcm_with_nonce_zero(key, plain, aad):
    blob = _engine.wrap(secret(key), aad, secret(plain))
    assert blob == AESGCM(key).encrypt(bytes(12), plain, aad)
    opened = _engine.unwrap(secret(key), aad, blob)
    assert hmac_sha256(opened, b"mark") == hmac.new(plain, b"mark", hashlib.sha256).digest()


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(max_size=80))
@needs_aegis
def test_wrapping_in_suite_4_is_aegis_256x4_with_nonce_zero(key, plain, aad):
    blob = _engine.wrap(secret(key), aad, secret(plain), 4)
    assert blob == Aegis256X4(tag_size=16).encrypt(key, bytes(32), plain, aad)
    opened = _engine.unwrap(secret(key), aad, blob, 4)
    assert hmac_sha256(opened, b"mark") == hmac.new(plain, b"mark", hashlib.sha256).digest()


@pytest.mark.parametrize("suite", [0, 2, 3, 5])
def test_there_is_no_wrapping_in_an_unknown_suite(suite):
    key = Secret.random(32)
    with pytest.raises(ValueError, match=f"no suite {suite}"):
        _engine.wrap(key, b"", key, suite)
    with pytest.raises(ValueError, match=f"no suite {suite}"):
        _engine.unwrap(key, b"", bytes(48), suite)


@pytest.mark.parametrize("suite", SUITES)
def test_no_altered_wrap_opens(suite):
    key, aad = Secret.random(32), b"associated"
    blob = _engine.wrap(key, aad, Secret.random(32), suite)
    gc.collect()
    before = arena_used_bytes()
    for bit in range(8 * 48):
        bad = bytearray(blob)
        bad[bit // 8] ^= 1 << bit % 8
        assert _engine.unwrap(key, aad, bytes(bad), suite) is None
    for bad in (b"", blob[:-1], blob + b"\0", blob[:16], blob * 2):
        assert _engine.unwrap(key, aad, bad, suite) is None
    assert _engine.unwrap(key, b"associateD", blob, suite) is None
    assert _engine.unwrap(Secret.random(32), aad, blob, suite) is None
    assert all(_engine.unwrap(key, aad, blob, other) is None for other in SUITES if other != suite)
    assert _engine.unwrap(key, aad, blob, suite) is not None
    assert arena_used_bytes() == before


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("size", [16, 31, 33, 64])
def test_wrapping_takes_keys_and_secrets_of_32_bytes_only(size, suite):
    with pytest.raises(ValueError, match="32 bytes"):
        _engine.wrap(Secret.random(size), b"", Secret.random(32), suite)
    with pytest.raises(ValueError, match="32 bytes"):
        _engine.wrap(Secret.random(32), b"", Secret.random(size), suite)
    with pytest.raises(ValueError, match="32 bytes"):
        _engine.unwrap(Secret.random(size), b"", bytes(48), suite)


def test_locked_memory_stays_small():
    kept = [Secret.random(32) for _ in range(1000)]
    assert sum(end - start for start, end, _, _ in arena_regions()) < 1 << 20
    del kept
