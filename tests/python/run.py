#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run.py FILE: runs the tests of one file, for ctest. Exit code 77 if none of them could run here."""

import ctypes
import pathlib
import sys

NOT_RUN = 77

try:
    import numpy  # noqa: F401
    import pytest
except ImportError as missing:
    print(f"not run: {missing}")
    sys.exit(NOT_RUN)


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class Count:
    ran = 0

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call" and not report.skipped


def main():
    # The frameworks take seconds to find out that there is no GPU.
    if pathlib.Path(sys.argv[1]).name.startswith("test_cuda") and not has_driver():
        print("not run: there is no driver of NVIDIA's here")
        return NOT_RUN
    count = Count()
    code = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[count])
    if count.ran == 0 and code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print("not run: every test was skipped, for the reasons above")
        return NOT_RUN
    return code


if __name__ == "__main__":  # processes that tests spawn import this file
    sys.exit(main())
