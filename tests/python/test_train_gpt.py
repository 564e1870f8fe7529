# SPDX-License-Identifier: Apache-2.0
"""examples/train_gpt.py: a tiny model trains with Octavo as with PyTorch, in the same bits every time."""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
import octavo  # noqa: E402
import train_gpt  # noqa: E402

TINY = train_gpt.Sizes(layers=2, heads=2, width=32, context=48, batch=4)
FLAGS = ["--device", "cpu", "--layers", "1", "--heads", "1", "--width", "16", "--context", "16",
         "--batch", "2"]
STEPS = 12
# At the example's learning rate the losses of 12 steps hardly depend on attention: they change by less
# than 1e-3 without the causal mask. At this rate they change by 1e-3 and more for each fault below,
# and by less than 1e-6 between Octavo and PyTorch.
LEARNING_RATE = 3e-2
LIMIT = 1e-4


@pytest.fixture(autouse=True)
def deterministic():
    """main() sets this switch of PyTorch; tests in the same process get it back as it was."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def train(attention, seed=0):
    return train_gpt.train(attention, TINY, STEPS, seed=seed, learning_rate=LEARNING_RATE)


def largest_difference(losses, others):
    assert len(losses) == len(others) == STEPS
    return max(abs(one - other) for one, other in zip(losses, others))


class HalfGradient(torch.autograd.Function):
    """The identity, with half of its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


half = HalfGradient.apply
FAULTS = {
    "mask": lambda q, k, v: octavo.attention(q, k, v),
    "dq": lambda q, k, v: octavo.attention(half(q), k, v, causal=True),
    "dk": lambda q, k, v: octavo.attention(q, half(k), v, causal=True),
    "dv": lambda q, k, v: octavo.attention(q, k, half(v), causal=True),
}


@pytest.fixture(scope="module")
def octavo_run():
    return train("octavo")


@pytest.fixture(scope="module")
def torch_losses():
    return train("torch")[0]


def test_losses_are_those_of_pytorch(octavo_run, torch_losses):
    losses, _ = octavo_run
    assert largest_difference(losses, torch_losses) < LIMIT


@pytest.mark.parametrize("fault", FAULTS)
def test_the_limit_detects_faults(fault, torch_losses, monkeypatch):
    monkeypatch.setitem(train_gpt.ATTENTION, "octavo", FAULTS[fault])
    assert largest_difference(train("octavo")[0], torch_losses) > LIMIT


def test_a_second_run_has_the_same_bits(octavo_run):
    losses, bits = octavo_run
    again, bits_again = train("octavo")
    assert losses == again
    assert bits.numel() > STEPS and torch.equal(bits, bits_again)


def test_another_seed_has_other_bits(octavo_run):
    losses, bits = octavo_run
    others, other_bits = train("octavo", seed=1)
    assert losses != others and not torch.equal(bits, other_bits)


def test_the_loss_goes_down(octavo_run):
    losses, _ = octavo_run
    assert losses[-1] < losses[0] - 0.5


def test_compare_reports_and_plots_both(tmp_path, capsys):
    plot = tmp_path / "losses.svg"
    assert train_gpt.main(["--compare", "--steps", "3", "--plot", str(plot), *FLAGS]) == 0
    report = capsys.readouterr().out
    assert "last loss: Octavo" in report and "largest difference" in report
    assert "the two runs with Octavo have the same bits" in report
    curves = [line.get("points").split() for line in ElementTree.parse(plot).iter()
              if line.tag.endswith("polyline")]
    assert [len(points) for points in curves] == [3, 3]


def test_compare_fails_if_bits_differ(tmp_path, capsys, monkeypatch):
    """The exit code is 1 if one weight of the second run differs in its last bit."""
    unchanged, calls = train_gpt.train, []

    def changed(*settings):
        losses, bits = unchanged(*settings)
        calls.append(settings)
        bits[-1] += len(calls) == 2
        return losses, bits

    monkeypatch.setattr(train_gpt, "train", changed)
    assert train_gpt.main(["--compare", "--steps", "2", "--plot", str(tmp_path / "a.svg"), *FLAGS]) == 1
    assert "the two runs with Octavo have different bits" in capsys.readouterr().out


@pytest.mark.parametrize("attention", train_gpt.ATTENTION)
def test_one_attention_plots_one_curve(attention, tmp_path):
    plot = tmp_path / "losses.svg"
    assert train_gpt.main(["--attention", attention, "--steps", "1", "--plot", str(plot), *FLAGS]) == 0
    assert plot.read_text().count("<polyline") == 1


@pytest.mark.parametrize("flags, sentence", [
    (["--steps", "0"], "--steps is 0; supported: 1 and above."),
    (["--width", "30", "--heads", "4"], "--width is 30; supported: multiples of --heads, which is 4."),
    (["--plot", "missing/a.svg"], "--plot is missing/a.svg; supported: a file in a folder that exists."),
])
def test_wrong_arguments(flags, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        train_gpt.main(flags)
    assert stopped.value.code == 2 and sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
