#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small character-level GPT with Octavo's attention, with PyTorch's, or with both.

    python examples/train_gpt.py                        # Octavo, 300 steps, losses.svg
    python examples/train_gpt.py --attention torch --plot torch.svg
    python examples/train_gpt.py --compare              # Octavo twice, PyTorch once
    python examples/train_gpt.py --context-parallel 2   # each sequence on two processes

It runs on a GPU in bfloat16 (autocast) if PyTorch finds one, else on the CPU in float32. It needs
PyTorch and Octavo and downloads nothing: the text is Python's own language reference, as help()
shows it, which is the same in every installation of one Python version.

--compare trains three times from the same weights on the same batches. It prints the last losses,
the largest difference between the loss curves of Octavo and PyTorch, and whether the two runs with
Octavo gave the same bits in every loss and every weight; the exit code is 1 if they did not.

--context-parallel N trains on N processes, each of which has 1/N of every sequence, and with more than
one GPU one GPU; they compute the losses of one process.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import pathlib
import sys
import tempfile
from pydoc_data.topics import topics

# cuBLAS is deterministic only with a workspace of fixed size, and reads this when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.multiprocessing  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import octavo  # noqa: E402

# Both take q, k and v as (batch, heads, seqlen, head_dim), of any strides. octavo.attention raises an
# error for what it does not support; octavo.torch.sdpa would fall back to PyTorch.
ATTENTION = {
    "octavo": lambda q, k, v: octavo.attention(q, k, v, causal=True),
    "torch": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}
CONTEXT_PARALLEL = "context_parallel"


def import_distributed():
    """octavo.distributed, which only --context-parallel needs."""
    import octavo.distributed

    ATTENTION[CONTEXT_PARALLEL] = lambda q, k, v: octavo.distributed.context_parallel(q, k, v, causal=True)
    return octavo.distributed


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int = 4
    heads: int = 2
    width: int = 128  # heads * head_dim
    context: int = 128  # characters per sequence
    batch: int = 16  # sequences per step


class Block(nn.Module):
    """One transformer layer: attention, then a perceptron, each added to its input."""

    def __init__(self, sizes: Sizes, attention: str):
        super().__init__()
        self.heads = sizes.heads
        self.attention = ATTENTION[attention]
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.project = nn.Linear(sizes.width, sizes.width)
        self.perceptron = nn.Sequential(nn.Linear(sizes.width, 4 * sizes.width), nn.GELU(),
                                        nn.Linear(4 * sizes.width, sizes.width))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # views: nothing is copied
        x = x + self.project(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, sizes: Sizes, vocabulary: int, attention: str):
        super().__init__()
        self.characters = nn.Embedding(vocabulary, sizes.width)
        self.positions = nn.Parameter(torch.zeros(sizes.context, sizes.width))
        self.blocks = nn.Sequential(*(Block(sizes, attention) for _ in range(sizes.layers)))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """The logits of the character that follows each one; `places` are their places in the sequence."""
        positions = self.positions if places is None else self.positions[places]
        return self.head(self.norm(self.blocks(self.characters(tokens) + positions)))


