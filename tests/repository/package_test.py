#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The metadata of the package, and every file that repeats its version, agree with CMakeLists.txt.

usage: package_test.py ROOT
"""

import ast
import pathlib
import re
import sys
import unittest

try:
    import tomllib
except ImportError:
    print("not run: it needs Python 3.11")
    sys.exit(77)

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
VERSION = re.search(r"project\(octavo VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def text(path):
    return (ROOT / path).read_text()


class PackageTest(unittest.TestCase):
    def test_the_version_comes_from_cmake(self):
        self.assertEqual(PROJECT["dynamic"], ["version"])
        source = PYPROJECT["tool"]["scikit-build"]["metadata"]["version"]
        self.assertEqual(re.search(source["regex"], text(source["input"]))["value"], VERSION)

    def test_the_version_is_named_alike_everywhere(self):
        minor = VERSION.rsplit(".", 1)[0]
        for path in ("examples/CMakeLists.txt", "docs/users.md"):
            self.assertIn(f"find_package(octavo {minor} REQUIRED)", text(path), path)
        self.assertIn(f"\nversion: {VERSION}\n", text("CITATION.cff"))
        self.assertEqual(re.search(r"^## (\S+)", text("CHANGELOG.md"), re.M)[1], VERSION)

    def test_the_licence_is_an_spdx_expression_with_its_text(self):
        self.assertEqual(PROJECT["license"], "Apache-2.0")
        self.assertEqual(PROJECT["license-files"], ["LICENSE", "THIRD_PARTY_LICENSES"])
        self.assertIn("Apache License", text("LICENSE"))
        self.assertIn("\nlicense: Apache-2.0\n", text("CITATION.cff"))
        # A classifier beside the expression is refused by indexes.
        self.assertFalse([c for c in PROJECT["classifiers"] if c.startswith("License ::")])

    def test_the_command_is_a_function_of_the_package(self):
        module, function = PROJECT["scripts"]["octavo"].split(":")
        tree = ast.parse(text("python/" + module.replace(".", "/") + ".py"))
        self.assertIn(function, [node.name for node in tree.body if isinstance(node, ast.FunctionDef)])

    def test_every_python_of_the_classifiers_is_tested_and_has_a_wheel(self):
        versions = [c.rpartition(" ")[2] for c in PROJECT["classifiers"]
                    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", c)]
        self.assertEqual(PROJECT["requires-python"], f">={versions[0]}")
        wheels = " ".join(f"cp{v.replace('.', '')}-*" for v in versions)
        self.assertEqual(PYPROJECT["tool"]["cibuildwheel"]["build"], wheels)
        matrix = re.search(r"python: \[(.*)\]", text(".github/workflows/cpu.yml"))[1]
        self.assertEqual(re.findall(r'"([\d.]+)"', matrix), versions)

    def test_extras_are_the_frameworks_and_what_developers_need(self):
        self.assertEqual(set(PROJECT["optional-dependencies"]), {"torch", "transformers", "jax", "dev"})

    def test_source_distributions_leave_out_nothing_below_the_top_folder(self):
        for pattern in PYPROJECT["tool"]["scikit-build"]["sdist"]["exclude"]:
            self.assertRegex(pattern, r"^/[^/]+$")

    def test_actions_of_workflows_are_pinned_by_commit(self):
        for path in (ROOT / ".github/workflows").iterdir():
            for action in re.findall(r"uses: (.*)", path.read_text()):
                self.assertRegex(action, r"^[\w/-]+@[0-9a-f]{40} # v[\d.]+$", path.name)


if __name__ == "__main__":
    unittest.main()
