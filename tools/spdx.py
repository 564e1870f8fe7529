#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""spdx.py [--fix] [--root ROOT]: every source file names its licence in its first lines, as SPDX identifies it.

Lists the files without that line; exit code 1 if there are any. --fix adds it as the first line, or behind the one
that names an interpreter.
"""

import argparse
import pathlib
import subprocess
import sys

IDENTIFIER = "SPDX-License-Identifier: Apache-2.0"
# By the end of a file's name, or its whole name.
MARKS = {"//": (".h", ".hpp", ".c", ".cc", ".cu", ".cuh", ".cc.in"),
         "#": (".py", ".pyi", ".sh", ".cmake", ".cmake.in", "CMakeLists.txt", "Makefile", ".toml", ".yml",
               ".yaml", "run")}
FIRST_LINES = 3


def mark_of(name):
    """The mark of comments in a file of this name, or None if it is no source file."""
    return next((mark for mark, ends in MARKS.items() if name.endswith(ends)), None)


def sources(root):
    """The source files that git tracks or would track, and the marks of their comments."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=root,
                            check=True, capture_output=True, text=True).stdout
    for name in sorted(filter(None, listed.split("\0"))):
        path, mark = root / name, mark_of(pathlib.PurePath(name).name)
        # Recorded measurements are not sources.
        if mark and path.is_file() and not path.is_symlink() and not name.startswith("evidence/"):
            yield name, path, mark


def is_named(text):
    return any(IDENTIFIER in line for line in text.split("\n", FIRST_LINES)[:FIRST_LINES])


def with_licence(text, mark):
    line = f"{mark} {IDENTIFIER}\n"
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
        return f"{first}\n{line}{rest}"
    return line + text


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    missing = 0
    for name, path, mark in sources(options.root):
        text = path.read_text()
        if is_named(text):
            continue
        if options.fix:
            path.write_text(with_licence(text, mark))
        else:
            missing += 1
            print(f"{name}: no line '{mark} {IDENTIFIER}' (tools/spdx.py --fix adds it)")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