@functools.cache
def load_text() -> tuple[Tensor, int]:
    """The text as one number per character, and how many different characters it has."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    numbers = {character: i for i, character in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[character] for character in text]), len(numbers)


def train(attention: str, sizes: Sizes, steps: int, device: str = "cpu", seed: int = 0,
          learning_rate: float = 1e-3) -> tuple[list[float], Tensor]:
    """Trains a new model; returns the loss of every step, and the bits of all losses and weights.

    Weights and batches are drawn on the CPU from the seed, and are the same for each attention. With
    CONTEXT_PARALLEL, every process of the default group calls this and has a part of each sequence.
    """
    text, vocabulary = load_text()
    torch.manual_seed(seed)
    distributed = import_distributed() if attention == CONTEXT_PARALLEL else None
    model = GPT(sizes, vocabulary, attention).to(device)
    places = None
    if distributed:
        places = distributed.positions(sizes.context, device=device)
        model = nn.parallel.DistributedDataParallel(model)  # its mean of gradients is that of all tokens
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    for step in range(1, steps + 1):
        first = torch.randint(len(text) - sizes.context, (sizes.batch, 1))
        window = text[first + torch.arange(sizes.context + 1)].to(device)
        inputs, labels = window[:, :-1], window[:, 1:]
        if distributed:
            inputs, labels = distributed.shard(inputs), distributed.shard(labels)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(inputs, places)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if distributed:
            torch.distributed.all_reduce(loss)
            loss /= torch.distributed.get_world_size()
        losses.append(loss.item())
        if (step % 50 == 0 or step == steps) and not (distributed and torch.distributed.get_rank()):
            print(f"{attention:6}  step {step:4}  loss {losses[-1]:.4f}", flush=True)
    numbers = [torch.tensor(losses), *(weight.detach().cpu().flatten() for weight in model.parameters())]
    return losses, torch.cat(numbers).view(torch.int32)


def run_rank(rank: int, ranks: int, store: str, plot: pathlib.Path, *settings) -> None:
    """One process of --context-parallel."""
    device = settings[2]
    torch.use_deterministic_algorithms(True)
    if device == "cuda":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"file://{store}",
                                         rank=rank, world_size=ranks)
    losses, _ = train(CONTEXT_PARALLEL, *settings)
    if rank == 0:
        write_svg(plot, {"octavo": losses}, f"Training loss on {ranks} processes")
    torch.distributed.destroy_process_group()


def write_svg(path: pathlib.Path, curves: dict[str, list[float]], title: str) -> None:
    """Plots loss over step. The first curve is wide and pale, so that a second one on it is seen."""
    steps = max(len(next(iter(curves.values()))) - 1, 1)
    top = max(map(max, curves.values())) * 1.05
    parts = [f'<text x="60" y="24">{title}</text>', '<text x="300" y="394">step</text>']
    for i in range(6):  # the grid and its numbers
        y = 350 - 60 * i
        parts.append(f'<path d="M60 {y}H620" stroke="#ddd"/><text x="20" y="{y + 4}">{top * i / 5:.2f}</text>'
                     f'<text x="{52 + 112 * i}" y="370">{1 + steps * i / 5:.0f}</text>')
    styles = [("#f5a623", 5), ("#1f4e9c", 1.2)]
    for i, ((name, losses), (color, width)) in enumerate(zip(curves.items(), styles)):
        points = " ".join(f"{60 + 560 * j / steps:.2f},{350 - 300 * loss / top:.2f}"
                          for j, loss in enumerate(losses))
        line = f'fill="none" stroke="{color}" stroke-width="{width}"'
        parts.append(f'<polyline points="{points}" {line}/><path d="M480 {72 + 20 * i}h30" {line}/>'
                     f'<text x="520" y="{76 + 20 * i}">{name}</text>')
    head = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 400" font-family="sans-serif" '
            'font-size="12"><rect width="640" height="400" fill="white"/>')
    path.write_text("\n".join([head, *parts, "</svg>\n"]))
    print(f"wrote {path}")


def compare(plot: pathlib.Path, *settings) -> bool:
    """Trains with Octavo twice and with PyTorch once; returns whether Octavo's runs are the same."""
    losses, bits = train("octavo", *settings)
    again, bits_again = train("octavo", *settings)
    other, _ = train("torch", *settings)
    largest = max(abs(x - y) for x, y in zip(losses, other))
    same = torch.equal(bits, bits_again)
    print(f"last loss: Octavo {losses[-1]:.6f}, again {again[-1]:.6f}, PyTorch {other[-1]:.6f}\n"
          f"largest difference between the curves of Octavo and PyTorch: {largest:.2e}\n"
          f"the two runs with Octavo have {'the same bits' if same else 'different bits'}")
    write_svg(plot, {"PyTorch": other, "Octavo": losses}, f"Training loss; largest difference {largest:.2e}")
    return same


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=ATTENTION, default="octavo")
    parser.add_argument("--compare", action="store_true", help="train with both, whatever --attention is")
    parser.add_argument("--context-parallel", type=int, default=1, metavar="N",
                        help="divide each sequence among N processes")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("losses.svg"), metavar="FILE")
    sizes = dataclasses.asdict(Sizes())
    numbers = {"steps": 300, **sizes}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    given = parser.parse_args(arguments)
    for name in numbers:
        if getattr(given, name) < 1:
            parser.error(f"--{name} is {getattr(given, name)}; supported: 1 and above.")
    if given.width % given.heads:
        parser.error(f"--width is {given.width}; supported: multiples of --heads, which is {given.heads}.")
    if not given.plot.parent.is_dir():
        parser.error(f"--plot is {given.plot}; supported: a file in a folder that exists.")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, but PyTorch finds no GPU; supported here: auto and cpu.")
    ranks = given.context_parallel
    if ranks < 1 or (ranks > 1 and given.context % (2 * ranks)):
        parser.error(f"--context-parallel is {ranks}; supported: 1, and numbers whose double divides --context, "
                     f"which is {given.context}.")
    if ranks > 1 and (given.compare or given.attention != "octavo"):
        parser.error(f"--context-parallel is {ranks}; supported: 1 with --compare or --attention torch.")
    if given.device == "cuda" and torch.cuda.device_count() < ranks:
        parser.error(f"--context-parallel is {ranks}; supported: 1 to the {torch.cuda.device_count()} GPUs here.")
    if given.device == "auto":
        given.device = "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= ranks else "cpu"
    torch.use_deterministic_algorithms(True)  # for PyTorch's own operations
    settings = (Sizes(**{name: getattr(given, name) for name in sizes}), given.steps, given.device,
                given.seed)
    if ranks > 1:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(run_rank, (ranks, folder + "/store", given.plot, *settings), ranks)
        return 0
    if given.compare:
        return 0 if compare(given.plot, *settings) else 1
    losses, _ = train(given.attention, *settings)
    write_svg(given.plot, {given.attention: losses}, "Training loss")
    return 0


if __name__ == "__main__":
    sys.exit(main())
