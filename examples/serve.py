#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves requests with a small Llama by continuous batching, over Octavo's paged KV cache.

    python examples/serve.py                                  # Octavo's caches beside PyTorch
    python examples/serve.py --caches native --show           # prints what the model wrote
    python examples/serve.py --requests 256 --batch 64        # on a GPU: in bfloat16

Requests have prompts and answers of different lengths. As soon as one is answered, the next one takes
its place: its prompt is computed at once, and from then on it gets a token in each step, together with all
other requests of the batch. K and V are in pages that any sequence may take (octavo.KvCache), in the type
of the model, in 8 or in 4 bits. PyTorch's scaled_dot_product_attention does the same over tensors that have
room for the longest sequence in every place of the batch.

The model is trained first, for a minute on a CPU, on Python's language reference; nothing is downloaded.
The table has tokens per second, the bytes of K and V per token, and how often a run chooses the token
that PyTorch chooses, given the same tokens before it.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import time
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import octavo

PAGE = 16  # tokens of a page
GROUP = 32  # int4: channels that share a scale and a zero


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 256  # the longest sequence

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


# ------------------------------------------------------------------------------------------- the model


def rotated(x: Tensor, places: Tensor) -> Tensor:
    """The rotary embedding of x (batch, heads, tokens, head_dim) at places (batch, tokens)."""
    half = x.shape[3] // 2
    frequencies = 10000 ** (-torch.arange(half, device=x.device) / half)
    angles = places[:, None, :, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().split(half, 3)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), 3).to(x.dtype)


class Block(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.norm1, self.norm2 = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim, bias=False)
        self.project = nn.Linear(sizes.width, sizes.width, bias=False)
        self.gate = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.up = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.down = nn.Linear(3 * sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor, places: Tensor, attend) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(2, (-1, self.sizes.head_dim)).transpose(1, 2)
        q, k, v = heads.split((self.sizes.heads, self.sizes.kv_heads, self.sizes.kv_heads), 1)
        out = attend(rotated(q, places), rotated(k, places), v)
        x = x + self.project(out.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, sizes: Sizes, vocabulary: int):
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, places: Tensor, attend) -> Tensor:
        """Logits of tokens (batch, tokens) at places; attend(layer, q, k, v) is the attention."""
        x = self.embed(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, places, lambda q, k, v, layer=layer: attend(layer, q, k, v))
        return self.head(self.norm(x))


def load_text() -> tuple[str, list[str]]:
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return text, sorted(set(text))


