# SPDX-License-Identifier: Apache-2.0
"""tools/scaling_model.py: its numbers by hand, and docs/scaling.md says what it prints.

usage: scaling_test.py REPOSITORY
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else __file__).resolve()
ROOT = ROOT if ROOT.is_dir() else ROOT.parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import scaling_model as model  # noqa: E402

MACHINE = model.Machine(forward=500, backward=400)
LAYER = model.Layer(1 << 20)
KV_BYTES = 2 * 8 * 128 * 2 * (1 << 20)  # K and V of 8 heads, of all tokens


class Scaling(unittest.TestCase):
    def test_the_page_is_that_of_the_tool(self):
        done = subprocess.run([sys.executable, ROOT / "tools/scaling_model.py", "--check"], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_page_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "scaling.md"
            page.write_text(model.PAGE.read_text().replace("| 1024 | ulysses", "| 1024 |").replace("| 8 |", "| 9 |"))
            with mock.patch.object(model, "PAGE", page), mock.patch.object(sys, "argv", ["model", "--check"]):
                self.assertRaises(SystemExit, model.main)
                sys.argv = ["model"]
                model.main()
            self.assertEqual(page.read_text(), model.PAGE.read_text())

    def test_bytes_are_those_of_the_documentation(self):
        """docs/context_parallel.md counts what a rank sends, which is what it receives."""
        forward = model.model(LAYER, MACHINE, model.Mesh(16, 1, 4), False)
        self.assertEqual(forward.received_bytes, KV_BYTES * 15 / 16)
        self.assertEqual(model.model(LAYER, MACHINE, model.Mesh(16, 1, 4), True).received_bytes, KV_BYTES * 15 / 8)
        ulysses = model.model(LAYER, MACHINE, model.Mesh(1, 8, 1), False)
        self.assertEqual(ulysses.received_bytes, (64 + 8) * 2 * (1 << 17) * 256 * 7 / 8)

    def test_times_by_hand(self):
        """8 GPUs, all_gather at once: 2 products x 64 heads x 128 x 2^40 / 8 at 500 TFLOP/s, all SMs busy: 65,536
        rows are 512 tiles of 64 heads, 32,768 of 132 SMs' 249 rounds."""
        busy = 32768 / (249 * 132)
        one = model.model(LAYER, MACHINE, model.Mesh(8, 1, 1), False)
        self.assertAlmostEqual(one.attention_ms, 2 * 64 * 128 * 2**40 / 8 / (500e12 * busy) * 1e3)
        self.assertAlmostEqual(one.communication_ms, KV_BYTES * 7 / 8 / 450e9 * 1e3)
        self.assertAlmostEqual(one.total_ms, one.attention_ms + one.communication_ms)
        self.assertEqual(one.held_bytes, 3 * KV_BYTES)

    def test_rings_bring_a_byte_into_a_machine_once(self):
        shard = 1e9
        inside = model.gather_ms(MACHINE, model.Mesh(8, 1, 1), shard)
        self.assertAlmostEqual(inside, 7 / 450 * 1e3)
        across = model.gather_ms(MACHINE, model.Mesh(64, 1, 1), shard)
        self.assertAlmostEqual(across, 56 / 8 / 50 * 1e3)
        self.assertAlmostEqual(model.gather_ms(MACHINE, model.Mesh(8, 8, 1), shard), 7 / 50 * 1e3)

    def test_the_pipeline(self):
        """Four parts of 10 ms: the first gather is waited for, and in the backward pass the last dK and dV."""
        self.assertEqual(model.pipeline_ms([10] * 4, 2, 0), 2 + 4 * 10)
        self.assertEqual(model.pipeline_ms([10] * 4, 20, 0), 20 + 3 * 20 + 10)
        self.assertEqual(model.pipeline_ms([10] * 4, 8, 8), 8 + 10 + 16 + 16 + 10 + 8)


if __name__ == "__main__":
    unittest.main()
