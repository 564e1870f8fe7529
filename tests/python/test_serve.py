# SPDX-License-Identifier: Apache-2.0
"""examples/serve.py: continuous batching over Octavo's paged cache chooses the tokens that PyTorch chooses."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
import serve  # noqa: E402

TINY = serve.Sizes(layers=2, heads=4, kv_heads=2, head_dim=32, context=64)


@pytest.fixture(scope="module")
def served():
    """A model whose tokens depend on attention, requests, and PyTorch's answers."""
    torch.manual_seed(0)
    model = serve.Llama(TINY, 64).eval()
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.2)
    text = torch.randint(64, (2000,), generator=torch.Generator().manual_seed(2))
    requests = serve.drawn_requests(text, 10, TINY.context)
    serve.serve(model, serve.DenseCache(TINY, 4, torch.float32, "cpu"), requests, 4)
    assert all(len(r.answer) == r.wanted for r in requests)
    return model, requests, [r.answer for r in requests]


def answered(served, cache, forced=False):
    model, requests, answers = served
    mine = serve.again(requests, answers if forced else None)
    serve.serve(model, cache, mine, 4)
    return mine


def test_native_cache_writes_the_answers_of_pytorch(served):
    cache = serve.PagedCache(TINY, 4, "float32", "cpu")
    assert [r.answer for r in answered(served, cache)] == served[2]
    assert not cache.reserved and all(layer.free_pages == cache.pages for layer in cache.layers)


def test_answers_of_a_batch_are_those_of_each_request_alone(served):
    model, requests, answers = served
    for request, answer in list(zip(requests, answers))[:3]:
        alone = serve.again([request])
        serve.serve(model, serve.PagedCache(TINY, 4, "float32", "cpu"), alone, 1)
        assert alone[0].answer == answer


@pytest.mark.parametrize("dtype, smaller, least", [("float8_e4m3fn", 2, 0.8), ("int8", 2, 0.8), ("int4", 6, 0.6)])
def test_quantized_caches_mostly_choose_the_same_tokens(served, dtype, smaller, least):
    """The model is not trained, so that many tokens are almost as likely as the chosen one."""
    cache = serve.PagedCache(TINY, 4, dtype, "cpu")
    assert cache.bytes_per_token < serve.PagedCache(TINY, 4, "float32", "cpu").bytes_per_token / smaller
    forced = answered(served, cache, forced=True)
    assert serve.agreement(forced, served[2]) > least


def test_attention_to_other_keys_is_noticed(served, monkeypatch):
    def of_a_window(self, layer, q, k, v):
        self.layers[layer].append(k, v)
        return self.layers[layer].attention(q, causal="bottom_right", window=(3, 0))

    monkeypatch.setattr(serve.PagedCache, "attend", of_a_window)
    forced = answered(served, serve.PagedCache(TINY, 4, "float32", "cpu"), forced=True)
    assert serve.agreement(forced, served[2]) < 0.8
