"""Key sources: what they take, what they refuse, and that a refusal never quotes the key."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import traceback

import pytest

from securecoll._engine import Secret, hmac_sha256
from securecoll.errors import ConfigError
from securecoll.identity import KeyDescriptor, KeyFile, KeyText, MemoryKey, Policy, psk

KEY = bytes(range(100, 132))
MARK = hmac_sha256(Secret.absorb(bytearray(KEY)), b"mark")


@pytest.fixture
def write(tmp_path):
    def write(data=KEY, mode=0o600, name="key"):
        path = tmp_path / name
        path.write_bytes(data)
        path.chmod(mode)
        return path

    return write


def is_key(source):
    return hmac_sha256(source.psk(), b"mark") == MARK


def refused(source_or_call, *words):
    call = source_or_call if callable(source_or_call) else source_or_call.psk
    with pytest.raises(ConfigError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    for leak in (KEY.hex(), repr(KEY)[2:-1], KEY[:12].hex()):
        assert leak not in str(caught.value)
        assert leak not in shown.replace(f"leak = {leak!r}", "")
    return True


def test_a_key_file_as_keygen_writes_it_is_read(write):
    path = write()
    assert is_key(KeyFile(path))
    assert is_key(KeyFile(str(path)))
    assert repr(KeyFile(path)) == f"KeyFile({str(path)!r})"


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_modes_that_shut_others_out_are_taken(write, mode):
    assert is_key(KeyFile(write(mode=mode)))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601, 0o610, 0o700, 0o620, 0o602, 0o4600])
def test_wider_modes_are_refused(write, mode):
    assert refused(KeyFile(write(mode=mode)), f"{mode:04o}", "chmod 600")


def test_a_symbolic_link_is_refused(write, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(write())
    assert refused(KeyFile(link), "symbolic link")


def test_a_missing_file_is_refused_and_says_how_to_make_one(tmp_path):
    assert refused(KeyFile(tmp_path / "none"), "does not exist", "securecoll keygen")


def test_what_is_no_regular_file_is_refused_without_hanging(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert refused(KeyFile(tmp_path / "fifo"), "not a regular file")
    assert refused(KeyFile(tmp_path), "not a regular file")
    assert refused(KeyFile("/dev/zero"), "not a regular file")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "socket"))
        assert refused(KeyFile(tmp_path / "socket"), "cannot be opened")
    assert refused(KeyFile("a\0b"), "not a path")


def test_a_file_of_another_user_is_refused(write, monkeypatch):
    path = write()
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert refused(KeyFile(path), "belongs to uid", "chown")


BAD = [
    (b"", "is empty"),
    (KEY[:31], "31 bytes"),
    (bytes(32), "all zeros"),
    (bytes(64), "all zeros"),
    (KEY * 40, "more than 1024 bytes"),
]


@pytest.mark.parametrize(("data", "words"), BAD)
def test_bad_content_of_a_file_is_refused(write, data, words):
    assert refused(KeyFile(write(data)), words, "securecoll keygen")


def pipe_with(data):
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


def test_a_descriptor_is_read_once_and_closed():
    fd = pipe_with(KEY)
    source = KeyDescriptor(fd)
    assert is_key(source)
    assert is_key(source)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert repr(source) == f"KeyDescriptor({fd})"


def test_a_descriptor_whose_writer_comes_in_pieces_is_read_to_its_end():
    reader, writer = os.pipe()

    def trickle():
        for i in range(0, 32, 8):
            os.write(writer, KEY[i : i + 8])
        os.close(writer)

    thread = threading.Thread(target=trickle)
    thread.start()
    assert is_key(KeyDescriptor(reader))
    thread.join()


@pytest.mark.parametrize(("data", "words"), BAD)
def test_bad_content_of_a_descriptor_is_refused(data, words):
    assert refused(KeyDescriptor(pipe_with(data)), words)


def test_a_descriptor_that_stays_open_is_refused(monkeypatch):
    monkeypatch.setattr(psk, "_DESCRIPTOR_SECONDS", 0.05)
    reader, writer = os.pipe()
    os.write(writer, KEY)
    try:
        assert refused(KeyDescriptor(reader), "did not end")
    finally:
        os.close(writer)


def test_a_descriptor_that_is_not_there_is_refused():
    fd = pipe_with(b"")
    os.close(fd)
    assert refused(KeyDescriptor(fd), f"key descriptor {fd} cannot be read", "pass_fds")


def test_a_descriptor_that_held_no_key_is_not_read_again_when_its_number_serves_another_file():
    fd = pipe_with(b"short")
    source = KeyDescriptor(fd)
    assert refused(source, "5 bytes")
    again = pipe_with(KEY)
    assert again == fd
    assert refused(source, "was read before")
    assert os.read(again, 32) == KEY
    os.close(again)


def test_threads_that_ask_a_descriptor_at_once_get_one_key():
    source = KeyDescriptor(pipe_with(KEY))
    keys = []
    threads = [threading.Thread(target=lambda: keys.append(source.psk())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert all(key is keys[0] for key in keys)


@pytest.mark.parametrize("text", [KEY.hex(), KEY.hex().upper()])
def test_hexadecimal_text_is_read(text):
    assert is_key(KeyText(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (KEY[:31].hex(), "31 bytes"),
        (KEY.hex()[:-1], "not hexadecimal"),
        (KEY.hex() + "\n", "not hexadecimal"),
        (f"{KEY.hex()} {KEY.hex()}", "not hexadecimal"),
        (KEY.hex()[:-1] + "g", "not hexadecimal"),
        ("\u0661" * 64, "not hexadecimal"),
        ("0" * 64, "all zeros"),
    ],
)
def test_other_text_is_refused(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        KeyText(text, "SECURECOLL_KEY")
    assert str(caught.value).startswith("SECURECOLL_KEY ")
    assert KEY[:8].hex() not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_buffer_that_a_key_was_read_into_is_overwritten(write, monkeypatch):
    buffers = []

    def watch(data):
        buffers.append(data)
        return absorb(data)

    absorb = psk.Secret.absorb

    class Watched:
        absorb = staticmethod(watch)

    monkeypatch.setattr(psk, "Secret", Watched)
    assert is_key(KeyFile(write()))
    assert buffers == [bytearray(32)]
    buffers.clear()
    assert is_key(KeyText(KEY.hex()))
    assert buffers == [bytearray(32)]


def test_a_refused_key_is_overwritten_too():
    data = bytearray(KEY[:31])
    with pytest.raises(ConfigError):
        psk._admit("it", data)
    assert data == bytearray(31)


def test_a_key_in_memory_is_handed_on():
    key = Secret.absorb(bytearray(KEY))
    assert MemoryKey(key).psk() is key
    assert "32 bytes" in repr(MemoryKey(key))


def test_sources_that_hold_a_key_do_not_pickle():
    for source in (KeyText(KEY.hex()), MemoryKey(Secret.absorb(bytearray(KEY)))):
        assert KEY.hex() not in repr(source)
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(source)


def test_a_policy_wants_a_factor_and_a_key_that_is_one():
    Policy().validate(Secret.random(32))
    erased = Secret.random(32)
    erased.erase()
    for policy, key, words in (
        (Policy(psk=False), Secret.random(32), "no factor"),
        (Policy(), None, "there is none"),
        (Policy(), erased, "there is none"),
        (Policy(), Secret.random(31), "31 bytes"),
        (Policy(), Secret.absorb(bytearray(32)), "all zeros"),
        (Policy(), Secret.absorb(bytearray(100)), "all zeros"),
    ):
        with pytest.raises(ConfigError, match=words):
            policy.validate(key)


def test_policies_that_differ_hash_differently():
    assert Policy().hash != Policy(psk=False).hash
