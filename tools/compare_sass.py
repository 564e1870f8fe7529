#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of every shipped kernel between two commits, ignoring names.

usage: compare_sass.py OLD [NEW] [--list]

OLD and NEW are commits (NEW: the working tree, if left out) or kernel archives that a build wrote
(build/src/gpu/kernels.archive). A commit is checked out into a temporary folder, where only the
kernel compiler is built; it needs NVRTC and no GPU. Kernels are paired by their place in the list
of shipped kernels, so that a configuration may change its name or its fields, but not its rows.

The bytes of a kernel's code section are compared: equal bytes are equal instructions, whatever the
kernel and its sources are called. Exit code 0: all kernels are the same; 1: some differ, each
listed with its code bytes before and after.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAGIC = b"octavo kernels 1\n"


def read_archive(path):
    """[(name expression, kind, image)] in the order of the list of shipped kernels."""
    data = pathlib.Path(path).read_bytes()
    if not data.startswith(MAGIC):
        sys.exit(f"compare_sass: {path} is not a kernel archive.")
    at, kernels = len(MAGIC), []
    while at < len(data):
        line = data.index(b"\n", at)
        _, meta_bytes, image_bytes = data[at:line].split(b" ")
        meta = json.loads(data[line + 1:line + 1 + int(meta_bytes)])
        at = line + 1 + int(meta_bytes)
        kernels.append((meta["name_expression"], meta["kind"], data[at:at + int(image_bytes)]))
        at += int(image_bytes)
    return kernels


def sections(cubin):
    """{name: bytes} of an ELF file's sections."""
    offset, = struct.unpack_from("<Q", cubin, 40)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + i * size) for i in range(count)]
    names = cubin[headers[names_index][4]:]
    found = {}
    for name, kind, _, _, at, length, *_ in headers:
        text = names[name:names.index(b"\0", name)].decode()
        found[text] = b"" if kind == 8 else cubin[at:at + length]  # 8: no bytes in the file
    return found


def code_of(kind, image):
    """The bytes to compare: the code section of a cubin, PTX without the names of its kernels."""
    if kind == "ptx":
        return b"\n".join(line for line in image.split(b"\n")
                          if b"octavo" not in line and b"_ZN" not in line)
    code = [bytes_ for name, bytes_ in sections(image).items() if name.startswith(".text.")]
    if len(code) != 1:
        sys.exit(f"compare_sass: a cubin has {len(code)} code sections; supported: 1.")
    return code[0]


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def archive_of(commit, folder):
    """Builds the kernel compiler of a commit, or of the working tree, and compiles the kernels with it."""
    if commit is not None and pathlib.Path(commit).is_file():
        return pathlib.Path(commit)
    source = ROOT
    if commit is not None:
        source = folder / "source"
        source.mkdir(parents=True)
        packed = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True,
                                stdout=subprocess.PIPE).stdout
        run("tar", "-x", "-C", source, input=packed)
    build = folder / "build"
    quiet = {"stdout": subprocess.DEVNULL}
    run("cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DOCTAVO_TESTS=OFF",
        "-DOCTAVO_CLI=OFF", "-DOCTAVO_PYTHON=OFF", **quiet)
    run("cmake", "--build", build, "--target", "octavo_shipped", "--parallel", "2", **quiet)
    return build / "src/gpu/kernels.archive"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--list", action="store_true", help="also list the kernels that are equal")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before, after = (read_archive(archive_of(commit, pathlib.Path(folder) / name))
                         for name, commit in (("old", arguments.old), ("new", arguments.new)))
    if len(before) != len(after):
        print(f"compare_sass: {len(before)} kernels before, {len(after)} after; they are paired by "
              "their place in the list.")
        return 1
    different = 0
    for (old_name, kind, old), (new_name, new_kind, new) in zip(before, after):
        old_code, new_code = code_of(kind, old), code_of(new_kind, new)
        same = kind == new_kind and old_code == new_code
        different += not same
        if not same:
            print(f"differs: {old_name}\n      -> {new_name}\n         {len(old_code)} bytes of "
                  f"code before, {len(new_code)} after")
        elif arguments.list:
            print(f"same: {new_name}")
    print(f"{len(before)} kernels, {len(before) - different} with the same code, "
          f"{different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
