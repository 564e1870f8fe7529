#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The include rules and other rules of the repository.

Reads the sources' includes and words. Every rule is also run on a planted violation, so that a rule
that has stopped working fails here.

usage: include_rules_test.py REPOSITORY [unittest arguments]
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

# The modules of src/, lowest first, and what each may include beside itself and the public headers:
# modules, or single files. A module includes only lower ones, and test_no_module_includes_upwards
# checks that this table says so. config and device are compiled together and share one level.
MAY_INCLUDE = {
    "base": set(),
    "files": {"base"},
    "config": {"device"},
    "device": {"config"},
    # The layout of a transposed V and the conversion to FP8, which kernels share.
    "numeric": {"base", "files", "config/v_layout.h", "config/widening.h"},
    "attention": {"base", "numeric"},
    "emulator": {"base", "config", "device", "numeric"},
    "cpu": {"base", "numeric", "attention"},
    "gpu": {"base", "files", "numeric", "attention", "config", "device"},
    "runtime": {"base", "numeric", "attention", "config", "cpu", "gpu", "emulator"},
    "evidence": {"base", "files", "numeric", "attention", "config", "cpu", "gpu", "emulator", "runtime"},
    "evolve": {"base", "files", "numeric", "attention", "config", "gpu", "emulator", "runtime",
               "evidence"},
}
ONE_LEVEL = {"config", "device"}
# NVRTC compiles these: a standard header costs it seconds, and must be installed.
NO_SYSTEM_HEADERS = {"config", "device"}
# These use only the public interface.
USERS = ("cli", "python", "examples")

SOURCE_SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
# Comments and strings are not code.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
CUDA_WORDS = re.compile(
    r"\b(threadIdx|blockIdx|blockDim|gridDim|warpSize|__syncthreads\w*|__syncwarp|__shfl_\w+|"
    r"__ballot_sync|__activemask|__ldg|__cvta_\w+|__nanosleep|clock64|__threadfence\w*)\b")
INLINE_ASM = re.compile(r"\b(asm|__asm|__asm__)\b")
# A library returns errors; it does not print and does not end the program.
ENDS_OR_PRINTS = re.compile(r"\b(?:std::)?(exit|_exit|abort|terminate|printf|puts)\s*\(|std::c(?:out|err)\b")
# A static with an initialiser has a lock, which may be held forever in a child of fork(); so have
# these types. numeric/fork_safe.h has the replacements.
LOCKED_STATIC = re.compile(
    r"^ +static (?!constexpr\b|constinit\b|thread_local\b|inline\b|std::atomic\b)[^()\n]*[={;]|"
    r"\bstatic std::(?:mutex|once_flag|condition_variable)\b|\bcall_once\b", re.MULTILINE)
# Paths of one machine and hosts of one network mean nothing to other users.
MACHINE_WORDS = re.compile(
    r"(?<![\w.])/(?:work|root)/|/(?:home|Users)/[a-z]\w*/|"
    r"https?://[^/\s]*(?:registry|pypi|mirror|packages|archive)[^/\s]*|--(?:extra-)?index-url")


def sources(root, folder):
    return sorted(p for p in (root / folder).rglob("*") if p.suffix in SOURCE_SUFFIXES)


def includes(path):
    """(name, is_system) of each include."""
    return [(m[1] or m[2], m[1] is None) for m in INCLUDE.finditer(path.read_text())]


def code(path):
    return NOT_CODE.sub(" ", path.read_text())


def check_public_headers(root):
    for path in sources(root, "include"):
        for name, system in includes(path):
            standard = system and "/" not in name and re.fullmatch(r"[a-z_]+|std\w+\.h", name)
            ours = name.startswith("octavo/") and (root / "include" / name).exists()
            if not standard and not ours:
                yield path, f"a public header includes {name}"


def check_modules(root):
    for folder in sorted(p for p in (root / "src").glob("*") if p.is_dir()):
        module = folder.name
        if module not in MAY_INCLUDE:
            yield folder, f"src/{module} is not in the table of modules"
            continue
        for path in sources(root, f"src/{module}"):
            yield from check_module_file(root, module, path)


