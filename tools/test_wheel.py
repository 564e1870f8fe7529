#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses the installed package as its first user would; tools/test_wheel.sh runs it where nothing but
the package and NumPy is installed.

usage: test_wheel.py [--without-kernels], for a package without shipped kernels
"""

import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys

import numpy

import octavo

# float16 has 11 bits; the outputs are averages of values around 1.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3}


def plain_attention(q, k, v, causal):
    q, k, v = (x.astype("float64") for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores[..., numpy.triu(numpy.ones(scores.shape[-2:], bool), 1)] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def check_attention():
    random = numpy.random.default_rng(0)
    for dtype, tolerance in TOLERANCE.items():
        for causal in (False, True):
            q, k, v = (random.standard_normal((2, 4, 100, 64)).astype(dtype) for _ in range(3))
            difference = abs(octavo.attention(q, k, v, causal=causal) -
                             plain_attention(q, k, v, causal)).max()
            assert difference < tolerance, (dtype, causal, difference)
            print(f"attention, {dtype}, causal={causal}: at most {difference:.1e} from the formula")


def check_instructions():
    """The CPU's kernels use its vector instructions."""
    q = numpy.zeros((1, 1, 64, 64), "float32")
    config = octavo.explain(q, q, q).config
    features = pathlib.Path("/proc/cpuinfo").read_text().split()
    assert "portable" not in config or not {"avx2", "asimd"} & set(features), config
    print(f"CPU kernel: {config}")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_command():
    version = importlib.metadata.version("octavo")
    assert octavo.__version__ == version, octavo.__version__
    module = (sys.executable, "-m", "octavo")
    script = shutil.which("octavo")
    assert script and pathlib.Path(script).parent == pathlib.Path(sys.executable).parent, script
    for command in (module, (script,)):
        assert output_of(*command, "--version") == f"octavo {version}\n"
    print(output_of(*module, "explain", "--device", "cpu", "--shape", "1,8,512,64", "--causal"), end="")
    wrong = subprocess.run([script, "explain", "--device", "gpu"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("octavo: "), wrong


def check_kernels():
    """The kernels for GPUs are in the package: no compiler is needed for them."""
    kernels = json.loads(output_of("octavo", "kernels", "--json", "-"))["kernels"]
    assert kernels and all(kernel["available"] for kernel in kernels), kernels
    print(f"{len(kernels)} kernels for GPUs are shipped")


def main():
    check_attention()
    check_instructions()
    check_command()
    if "--without-kernels" not in sys.argv[1:]:
        check_kernels()


if __name__ == "__main__":
    main()
