#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: displayed numbers against the JSON they come from, and the drawn lengths
of bars, at a phone's width and in dark mode. Exit code 77 if there is no browser.

usage: report_browser_test.py ROOT
"""

import html
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

needs_charts = unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed")

# Writes the browser's rendering into the page: visible text, not the source.
LOOK = """<script>addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const tables = {};
  for (const t of document.querySelectorAll("table"))
    tables[t.id] = [...t.rows].map(r => [...r.cells].map(c => [c.innerText, c.dataset.value ?? null]));
  const bars = [...document.querySelectorAll("svg")].map(chart => [...chart.querySelectorAll("g[data-value]")]
    .map(g => [+g.dataset.value, g.getBoundingClientRect().width])).filter(chart => chart.length > 0);
  const points = [...document.querySelectorAll("g[data-x]")].map(g => [+g.dataset.x, +g.dataset.y]);
  const clipped = [...document.querySelectorAll("td, th, p, li, h1, h2, h3, svg")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.scrollWidth > e.clientWidth + 1)
    .filter(e => e.getBoundingClientRect().width > 0).map(e => e.tagName + ": " + e.textContent.slice(0, 60));
  const links = [...document.querySelectorAll("a")].filter(a => !document.querySelector(a.getAttribute("href"))).length;
  const style = getComputedStyle(document.body);
  const seen = {tables, bars, points, clipped, broken_links: links, width: document.documentElement.scrollWidth, window: innerWidth,
    ink: style.color, paper: style.backgroundColor};
  document.body.append(Object.assign(document.createElement("pre"),
    {id: "seen", textContent: JSON.stringify(seen)}));
});</script>"""


def look(page, *flags):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "page.html"
        copy.write_text(page.read_text().replace("</head>", LOOK + "</head>"))
        shown = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu",
                                f"--user-data-dir={folder}/profile", *flags, "--dump-dom", copy.as_uri()],
                               capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="seen">(.*?)</pre>', shown.stdout, re.DOTALL)
    if not found:
        raise AssertionError(f"{BROWSER} showed no page: {shown.stderr[-2000:]}")
    return json.loads(html.unescape(found[1]))


class ReportInBrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = next(p for p in sorted((ROOT / "evidence").glob("*")) if list(p.glob("*_compare.json")))
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.page = pathlib.Path(cls.temporary.name) / "page.html"
        subprocess.run([sys.executable, str(ROOT / "tools/report.py"), "--folder", str(cls.folder), "--out",
                        str(cls.page.with_suffix(""))], check=True)
        # A bright window and a dark phone: colours do not depend on the width.
        cls.seen = look(cls.page, "--blink-settings=preferredColorScheme=1")
        cls.on_a_phone = look(cls.page, "--blink-settings=preferredColorScheme=0", "--window-size=390,800")

    def reports(self, kind):
        for path in sorted(self.folder.glob("*.json")):
            report = json.loads(path.read_text())
            if isinstance(report, dict) and report.get("kind") == kind:
                yield path.stem, report

    def test_the_numbers_that_are_shown_are_those_of_the_json(self):
        compared = 0
        for name, report in self.reports("compare"):
            shown = self.seen["tables"][f"{name}-cases"][1:]
            for cells, row in zip(shown, report["rows"], strict=True):
                # The shown digits, and the value behind them.
                for (text, value), wanted in ((cells[2], row["octavo_us"]), (cells[4], row["ratio"])):
                    digits = len(text.partition(".")[2])
                    self.assertEqual(text, f"{wanted:.{digits}f}")
                    self.assertEqual(float(value), wanted)
                    compared += 1
        for name, report in self.reports("bench"):
            for cells, row in zip(self.seen["tables"][f"{name}-times"][1:], report["rows"], strict=True):
                self.assertAlmostEqual(float(cells[1][0]) / row["median_us"], 1, delta=0.01)
                compared += 1
        self.assertGreater(compared, 50)

    @needs_charts
    def test_bars_are_drawn_as_long_as_they_say(self):
        for chart in self.seen["bars"]:
            for value, width in chart:
                self.assertAlmostEqual(width / value, chart[0][1] / chart[0][0], delta=0.02 * width / value)
        drawn = [[value for value, _ in chart] for chart in self.seen["bars"]]
        for _, report in self.reports("compare"):
            self.assertIn([row["ratio"] for row in report["rows"]], drawn)

    @needs_charts
    def test_points_stand_for_rows(self):
        points = {tuple(p) for p in self.seen["points"]}
        for _, report in self.reports("compare"):
            lengths = {(r["length"], r["octavo_us"]) for r in report["rows"]
                       if r["causal"] == "none" and r["dtype"] == "f16"}
            self.assertTrue(points & lengths)

    def test_every_link_leads_to_a_section(self):
        self.assertEqual(self.seen["broken_links"], 0)

    def test_on_a_phone_nothing_is_wider_than_the_window(self):
        seen = self.on_a_phone
        self.assertLessEqual(seen["window"], 390)
        self.assertLessEqual(seen["width"], seen["window"])
        self.assertEqual(seen["clipped"], [])
        self.assertEqual(seen["tables"], self.seen["tables"])

    def test_in_the_dark_it_is_dark(self):
        def light(colour):
            return sum(map(int, re.findall(r"\d+", colour)[:3]))
        dark, bright = self.on_a_phone, self.seen
        self.assertLess(light(dark["paper"]), 200)
        self.assertGreater(light(dark["ink"]), 500)
        self.assertGreater(light(bright["paper"]), 700)
        self.assertLess(light(bright["ink"]), 200)


if __name__ == "__main__":
    if BROWSER is None:
        print(f"no browser here; supported: {', '.join(BROWSERS)}")
        sys.exit(77)
    unittest.main()
