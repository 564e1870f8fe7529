# SPDX-License-Identifier: Apache-2.0
"""The command, as `python -m octavo` and as the entry point of the package start it."""

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest

import octavo
import octavo.__main__

pytestmark = pytest.mark.skipif(not octavo.__main__._PROGRAM.exists(),
                                reason="this build has no command")


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "octavo", *arguments], capture_output=True, text=True)


def test_the_version_is_that_of_the_package():
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"octavo {octavo.__version__}\n")


def test_arguments_reach_the_command_as_they_are():
    ran = run("explain", "--device", "cpu", "--shape", "1,2,64,64", "--causal")
    assert ran.returncode == 0 and "cpu" in ran.stdout


def test_the_exit_code_is_that_of_the_command():
    ran = run("explain", "--device", "nothing")
    assert ran.returncode == 2 and ran.stderr.startswith("octavo: ")


def test_a_package_without_the_command_says_so(monkeypatch):
    missing = pathlib.Path(__file__).parent / "no such program"
    monkeypatch.setattr(octavo.__main__, "_PROGRAM", missing)
    with pytest.raises(SystemExit, match="no such program cannot be started .*without CLI11") as exited:
        octavo.__main__.main()
    assert exited.value.code != 0


def test_the_entry_point_is_the_module():
    """Of an installed package; the build folder has no metadata."""
    entries = importlib.metadata.entry_points(group="console_scripts", name="octavo")
    if not entries:
        pytest.skip("the package is not installed")
    assert next(iter(entries)).load() is octavo.__main__.main
