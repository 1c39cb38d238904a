"""``securecoll keygen``: the shared key of a job, in a file that only its owner can read."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

KEY_BYTES = 32


def write_key(path: Path) -> None:
    """Write ``KEY_BYTES`` random bytes to a new file of mode 0600.

    The file never exists with wider permissions, and whatever stands at ``path``, a dangling symlink included, is
    left alone. On a failed write the partial file is removed.

    Raises:
        FileExistsError: something stands at ``path``.
        OSError: the file cannot be made or written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)  # a umask can only have narrowed it
        if os.write(fd, os.urandom(KEY_BYTES)) != KEY_BYTES:
            raise OSError("the key was written in part only")
        os.fsync(fd)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(fd)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def keygen(path: Path) -> None:
    """Write a new shared key to PATH: 32 random bytes, readable by you alone.

    Nothing that exists is overwritten, and the key is never printed. Give every rank the same file, over a channel
    that you trust: whoever holds the key can be any rank.
    """
    try:
        write_key(path)
    except FileExistsError:
        raise click.ClickException(
            f"{path} exists already. A key is never overwritten: choose another path."
        ) from None
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"wrote {KEY_BYTES} random bytes to {path} (mode 0600)")
    click.echo(f"use it with: export SECURECOLL_KEY_FILE={shlex.quote(str(path.absolute()))}")