def trained(sizes: Sizes, text: Tensor, vocabulary: int, steps: int) -> Llama:
    torch.manual_seed(0)
    model = Llama(sizes, vocabulary).to(text.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    length = min(96, sizes.context)
    places = torch.arange(length, device=text.device)[None]
    for step in range(1, steps + 1):
        first = torch.randint(len(text) - length, (16, 1), device=text.device)
        window = text[first + torch.arange(length + 1, device=text.device)]
        with torch.autocast(text.device.type, torch.bfloat16, enabled=text.is_cuda):
            logits = model(window[:, :-1], places,
                           lambda layer, q, k, v: octavo.attention(q, k, v, causal=True))
        loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps:
            print(f"training  step {step:4}  loss {loss.item():.3f}", flush=True)
    return model.to(torch.bfloat16) if text.is_cuda else model


# ---------------------------------------------------------------------------------------------- caches


class PagedCache:
    """Octavo's cache: one octavo.KvCache per layer, whose sequences have the same pages."""

    def __init__(self, sizes: Sizes, batch: int, dtype: str, device: str):
        self.pages = batch * sizes.context // PAGE * 2 // 3  # most sequences are not the longest
        self.reserved = {}
        self.layers = [octavo.KvCache(self.pages, sizes.kv_heads, sizes.head_dim, page_size=PAGE, dtype=dtype,
                                      max_batch=batch, group=GROUP, device=device) for _ in range(sizes.layers)]
        value_bytes = {"float32": 4, "bfloat16": 2, "int4": 0.5}.get(dtype, 1)
        # A row of a head has a float32 scale in 8 bits, and a float16 scale and zero per group in 4.
        scales = {"float32": 0, "bfloat16": 0, "int4": 4 * sizes.head_dim // GROUP}.get(dtype, 4)
        self.bytes_per_token = int(2 * sizes.layers * sizes.kv_heads * (sizes.head_dim * value_bytes + scales))

    def fits(self, tokens: int) -> bool:
        return sum(self.reserved.values()) + -(-tokens // PAGE) <= self.pages

    def add(self, tokens: int) -> int:
        """A new sequence, which will have so many tokens."""
        sequence = {cache.add_sequence() for cache in self.layers}.pop()
        self.reserved[sequence] = -(-tokens // PAGE)
        return sequence

    def free(self, sequence: int) -> None:
        del self.reserved[sequence]
        for cache in self.layers:
            cache.free_sequence(sequence)

    def select(self, sequences: list[int], places: Tensor) -> None:
        for cache in self.layers:
            cache.select(sequences)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers[layer].append(k, v)
        return self.layers[layer].attention(q, causal="bottom_right")


class DenseCache:
    """The same with PyTorch: room for the longest sequence in every place of the batch."""

    def __init__(self, sizes: Sizes, batch: int, dtype: torch.dtype, device: str):
        shape = (2, sizes.layers, batch, sizes.kv_heads, sizes.context, sizes.head_dim)
        self.kv = torch.zeros(shape, dtype=dtype, device=device)
        self.unused = list(range(batch))
        self.bytes_per_token = 2 * sizes.layers * sizes.kv_heads * sizes.head_dim * dtype.itemsize

    def fits(self, tokens: int) -> bool:
        return bool(self.unused)

    def add(self, tokens: int) -> int:
        return self.unused.pop()

    def free(self, sequence: int) -> None:
        self.unused.append(sequence)

    def select(self, sequences: list[int], places: Tensor) -> None:
        self.rows = torch.tensor(sequences, device=self.kv.device)[:, None]
        self.places, self.used = places, int(places.max()) + 1
        keys = torch.arange(self.used, device=self.kv.device)
        self.mask = keys <= places[:, None, :, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for cache, new in zip(self.kv[:, layer], (k, v)):
            cache[self.rows, :, self.places] = new.transpose(1, 2)
        k, v = (cache[self.rows[:, 0], :, :self.used] for cache in self.kv[:, layer])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, enable_gqa=True)


# --------------------------------------------------------------------------------------------- serving


@dataclasses.dataclass
class Request:
    prompt: list[int]
    wanted: int  # tokens of the answer
    answer: list[int] = dataclasses.field(default_factory=list)  # the token chosen in each step
    forced: list[int] | None = None  # tokens that follow, whatever is chosen
    sequence: int = -1

    def tokens(self) -> list[int]:
        """The prompt and what follows it."""
        return self.prompt + (self.forced[:len(self.answer)] if self.forced else self.answer)


@torch.no_grad()
def step(model: Llama, cache, requests: list[Request]) -> None:
    """Computes the tokens of the requests that the cache does not have yet, and chooses the next ones.

    They are the prompt of one request, or one token each of several.
    """
    device = model.head.weight.device
    new = [r.tokens()[-1:] if r.answer else r.tokens() for r in requests]
    tokens = torch.tensor(new, device=device)
    first = torch.tensor([len(r.tokens()) - len(n) for r, n in zip(requests, new)], device=device)
    places = first[:, None] + torch.arange(tokens.shape[1], device=device)
    cache.select([r.sequence for r in requests], places)
    chosen = model(tokens, places, cache.attend)[:, -1].argmax(1).tolist()
    for request, token in zip(requests, chosen):
        request.answer.append(token)


def serve(model: Llama, cache, requests: list[Request], batch: int) -> float:
    """Answers all requests, at most `batch` at once; returns the seconds."""
    waiting, running = collections.deque(requests), []
    start = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < batch:
            tokens = len(waiting[0].prompt) + waiting[0].wanted
            if not cache.fits(tokens):
                break
            request = waiting.popleft()
            request.sequence = cache.add(tokens)
            step(model, cache, [request])
            running.append(request)
        unfinished = [r for r in running if len(r.answer) < r.wanted]
        for request in running:
            if len(request.answer) == request.wanted:
                cache.free(request.sequence)
        running = unfinished
        if running:
            step(model, cache, running)
    return time.perf_counter() - start


def drawn_requests(text: Tensor, count: int, context: int) -> list[Request]:
    """Requests whose prompts are parts of the text, of different lengths."""
    draw = torch.Generator().manual_seed(1)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    requests = []
    for _ in range(count):
        length = number(context // 16, context * 5 // 8)
        first = number(0, len(text) - length)
        requests.append(Request(text[first:first + length].tolist(), number(context // 16, context * 3 // 8)))
    return requests


def again(requests: list[Request], answers: list[list[int]] | None = None) -> list[Request]:
    """The same requests, to be answered again; if answers are given, with these tokens behind the prompts."""
    forced = answers or [None] * len(requests)
    return [Request(r.prompt, r.wanted, forced=f) for r, f in zip(requests, forced)]


def agreement(requests: list[Request], answers: list[list[int]]) -> float:
    pairs = [pair for r, answer in zip(requests, answers) for pair in zip(r.answer, answer)]
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def run(sizes: Sizes, caches: list[str], count: int, batch: int, train_steps: int, device: str,
        show: bool = False) -> list[tuple[str, float, int, float]]:
    """Rows of the table: name, tokens per second, bytes per token, agreement with PyTorch."""
    text, characters = load_text()
    numbers = {character: i for i, character in enumerate(characters)}
    text = torch.tensor([numbers[character] for character in text], device=device)
    model = trained(sizes, text, len(characters), train_steps).eval()
    dtype = model.head.weight.dtype
    makers = {"PyTorch": lambda: DenseCache(sizes, batch, dtype, device)}
    for name in caches:
        of_cache = str(dtype).removeprefix("torch.") if name == "native" else name
        makers[f"Octavo {of_cache}"] = lambda t=of_cache: PagedCache(sizes, batch, t, device)
    requests = drawn_requests(text.cpu(), count, sizes.context)
    total = sum(r.wanted for r in requests)
    answers, rows = None, []
    for name, make in makers.items():
        serve(model, make(), again(requests[:2 * batch]), batch)  # warm
        free = again(requests)
        seconds = serve(model, make(), free, batch)
        answers = answers or [r.answer for r in free]
        forced = again(requests, answers)
        cache = make()
        serve(model, cache, forced, batch)
        rows.append((name, total / seconds, cache.bytes_per_token, agreement(forced, answers)))
        if show:
            for r in free[:3]:
                print(f"\n--- {name}: {''.join(characters[t] for t in r.prompt[-60:])!r} ->\n"
                      + "".join(characters[t] for t in r.answer))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--caches", default="native,float8_e4m3fn,int8,int4", help="types of Octavo's cache")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16, help="the most requests at once")
    parser.add_argument("--train-steps", type=int, default=300)
    parser.add_argument("--show", action="store_true", help="print some answers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for field in dataclasses.fields(Sizes):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=field.default)
    given = parser.parse_args()
    sizes = Sizes(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Sizes)})
    rows = run(sizes, given.caches.split(","), given.requests, given.batch, given.train_steps, given.device,
               given.show)
    print(f"\n{'cache':22} {'tokens/s':>9} {'bytes/token':>12} {'agreement':>10}")
    for name, speed, size, same in rows:
        print(f"{name:22} {speed:9.0f} {size:12} {same:10.4f}")


if __name__ == "__main__":
    main()
