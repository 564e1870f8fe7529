# SPDX-License-Identifier: Apache-2.0
"""Timers for GPU calls, confidence intervals of ratios, and readings of the GPU's clock.

A timer returns samples: the time of one call in microseconds. The call launches work on the current
stream; `in_turn` combines calls with different inputs into one that rotates over them.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
import subprocess
import threading
import time

REASONS = {  # NVML's bits; the bit of an idle GPU is left out
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "hardware power brake",
    0x100: "display clock"}

BOOTSTRAP = 1000


def in_turn(calls):
    """A function that makes the next of the calls each time."""
    cycle = itertools.cycle(calls)
    return lambda: next(cycle)()


class Timer:
    """Times work behind an untimed lead-in, which still runs while the timed part is enqueued."""

    calls = 1

    def __init__(self, torch):
        self.torch = torch

    def lead_in(self):
        self.timed()

    def sample_us(self):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.lead_in()
        begin.record()
        self.timed()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.calls


class Graph(Timer):
    """Times calls in a CUDA graph; calls once before the capture, for lazy initialization."""

    def __init__(self, torch, call, calls):
        super().__init__(torch)
        self.calls = calls
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
        self.timed = graph.replay


class Stream(Timer):
    """Times calls that the host launches one after the other."""

    def __init__(self, torch, call, calls):
        super().__init__(torch)
        self.call, self.calls = call, calls

    def lead_in(self):
        self.call()

    def timed(self):
        for _ in range(self.calls):
            self.call()


def cold(timer):
    """Makes a timer of one call overwrite L2 before it."""
    torch = timer.torch
    size = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    memory = torch.empty(2 * size, dtype=torch.uint8, device="cuda")
    timer.lead_in = memory.zero_
    return timer


def timer_of(torch, call, launch, l2, calls):
    """launch: graph or stream; l2: warm or cold; a cold L2 times one call at a time."""
    kind = Graph if launch == "graph" else Stream
    return kind(torch, call, calls) if l2 == "warm" else cold(kind(torch, call, 1))


class Load:
    """Times a call under a load that lasts: replays of a graph without a pause, the first of which are
    not timed, so that the power limit has set the clock when the timed ones start."""

    REPLAY_US = 20000
    MOST_CALLS = 1000  # of a graph
    SETTLE_S, TIMED_S = 0.2, 0.4

    def __init__(self, torch, call, call_us):
        self.torch = torch
        self.calls = max(1, min(self.MOST_CALLS, int(self.REPLAY_US / call_us)))
        self.replay = Graph(torch, call, self.calls).timed
        replay_s = self.calls * call_us * 1e-6
        self.before, self.replays = (math.ceil(s / replay_s) for s in (self.SETTLE_S, self.TIMED_S))

    def sample(self):
        """(microseconds of a call, begin, end): the last two by time.monotonic()."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(self.before):
            self.replay()
        begin.record()
        for _ in range(self.replays):
            self.replay()
        end.record()
        begin.synchronize()
        from_s = time.monotonic()
        end.synchronize()
        return (begin.elapsed_time(end) * 1e3 / (self.calls * self.replays), from_s,
                time.monotonic())


def alternated(samplers, rounds):
    """The samples of each, in rounds that alternate their order: A B C, C B A, A B C, ..."""
    samples = [[] for _ in samplers]
    order = list(range(len(samplers)))
    for _ in range(rounds):
        for i in order:
            samples[i].append(samplers[i]())
        order.reverse()
    return samples


def sustained_turns(loads, meter, clock, turns):
    """(times, watts) of each load; the loads alternate. Without an energy counter, power is that of
    nvidia-smi; without either it is None."""
    watts = [[] for _ in loads]

    def turn(i):
        seen = len(clock.seen)
        us, begin, end = loads[i].sample()
        power = meter.watts(begin, end)
        watts[i].append(clock.since(seen)["power_w"] if power is None else power)
        return us

    times = alternated([functools.partial(turn, i) for i in range(len(loads))], turns)
    return times, [None if None in w else statistics.mean(w) for w in watts]


def joules_of(watts, us):
    """The energy of a call."""
    return None if watts is None else watts * us * 1e-6


def ratio_interval(theirs, ours):
    """The 95% bootstrap interval of the ratio of the medians."""
    draw = random.Random(0)
    ratios = sorted(statistics.median(draw.choices(theirs, k=len(theirs))) /
                    statistics.median(draw.choices(ours, k=len(ours))) for _ in range(BOOTSTRAP))
    return [ratios[int(BOOTSTRAP * 0.025)], ratios[int(BOOTSTRAP * 0.975)]]


def throttle_of(bits):
    return [name for bit, name in REASONS.items() if bits & bit]


class Clock:
    """Reads SM clock, power and throttle reasons with nvidia-smi until it is stopped."""

    FIELDS = "clocks.sm,power.draw,clocks_throttle_reasons.active"

    def __init__(self, command="nvidia-smi"):
        self.seen, self.process = [], None
        try:
            self.process = subprocess.Popen(
                [command, "-i", "0", f"--query-gpu={self.FIELDS}", "--format=csv,noheader,nounits", "-lms", "50"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            try:
                mhz, watts, bits = line.split(",")
                self.seen.append((float(mhz), float(watts), int(bits, 16)))
            except ValueError:
                continue

    def since(self, start):
        """Medians from the start-th reading on, and all throttle reasons."""
        seen = self.seen[start:]
        if not seen:
            return {"clock_mhz": None, "power_w": None, "throttle": None}
        mhz, watts, bits = zip(*seen)
        together = 0
        for one in bits:
            together |= one
        return {"clock_mhz": statistics.median(mhz), "power_w": statistics.median(watts),
                "throttle": throttle_of(together)}

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
