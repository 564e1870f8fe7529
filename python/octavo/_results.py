# SPDX-License-Identifier: Apache-2.0
"""The results of explain() and devices()."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """The kernel that runs a problem, and why it was chosen."""

    device: str
    kernel: str
    config: str
    reason: str
    workspace_bytes: int
    measured_us: float | None
    max_error: float | None


class DeviceInfo(NamedTuple):
    """A device; `reason` says why it is not available."""

    name: str
    description: str
    available: bool
    reason: str
