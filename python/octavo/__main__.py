# SPDX-License-Identifier: Apache-2.0
"""The command `octavo`, also as `python -m octavo`: starts the program that the package contains.

It becomes this process, so that signals, exit codes and output are the program's own.
"""

import os
import pathlib
import sys
import typing

_PROGRAM = pathlib.Path(__file__).parent / "bin" / "octavo"


def main() -> typing.NoReturn:
    try:
        os.execv(_PROGRAM, ["octavo", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"octavo: {_PROGRAM} cannot be started ({error.strerror}); a package that was built "
                 "without CLI11 has no command.")


if __name__ == "__main__":
    main()
