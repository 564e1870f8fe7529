#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run.py FILE...: runs the tests of files, for ctest. Exit code 77 if no test of one of them could run here."""

import ctypes
import pathlib
import sys

NOT_RUN = 77


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class Record:
    """The names of files of which a test ran."""

    def __init__(self):
        self.ran = set()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and not report.skipped:
            self.ran.add(pathlib.Path(report.fspath).name)


def main():
    names = [pathlib.Path(file).name for file in sys.argv[1:]]
    # The frameworks take seconds to find out that there is no GPU.
    if names[0].startswith("test_cuda") and not has_driver():
        print("not run: there is no driver of NVIDIA's here")
        return NOT_RUN
    try:
        import numpy  # noqa: F401
        import pytest
    except ImportError as missing:
        print(f"not run: {missing}")
        return NOT_RUN
    record = Record()
    code = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[record])
    skipped = [name for name in names if name not in record.ran]
    if skipped and code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(f"not run: every test of {', '.join(skipped)} was skipped, for the reasons above")
        return NOT_RUN
    return code


if __name__ == "__main__":  # processes that tests spawn import this file
    sys.exit(main())
