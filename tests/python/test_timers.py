# SPDX-License-Identifier: Apache-2.0
"""The timing methods, with a fake torch.cuda that records calls; the clock, with a fake nvidia-smi; and
the power, with a fake energy counter."""

import contextlib
import shutil
import stat
import subprocess
import time
import types

import pytest

from octavo import _power, _timers


class Recorder:
    """The part of torch.cuda that the timers use. A call takes 10 us, clearing L2 takes 100."""

    def __init__(self):
        self.done, self.now, self.captured = [], 0.0, None
        recorder = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = recorder.now
                recorder.done.append("event")

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.at - self.at) / 1e3

        class CUDAGraph:
            def replay(self):
                for name in self.calls:
                    recorder.work(name, 10)

        @contextlib.contextmanager
        def graph(made, stream, capture_error_mode):
            recorder.captured = made.calls = []
            yield
            recorder.captured = None

        self.uint8 = "uint8"
        self.cuda = types.SimpleNamespace(
            Event=Event, CUDAGraph=CUDAGraph, graph=graph, synchronize=lambda: None,
            Stream=lambda: types.SimpleNamespace(wait_stream=lambda other: None),
            current_stream=lambda: None, stream=lambda s: contextlib.nullcontext(),
            current_device=lambda: 0,
            get_device_properties=lambda d: types.SimpleNamespace(L2_cache_size=60))

    def empty(self, size, dtype, device):
        assert (size, dtype, device) == (120, "uint8", "cuda")
        return types.SimpleNamespace(zero_=lambda: self.work("flush", 100))

    def work(self, name, us):
        if self.captured is not None:
            self.captured.append(name)
            return
        self.done.append(name)
        self.now += us

    def call(self, name):
        return lambda: self.work(name, 10)


def sample(launch, l2, calls=3):
    torch = Recorder()
    timer = _timers.timer_of(torch, _timers.in_turn([torch.call("a"), torch.call("b")]), launch, l2, calls)
    torch.done.clear()
    return timer.sample_us(), torch.done


def test_replays_of_a_graph_follow_one_that_is_not_timed():
    us, done = sample("graph", "warm")
    assert us == 10
    # The first call, "a", was made before the capture.
    assert done == ["b", "a", "b", "event", "b", "a", "b", "event"]


def test_launches_from_the_host_take_their_inputs_in_turn():
    us, done = sample("stream", "warm")
    assert us == 10
    assert done == ["a", "event", "b", "a", "b", "event"]


def test_a_cold_call_is_timed_alone_after_the_flush():
    for launch, first in (("graph", "b"), ("stream", "a")):
        us, done = sample(launch, "cold")
        assert us == 10, "the flush is not in it"
        assert done == ["flush", "event", first, "event"]


def test_the_clock_by_nvidia_smi(tmp_path):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 1980, 300.5, 0x0000000000000001\necho bad line\n"
                       "echo 1500, 690, 0x0000000000000004\necho 1400, 700, 0x0000000000000040\nsleep 60\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    clock = _timers.Clock(str(command))
    deadline = time.monotonic() + 20
    while len(clock.seen) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert clock.since(0) == {"clock_mhz": 1500, "power_w": 690,
                              "throttle": ["power cap", "hardware thermal slowdown"]}
    assert clock.since(3) == {"clock_mhz": None, "power_w": None, "throttle": None}
    clock.stop()
    assert _timers.Clock("no-such-nvidia-smi").since(0)["throttle"] is None


def test_the_interval_of_a_ratio():
    low, high = _timers.ratio_interval([20, 21, 22, 20.5, 21.5], [10, 10.1, 9.9, 10, 10])
    assert 2.0 <= low < 2.09 and 2.11 < high <= 2.25
    assert _timers.ratio_interval([2] * 9, [1] * 9) == [2, 2]


def test_turns_alternate_their_order():
    done = []
    samples = _timers.alternated([lambda n=n: done.append(n) or n for n in "abc"], 3)
    assert "".join(done) == "abccbaabc"
    assert samples == [["a"] * 3, ["b"] * 3, ["c"] * 3]


def test_a_load_lasts_and_is_timed_when_it_has_settled():
    torch = Recorder()
    load = _timers.Load(torch, torch.call("a"), 10)
    assert load.calls == 1000  # of 10 us: 20 ms would be 2000
    torch.done.clear()
    us, begin, end = load.sample()
    assert us == 10 and begin <= end
    first, second = (i for i, name in enumerate(torch.done) if name == "event")
    assert first * 10e-6 >= _timers.Load.SETTLE_S
    assert (second - first - 1) * 10e-6 >= _timers.Load.TIMED_S
    assert _timers.Load.SETTLE_S + _timers.Load.TIMED_S >= 0.5
    assert _timers.Load(torch, torch.call("a"), 4000).calls == 5
    assert _timers.Load(torch, torch.call("a"), 1e6).calls == 1


class Counter:
    """An energy counter of a board of 500 W, renewed every 20 ms."""

    def energy_mj(self):
        return int(time.monotonic() / 0.02) * 10000


def test_power_is_taken_between_renewals_of_the_energy_counter():
    meter = _power.Meter(Counter())
    begin = time.monotonic()
    while len(meter.seen) < 12 and time.monotonic() < begin + 60:
        time.sleep(0.01)
    meter.stop()
    # Times of the renewals are exact to a poll, on a busy machine to more.
    assert meter.watts(begin, time.monotonic()) > 0
    meter.seen = [(1.0, 5000), (1.1, 55000), (1.2, 105000), (9.0, 0)]
    assert abs(meter.watts(0.9, 1.25) - 500) < 1e-6
    assert meter.watts(1.05, 1.25) is None  # two renewals are too few
    assert meter.watts(2.0, 3.0) is None


def test_without_a_counter_power_is_that_of_nvidia_smi(monkeypatch):
    def missing():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(_power, "Nvml", missing)
    meter = _power.Meter()
    loads = [types.SimpleNamespace(sample=lambda us=us: (us, 0.0, 1.0)) for us in (10, 20)]
    clock = types.SimpleNamespace(seen=[], since=lambda start: {"power_w": 600})
    times, watts = _timers.sustained_turns(loads, meter, clock, 2)
    assert times == [[10, 10], [20, 20]] and watts == [600, 600]
    assert _timers.joules_of(600, 1000) == 0.6
    clock.since = lambda start: {"power_w": None}
    assert _timers.sustained_turns(loads, meter, clock, 2)[1] == [None, None]
    assert _timers.joules_of(None, 1000) is None
    meter.stop()


NVML = """
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) { *device = (void*)7; return i == 0 ? 0 : 2; }
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* mj) {
  if (device != (void*)7) return 2;
  *mj = 5000000000ull;
  return COUNTS;
}
"""


def test_the_counter_of_nvml(tmp_path):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    for counts in (0, 3):
        library = tmp_path / f"nvml{counts}.so"
        subprocess.run([compiler, "-shared", "-fPIC", f"-DCOUNTS={counts}", "-x", "c", "-", "-o", library],
                       input=NVML, text=True, check=True)
        if counts == 0:
            assert _power.Nvml(str(library)).energy_mj() == 5000000000  # more than 32 bits
        else:
            with pytest.raises(OSError, match="does not count"):
                _power.Nvml(str(library))
