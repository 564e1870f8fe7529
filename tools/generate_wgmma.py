#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/device/ptx/wgmma_shapes.cuh: the register lists of every wgmma shape.

Inline assembly names its registers one by one, and a wgmma has up to 128 accumulators: this writes
the macros that expand to those lists.

usage: generate_wgmma.py [--check FILE]    to standard output; or: is FILE what would be written?
"""

import pathlib
import sys

HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// Register lists of the wgmma shapes. Made by tools/generate_wgmma.py; do not edit.
//
// OCTAVO_WGMMA_TEXT_r: "%0, %1, ...", r of them. OCTAVO_WGMMA_D_r(c): the operands c(d[0]), ...
// OCTAVO_WGMMA_EACH_*(X): X(n, r, text of r, r+1, ..., r+6) for every N of that kind, where r is
// the number of accumulator registers of m64nN.
#pragma once
"""

# Each list extends the largest shorter list whose length is a multiple of this: shorter text, few
# levels of macros.
STEP = 16
EXTRA_OPERANDS = 7


def registers(counts):
    """The two list macros for each number of registers."""
    for count in counts:
        base = (count - 1) // STEP * STEP
        text = ", ".join(f"%{i}" for i in range(base, count))
        operands = ", ".join(f"c(d[{i}])" for i in range(base, count))
        if base:
            yield f'#define OCTAVO_WGMMA_TEXT_{count} OCTAVO_WGMMA_TEXT_{base} ", {text}"'
            yield from broken(f"#define OCTAVO_WGMMA_D_{count}(c) OCTAVO_WGMMA_D_{base}(c), "
                              f"{operands}")
        else:
            yield f'#define OCTAVO_WGMMA_TEXT_{count} "{text}"'
            yield from broken(f"#define OCTAVO_WGMMA_D_{count}(c) {operands}")


def broken(line, width=100):
    """A macro's definition in lines of at most `width`, formatted like clang-format."""
    if len(line) <= width:
        yield line
        return
    words = line.split(" ")
    head, words = " ".join(words[:2]), words[2:]
    lines, current = [head], " "
    for word in words:
        if len(current) + 1 + len(word) > width - 2:
            lines.append(current)
            current = " "
        current += " " + word
    lines.append(current)
    for text in lines[:-1]:
        yield text + " " * (width - 1 - len(text)) + "\\"
    yield lines[-1]


def each(name, sizes, registers_of):
    """The macro that expands X for every size N."""
    lines = [f"#define OCTAVO_WGMMA_EACH_{name}(X)"]
    for n in sizes:
        r = registers_of(n)
        lines.append(f"  X({n}, {r}, " +
                     ", ".join(f'"%{r + i}"' for i in range(EXTRA_OPERANDS)) + ")")
    width = max(len(line) for line in lines) + 1
    for line in lines[:-1]:
        yield line + " " * (width - len(line)) + "\\"
    yield lines[-1]


def generate():
    floats = range(8, 257, 8)
    integers = [8, 16, 24, *range(32, 257, 16)]
    counts = sorted({n // 2 for n in floats} | {n // 4 for n in floats})
    parts = [HEADER, "// clang-format off"]
    parts += registers(counts)
    parts += ["", "// 32-bit accumulators"]
    parts += each("F32", floats, lambda n: n // 2)
    parts += ["", "// 16-bit accumulators, two in a register"]
    parts += each("F16", floats, lambda n: n // 4)
    parts += ["", "// 32-bit integers"]
    parts += each("S32", integers, lambda n: n // 2)
    parts += ["// clang-format on"]
    return "\n".join(parts) + "\n"


def main(arguments):
    if not arguments:
        sys.stdout.write(generate())
    elif len(arguments) == 2 and arguments[0] == "--check":
        if pathlib.Path(arguments[1]).read_text() != generate():
            sys.exit(f"{arguments[1]} is not what tools/generate_wgmma.py writes: run it again")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
