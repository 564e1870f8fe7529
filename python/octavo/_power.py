# SPDX-License-Identifier: Apache-2.0
"""Energy of the board, read from NVML while a load runs.

NVML counts the energy in millijoules and renews the count some tens of times a second. Power over a
stretch of time is therefore taken between the first and the last renewal in it.
"""

from __future__ import annotations

import ctypes
import threading
import time

POLL_S = 0.002
LEAST_RENEWALS = 3


class Nvml:
    """The energy counter of GPU 0; OSError if there is no NVML or no counter."""

    def __init__(self, library="libnvidia-ml.so.1"):
        self.c = ctypes.CDLL(library)
        self.handle = ctypes.c_void_p()
        if self.c.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")
        if self.c.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)) != 0:
            raise OSError("NVML has no GPU 0")
        self.energy_mj()

    def energy_mj(self):
        """Since the driver was loaded."""
        count = ctypes.c_ulonglong()
        if self.c.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(count)) != 0:
            raise OSError("this GPU does not count its energy")
        return count.value


class Meter:
    """Watches the energy counter in a thread until it is stopped. Without a counter, it knows nothing."""

    def __init__(self, counter=None):
        self.seen, self.running = [], True
        try:
            self.counter = counter or Nvml()
        except (OSError, AttributeError):
            self.counter = self.thread = None
            return
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        last = self.counter.energy_mj()
        while self.running:
            now = self.counter.energy_mj()
            if now != last:
                self.seen.append((time.monotonic(), now))
                last = now
            time.sleep(POLL_S)

    def watts(self, begin, end):
        """Mean power between two readings of time.monotonic(); None if the counter was renewed too
        rarely in between."""
        inside = [(at, mj) for at, mj in self.seen if begin <= at <= end]
        if len(inside) < LEAST_RENEWALS:
            return None
        (first, low), (last, high) = inside[0], inside[-1]
        return (high - low) / 1e3 / (last - first)

    def stop(self):
        self.running = False
        if self.thread:
            self.thread.join()
