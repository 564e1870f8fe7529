#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation as a whole, without building the site: links and their anchors, the navigation, the reference pages
and the chart.

usage: docs_test.py ROOT
"""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools"))
import docs_api  # noqa: E402
import docs_site  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "evidence").rglob("*.md"))]
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
# A link within one line or two, but not an image of a badge, and not code.
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page):
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


def anchors(page):
    """Those of GitHub and of MkDocs, which differ in runs of hyphens."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        found |= {slug, re.sub(r"-+", "-", slug)}
    return found


def navigation():
    return re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


class Docs(unittest.TestCase):
    def test_links_lead_somewhere(self):
        followed = 0
        for page in PAGES:
            for target in LINK.findall(prose(page)):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                aim = (page.parent / path).resolve() if path else page
                where = f"{page.relative_to(ROOT)}: {target}"
                if path.startswith("reference/"):
                    self.assertIn(path, docs_api.pages(ROOT), where)
                    continue
                self.assertTrue(aim.exists(), where)
                if anchor and aim.suffix == ".md":
                    self.assertIn(anchor, anchors(aim), where)
                followed += 1
        self.assertGreater(followed, 100)

    def test_every_page_is_in_the_navigation_once(self):
        pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
        pages |= set(docs_api.pages(ROOT)) | set(docs_site.pages_of_repository())
        listed = navigation()
        self.assertEqual(sorted(listed), sorted(pages))

    def test_the_reference_has_every_public_function(self):
        pages = docs_api.pages(ROOT)
        headers = {name for _, names in docs_api.HEADERS.values() for name in names}
        self.assertEqual(headers, {path.name for path in (ROOT / "include/octavo").iterdir()})
        of_header = {name: page for page, (_, names) in docs_api.HEADERS.items() for name in names}
        checked = 0
        for name, page in of_header.items():
            text = (ROOT / "include/octavo" / name).read_text()
            for declaration in re.findall(r"^OCTAVO_(?:C_)?API [^;{]*?(\w+)\(", text, re.MULTILINE):
                listing = "".join(re.findall(r"```cpp\n(.*?)```", pages[page], re.DOTALL))
                self.assertIn(f"{declaration}(", listing, f"{declaration} of {name}")
                checked += 1
        self.assertGreater(checked, 100)
        python = pages[docs_api.PYTHON_PAGE]
        public = re.search(r"__all__ = \[(.*?)\]", (ROOT / "python/octavo/__init__.py").read_text(), re.DOTALL)[1]
        for name in re.findall(r'"([a-zA-Z]\w+)"', public):
            if name not in ("LayoutWarning",):
                self.assertIn(f"### `octavo.{name}`", python)

    def test_comments_of_headers_stand_above_their_declarations(self):
        page = docs_api.header_part("// Of the file.\n#pragma once\n\nnamespace octavo {\n\n// One sum:\n//   sum(1, 2)\n"
                                    "OCTAVO_API int sum(int a,\n                   int b);\n\nclass Box {\n public:\n"
                                    "  int a;\n\n private:\n  int hidden;\n};\n\n}  // namespace octavo\n")
        self.assertEqual(page, "Of the file.\n\n### `sum`\n\nOne sum:\n\n```cpp\nsum(1, 2)\n```\n\n```cpp\nint sum(int a,\n"
                               "                   int b);\n```\n\n### `Box`\n\n```cpp\nclass Box {\n public:\n  int a;\n"
                               "};\n```")

    def test_links_out_of_docs_become_links_within_the_site(self):
        class Page:
            class file:
                src_uri = "how_to/train.md"
        moved = docs_site.on_page_markdown(
            "<!-- run first:\nx = 1\n-->\n[a](../../examples/serve.py) [b](../../evidence/nvidia-h200/sm90.md#x) "
            "[c](serve.md) [d](https://e.org)", Page, None, None)
        self.assertEqual(moved, "[a](../repository/examples/serve.py) [b](../evidence/nvidia-h200/sm90.md#x) "
                                "[c](serve.md) [d](https://e.org)")
        Page.file.src_uri = "evidence/nvidia-h200/sm90.md"
        self.assertEqual(docs_site.on_page_markdown("[a](../../docs/json.md)", Page, None, None), "[a](../../json.md)")

    def test_the_chart_shows_the_evidence(self):
        subprocess.run([sys.executable, str(ROOT / "tools/performance_chart.py"), "--check"], check=True)

    def test_the_readme_is_for_people(self):
        text = (ROOT / "README.md").read_text()
        before, _, rest = text.partition("<!-- evidence: made by")
        after = rest.partition("<!-- evidence: end -->")[2]
        for line in FENCE.sub("", before + after).splitlines():
            if not line.startswith(("|", "<", " ")):
                self.assertLessEqual(len(line), 110, line)


if __name__ == "__main__":
    unittest.main()
