"""The c10d backend on the engine's function table."""

from datetime import timedelta

from torch.distributed.distributed_c10d import Backend

TORCH_VERSION: str

def create(communicator: object, rank: int, size: int, timeout: timedelta, owner: object = None) -> Backend: ...
