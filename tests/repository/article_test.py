# SPDX-License-Identifier: Apache-2.0
"""docs/article.md: its numbers and figures are those of the evidence, and no measured number stands in it by hand.

usage: article_test.py REPOSITORY
"""

import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools"))
import article  # noqa: E402


def check():
    with mock.patch.object(sys, "argv", ["article.py", "--check"]):
        article.main()


class Article(unittest.TestCase):
    def test_the_page_is_that_of_the_evidence(self):
        check()

    def test_every_fact_of_the_page_is_known_and_most_are_used(self):
        used = {match[1] for match in article.FACT.finditer(article.PAGE.read_text())}
        self.assertLessEqual(used, set(article.facts()))
        self.assertGreater(len(used), 60)

    def test_other_evidence_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            evidence = pathlib.Path(folder) / "evidence"
            shutil.copytree(article.EVIDENCE, evidence)
            path = evidence / "sm90_compare.json"
            data = json.loads(path.read_text())
            article.row_of(data, name=article.MISSION, dtype="f16", causal="none")["octavo_us"] = 44.4
            path.write_text(json.dumps(data))
            with mock.patch.object(article, "EVIDENCE", evidence):
                self.assertEqual(article.facts()["mission"], "44.40")
                self.assertRaises(SystemExit, check)

    def test_a_line_that_has_gone_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            pages = pathlib.Path(folder) / "kernels"
            shutil.copytree(article.KERNELS, pages)
            page = pages / "sm90_experiments.md"
            page.write_text(page.read_text().replace("clusters of four", "clusters of many"))
            with mock.patch.object(article, "KERNELS", pages):
                self.assertRaises(KeyError, article.facts)

    def test_numbers_by_hand_are_noticed(self):
        for text in ("it takes 4.3 us now", "tensor cores 98%", "at 700 TFLOP/s.", "512 clocks"):
            self.assertEqual(len(article.by_hand(text)), 1, text)
        for text in ("it takes <!--=mission-->4.33<!--/--> us", "(1, 8, 512, 64) uses 2 warps", "```\n4 us\n```\n"):
            self.assertEqual(article.by_hand(text), [], text)


if __name__ == "__main__":
    unittest.main()
