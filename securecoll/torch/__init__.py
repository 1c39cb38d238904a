"""The ``torch.distributed`` backend ``securecoll``.

::

    import torch
    torch.distributed.init_process_group("securecoll")

torch finds this package through the ``torch.backends`` entry point; with ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``, import
it by hand. Importing it is cheap: the binding is loaded when the first group is made, and if it does not fit the torch
that is installed, that is where it says so. This is the only package that imports torch.
"""

from __future__ import annotations

import hashlib
import time
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from datetime import timedelta
    from types import ModuleType

    from securecoll.communicator import Communicator
    from securecoll.identity import KeySource

__all__ = ["SecureCollOptions"]

_NAME = "securecoll"
_REBUILD = (
    "with this torch installed, run `pip install --no-build-isolation --force-reinstall --no-deps --no-cache-dir "
    "securecoll`"
)


@dataclass(frozen=True)
class SecureCollOptions:
    """``pg_options`` of ``init_process_group`` and ``new_group``.

    A group made without options takes those of the default group, so the groups that FSDP or a DeviceMesh make need
    none. Nor do they need the key: members of the default group prove to each other that they are, unless the group is
    given a key of its own.
    """

    key: KeySource | str | os.PathLike[str] | None = None
    """Where the pre-shared key comes from: a source, or the path of a key file. None: from the configuration."""
    job: str = ""
    """Part of what all members must agree on. Empty: from the configuration."""
    suite: str | None = None
    """The cryptography between ranks, see ``Communicator.create``: ``"aes-256-gcm"``, or for tensors on CPUs
    ``"aegis-256x4"``. None: the default group's, or ``"aes-256-gcm"`` for that one and for groups with a key of their
    own."""


_default_options = SecureCollOptions()
_default_group: weakref.ref[Communicator] | None = None


def _autoload() -> None:
    """Registers the backend. torch calls this at the end of its own import, which it must not break."""
    try:
        import torch.distributed as dist

        if dist.is_available() and _NAME not in dist.Backend.backend_list:
            dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception as e:
        warnings.warn(f"the torch.distributed backend securecoll cannot be registered: {e}", stacklevel=2)


def _binding() -> ModuleType:
    """``securecoll._torch``, if it was built for this torch. Raises :class:`ImportError` saying what to run."""
    import torch

    installed = torch.__version__.split("+")[0]
    try:
        from securecoll.torch._built_for import TORCH_VERSION
    except ImportError:
        raise ImportError(
            f"securecoll was installed without its binding for torch, since torch was not there; {_REBUILD}"
        ) from None
    # Before loading: a c10d::Backend of another release has another layout, and would crash rather than complain.
    if installed != TORCH_VERSION:
        raise ImportError(
            f"securecoll's binding was built for torch {TORCH_VERSION}, but torch {installed} is installed; {_REBUILD}"
        )
    try:
        from securecoll import _torch
    except ImportError as e:
        raise ImportError(f"securecoll's binding for torch {TORCH_VERSION} does not load ({e}); {_REBUILD}") from e
    return _torch


def _create(group: Any, pg_options: object) -> Any:
    """Makes the backend of one group: all its members call this at once.

    ``group`` is torch's ``_DistributedBackendOptions``, whose store is already prefixed with the group's name.
    """
    global _default_options, _default_group
    binding = _binding()

    from securecoll.communicator import Communicator
    from securecoll.errors import ConfigError
    from securecoll.handshake import give_up
    from securecoll.rendezvous import StoreExchange

    is_default = not group.global_ranks_in_group
    timeout: timedelta = group.timeout
    members = list(group.global_ranks_in_group) or list(range(group.group_size))
    prefix = _prefix(group.store, group.group_rank, members)
    exchange = StoreExchange(group.store, group.group_rank, group.group_size, prefix)
    try:
        options = _checked(group.group_rank, pg_options, is_default)
    except ConfigError:
        give_up(exchange, time.monotonic() + timeout.total_seconds())
        raise
    parent = None if is_default else _parent(pg_options, members)
    communicator = Communicator.create(
        exchange,
        key=options.key if parent is None else None,
        timeout=timeout.total_seconds(),
        job=options.job,
        members=members,
        parent=parent,
        suite=options.suite,
    )
    try:
        backend = binding.create(
            communicator.capsule, group.group_rank, group.group_size, timeout=timeout, owner=communicator
        )
    except BaseException:
        communicator.close()
        raise
    if is_default:
        _default_options = options
        _default_group = weakref.ref(communicator)
    return backend


def _checked(rank: int, pg_options: object, is_default: bool) -> SecureCollOptions:
    """The group's options. Raises :class:`ConfigError` where no group can be made."""
    import torch.distributed as dist

    from securecoll.errors import ConfigError

    if dist.get_debug_level() == dist.DebugLevel.DETAIL:  # type: ignore[attr-defined]
        raise ConfigError(
            f"rank {rank}: TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch open a gloo group beside this one, which "
            "sends the names and shapes of all calls in plaintext and believes whoever connects; set it to INFO, or "
            "unset it: calls that do not match are an error that names them, at every level"
        )
    options = pg_options if pg_options is not None else SecureCollOptions() if is_default else _default_options
    if not isinstance(options, SecureCollOptions):
        raise ConfigError(f"pg_options must be a securecoll.torch.SecureCollOptions, not {type(options).__name__}")
    return options


def _parent(pg_options: object, members: list[int]) -> Communicator | None:
    """The default group, for a group of its members: they need no key to know each other. None where the caller gave a
    key of its own, or the default group has another backend or is gone."""
    if isinstance(pg_options, SecureCollOptions) and pg_options.key is not None:
        return None
    parent = None if _default_group is None else _default_group()
    if parent is None or parent.closed or not set(members) <= set(parent.members):
        return None
    return parent


def _prefix(store: Any, rank: int, members: list[int]) -> str:
    """A place in the store that this group has not used before: a program may destroy its groups and make them again
    over the same store, where the old messages still lie. Each rank counts for itself how often these members met."""
    group = hashlib.sha256(repr(members).encode()).hexdigest()[:16]
    return f"{_NAME}.{group}.{store.add(f'{_NAME}/{group}/{rank}', 1)}"


_autoload()
