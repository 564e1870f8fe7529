"""The timing methods, with a fake torch.cuda that records calls; and the clock, with a fake
nvidia-smi."""

import contextlib
import stat
import time
import types

from octavo import _timers


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