def check_module_file(root, module, path):
    for name, system in includes(path):
        if system:
            if module in NO_SYSTEM_HEADERS:
                yield path, f"{module} includes the system header {name}"
            if (root / "src" / name).is_file() or name.startswith("octavo/"):
                yield path, f"{name} is ours and is included with <>"
            continue
        if name.startswith("octavo/"):
            if module in NO_SYSTEM_HEADERS:
                yield path, f"{module} includes {name}"
            continue
        other = name.split("/")[0] if (root / "src" / name).is_file() else module
        if other != module and other not in MAY_INCLUDE[module] and name not in MAY_INCLUDE[module]:
            yield path, f"{module} includes {name}"


def check_users(root):
    for folder in USERS:
        for path in sources(root, folder):
            for name, _ in includes(path):
                if (root / "src" / name).is_file() or "src/" in name or name.startswith("../"):
                    yield path, f"{folder} includes {name}, which is not public"


def check_device_words(root):
    for path in sources(root, "src"):
        parts = path.relative_to(root / "src").parts
        if parts[0] == "emulator" or parts[:2] == ("device", "ptx"):
            continue
        for match in CUDA_WORDS.finditer(code(path)):
            yield path, f"{match[0]} outside device/ptx"
        if parts[0] in ("device", "config"):
            for match in INLINE_ASM.finditer(code(path)):
                yield path, f"{match[0]} outside device/ptx"


def check_library_manners(root):
    for path in sources(root, "src"):
        for match in ENDS_OR_PRINTS.finditer(code(path)):
            yield path, f"{match[0].rstrip('(')} in the library"


def check_statics(root):
    for path in sources(root, "src"):
        if path.relative_to(root / "src").parts[0] in NO_SYSTEM_HEADERS:
            continue
        for match in LOCKED_STATIC.finditer(code(path)):
            yield path, f"a static with a lock: {match[0].strip()}"


def check_exported_wrappers(root):
    """A candidate's kernel in a shared object finds only the wrappers that this file makes visible."""
    exported = root / "src/emulator/ptx/exported.h"
    if exported.is_file():
        named = {name for name, _ in includes(exported)}
        for path in sources(root, "src/device/ptx"):
            if path.relative_to(root / "src").as_posix() not in named:
                yield exported, f"does not include device/ptx/{path.name}"


def tracked_files(root):
    try:
        names = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True,
                               capture_output=True, text=True).stdout.split("\0")
        return [root / n for n in names if n and (root / n).is_file()]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        return [p for p in root.rglob("*") if p.is_file() and ".git" not in p.parts and
                not any(part.startswith("build") for part in p.relative_to(root).parts)]


def check_machine_words(root):
    for path in tracked_files(root):
        try:
            text = path.read_text()
        except UnicodeDecodeError:  # a binary: the fuzz corpus
            continue
        for match in MACHINE_WORDS.finditer(text):
            yield path, f"names a machine: {match[0]}"


CHECKS = (check_public_headers, check_modules, check_users, check_device_words,
          check_library_manners, check_statics, check_exported_wrappers, check_machine_words)


def violations(root):
    return [f"{path.relative_to(root)}: {what}"
            for check in CHECKS for path, what in check(root)]


ROOT = pathlib.Path()


class Repository(unittest.TestCase):
    def test_no_rule_is_broken(self):
        self.assertEqual(violations(ROOT), [])

    def test_no_module_includes_upwards(self):
        order = list(MAY_INCLUDE)
        for module, allowed in MAY_INCLUDE.items():
            for name in allowed:
                other = name.split("/")[0]
                if {module, other} != ONE_LEVEL:
                    self.assertLess(order.index(other), order.index(module), (module, name))

    def test_something_was_read(self):
        self.assertGreater(len(sources(ROOT, "src")), 10)
        self.assertGreater(len(sources(ROOT, "include")), 2)
        self.assertGreater(len(tracked_files(ROOT)), 30)


