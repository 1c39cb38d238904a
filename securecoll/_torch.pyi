"""The torch binding, as Python sees it: bindings/torch/module.cpp. Import torch first."""

from datetime import timedelta
from typing import Any

TORCH_VERSION: str

def create(communicator: object, rank: int, size: int, timeout: timedelta, owner: object = None) -> Any: ...
