"""What explain() and devices() answer with."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """Which kernel runs a problem, and why."""

    device: str
    kernel: str
    config: str
    reason: str
    workspace_bytes: int
    measured_us: float | None
    max_error: float | None


class DeviceInfo(NamedTuple):
    """A device, and why it is not available where it is not."""

    name: str
    description: str
    available: bool
    reason: str