class Planted(unittest.TestCase):
    """One violation each, in a separate tree."""

    def found(self, files):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            base = {"include/octavo/octavo.hpp": "#include <vector>\n",
                    "src/numeric/formats.h": '#include "octavo/octavo.hpp"\n',
                    "src/base/error.h": "#include <fmt/format.h>\n",
                    "src/attention/mask.h": "", "src/cpu/attention.h": ""}
            for path, text in {**base, **files}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return violations(root)

    def expect(self, path, text, part):
        found = self.found({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(path + ":"), found)
        self.assertIn(part, found[0])

    def test_clean_tree(self):
        self.assertEqual(self.found({
            "src/numeric/a.cc": '#include "numeric/formats.h"\n#include "base/error.h"\n',
            "src/cpu/a.cc": '// printf("x"), threadIdx\n#include "attention/mask.h"\n#include <numeric>\n',
            "src/cpu/b.cc": "  static constinit MadeOnce<int> made;\n  static std::atomic<int> n{0};\n"
                            "  static Result<int> make(int a);\n  static int f(int a) { return a; }\n"
                            "  static int g(int a,\n               int b);\n",
            "src/device/ptx/regs.cuh": 'inline int f() { asm volatile(""); return threadIdx.x; }',
            "src/device/core/mask.cuh": '#include "device/ptx/regs.cuh"\n',
            "cli/main.cc": '#include <CLI/CLI.hpp>\n#include "octavo/octavo.hpp"\n'}), [])

    def test_public_header_includes_src(self):
        self.expect("include/octavo/a.hpp", '#include "numeric/formats.h"\n', "numeric/formats.h")

    def test_public_header_includes_third_party(self):
        self.expect("include/octavo/a.hpp", "#include <fmt/format.h>\n", "fmt/format.h")
        self.expect("include/octavo/a.hpp", "#include <cuda.h>\n", "cuda.h")

    def test_module_includes_upwards(self):
        self.expect("src/numeric/a.cc", '#include "attention/mask.h"\n', "attention/mask.h")
        self.expect("src/attention/a.cc", '#include "cpu/attention.h"\n', "cpu/attention.h")
        self.expect("src/base/a.cc", '#include "numeric/formats.h"\n', "numeric/formats.h")

    def test_unknown_module(self):
        found = self.found({"src/misc/a.cc": ""})
        self.assertEqual(found, ["src/misc: src/misc is not in the table of modules"])

    def test_our_header_in_angle_brackets(self):
        self.expect("src/cpu/a.cc", "#include <numeric/formats.h>\n", "<>")

    def test_device_includes_standard_header(self):
        self.expect("src/device/core/a.cuh", "#include <cstdint>\n", "cstdint")
        self.expect("src/config/a.h", "#include <array>\n", "array")

    def test_device_includes_host_module(self):
        self.expect("src/device/core/a.cuh", '#include "numeric/formats.h"\n', "numeric/formats.h")
        self.expect("src/config/a.h", '#include "octavo/octavo.hpp"\n', "octavo/octavo.hpp")

    def test_command_includes_src(self):
        self.expect("cli/main.cc", '#include "cpu/attention.h"\n', "cpu/attention.h")
        self.expect("cli/main.cc", '#include "../src/numeric/formats.h"\n', "formats.h")
        self.expect("python/bind.cc", '#include "numeric/formats.h"\n', "formats.h")

    def test_cuda_word_outside_ptx(self):
        self.expect("src/device/sm90/forward.cuh", "int f() { return threadIdx.x; }", "threadIdx")
        self.expect("src/gpu/a.cc", "void f() { __syncthreads(); }", "__syncthreads")

    def test_asm_outside_ptx(self):
        self.expect("src/device/tile/a.cuh", 'void f() { asm volatile("nop"); }', "asm")

    def test_library_prints_or_exits(self):
        self.expect("src/cpu/a.cc", "void f() { std::cout << 1; }", "std::cout")
        self.expect("src/cpu/a.cc", "void f() { exit(1); }", "exit")

    def test_static_with_a_lock(self):
        for text in ("  static std::mutex mutex;\n", "static std::mutex mutex;\n",
                     "  static const std::vector<int> kAll = {1};\n",
                     "  static const Table& table = *[] {\n",
                     "  static Store* store = new Store();\n", "  std::call_once(flag, f);\n"):
            self.expect("src/cpu/a.cc", text, "a static with a lock")

    def test_wrapper_that_is_not_exported(self):
        found = self.found({"src/emulator/ptx/exported.h": '#include "device/ptx/a.cuh"\n',
                            "src/device/ptx/a.cuh": "", "src/device/ptx/b.cuh": ""})
        self.assertEqual(found, ["src/emulator/ptx/exported.h: does not include device/ptx/b.cuh"])

    def test_machine_path(self):
        self.expect("docs/a.md", "see " + "/ro" + "ot/x", "names a machine")
        self.expect("docs/a.md", "http" + "://regis" + "try.example/x", "names a machine")


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
