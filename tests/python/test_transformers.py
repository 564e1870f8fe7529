# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models with random weights: octavo against eager attention, on the CPU."""

import functools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import huggingface  # noqa: E402
import octavo.torch  # noqa: E402
import octavo.transformers  # noqa: E402
from huggingface import decoder, encoder, logits_of  # noqa: E402

DECODERS = ["decoder", "mistral", "qwen3", "gemma2", "gemma3", "gemma_wide", "gpt_oss", "llama4"]
ENCODERS = ["encoder", "modern_bert"]
TOKENS = torch.arange(1, 37).reshape(3, 12)


@pytest.fixture(autouse=True)
def registered():
    octavo.transformers.register()
    octavo.torch.reset_fallbacks()


def padding(kind):
    """A 2D mask of three sequences of at most 12 tokens, 1 for tokens."""
    mask = torch.ones_like(TOKENS)
    if kind == "left":
        mask[1, :5] = 0
        mask[2, :11] = 0
    elif kind == "right":
        mask[1, 7:] = 0
        mask[2, 1:] = 0
    elif kind == "holes":
        mask[1, 3:6] = 0
        mask[2, ::2] = 0
    return mask


@functools.cache
def evaluated(name, implementation):
    """A model for tests that do not change it: to make one takes longer than to run it."""
    return getattr(huggingface, name)(implementation).eval()


def both(name, run):
    """The results of run(model) with octavo, which must not fall back, and with eager attention."""
    with torch.no_grad():
        results = [run(evaluated(name, implementation)) for implementation in ("octavo", "eager")]
    assert octavo.torch.fallbacks() == {}
    return results


def agree(results, seen=None):
    ours, theirs = results if seen is None else (one[seen.bool()] for one in results)
    torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=3e-5)


def in_chunks(model, mask, cache):
    """The logits of the tokens in four calls, which share a cache."""
    past = (transformers.DynamicCache(config=model.config) if cache == "dynamic"
            else transformers.StaticCache(config=model.config, max_cache_len=20))
    return torch.cat([model(TOKENS[:, begin:end], attention_mask=None if mask is None else mask[:, :end],
                            past_key_values=past).logits
                      for begin, end in ((0, 4), (4, 10), (10, 11), (11, 12))], 1)


@pytest.mark.parametrize("make", [decoder, encoder])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_sdpa(make, dtype):
    ours, theirs = (logits_of(make, name, "cpu", dtype) for name in ("octavo", "sdpa"))
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    assert octavo.torch.fallbacks() == {}


@pytest.mark.parametrize("kind", [None, "ones", "left", "right", "holes"])
@pytest.mark.parametrize("name", DECODERS + ENCODERS)
def test_logits_are_those_of_eager(name, kind):
    mask = padding(kind)
    agree(both(name, lambda model: model(TOKENS, attention_mask=mask if kind else None).logits), mask)


# Masks with elements: given by the caller, or made by transformers for packed sequences.
@pytest.mark.parametrize("kind", ["boolean", "numbers", "packed"])
@pytest.mark.parametrize("name", ["decoder", "gemma2"])
def test_masks_of_elements(name, kind):
    torch.manual_seed(2)
    seen = (torch.rand(3, 1, 12, 12) < 0.5) | torch.eye(12, dtype=torch.bool)

    def run(model):
        if kind == "packed":
            return model(TOKENS, position_ids=torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]]),
                         use_cache=False).logits
        lowest = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        boolean = kind == "boolean" and model.config._attn_implementation == "octavo"
        return model(TOKENS, attention_mask=seen if boolean else lowest).logits

    agree(both(name, run))


# On a GPU the host does not read the mask while it decodes, here it never does.
@pytest.mark.parametrize("kind", ["ones", "left", "right", "holes"])
@pytest.mark.parametrize("name", ["mistral", "gpt_oss", "encoder", "modern_bert"])
def test_masks_that_the_host_does_not_read(name, kind, monkeypatch):
    monkeypatch.setattr(octavo.transformers, "_readable", lambda *of: False)
    mask = padding(kind)
    agree(both(name, lambda model: model(TOKENS, attention_mask=mask).logits), mask)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", [None, "ones", "left"])
def test_caches_that_the_host_does_not_read(kind, cache, monkeypatch):
    monkeypatch.setattr(octavo.transformers, "_readable", lambda *of: False)
    agree(both("gemma3", lambda model: in_chunks(model, padding(kind) if kind else None, cache)),
          padding(kind))


def test_a_described_mask_is_no_tensor_of_the_scores(monkeypatch):
    seen = []
    original = octavo.attention
    monkeypatch.setattr(octavo, "attention", lambda *a, **options: seen.append(options) or original(*a, **options))
    with torch.no_grad():
        for kind in ("ones", "left", "right", "holes"):
            evaluated("mistral", "octavo")(TOKENS, attention_mask=padding(kind))
    plain, left, right, holes = seen[::2]
    assert plain == {"causal": "bottom_right", "window": (4, -1), "scale": plain["scale"]}
    assert left["leftpad_q"].tolist() == left["leftpad_kv"].tolist() == [0, 5, 11]
    assert right["seqlens_q"].tolist() == right["seqlens_kv"].tolist() == [12, 7, 1]
    assert "mask" not in left and "mask" not in right
    assert holes["mask"].shape == (3, 1, 1, 12)


def test_the_model_does_call_octavo(monkeypatch):
    calls = []
    original = octavo.torch._plain_sdpa
    monkeypatch.setattr(octavo.torch, "_plain_sdpa", lambda *a: calls.append(1) or original(*a))
    logits_of(decoder, "octavo", "cpu", torch.float32)
    assert len(calls) == 2  # one per layer


# Every model with padding on the left, and some without padding.
GENERATED = [(name, kind, cache) for name in DECODERS for kind in ("ones", "left") for cache in ("dynamic", "static")
             if kind == "left" or name in ("mistral", "llama4")]


# The 12 tokens pass the window of 5 and a chunk of 5, and 6 more are made.
@pytest.mark.parametrize("name, kind, cache", GENERATED)
def test_generation(name, kind, cache):
    def run(model):
        made = model.generate(TOKENS, attention_mask=padding(kind), max_new_tokens=6, do_sample=False,
                              pad_token_id=0, eos_token_id=None, output_logits=True,
                              return_dict_in_generate=True, cache_implementation=cache)
        return torch.stack(made.logits)

    agree(both(name, run))


@pytest.mark.parametrize("name, kind, cache", GENERATED)
def test_prefill_in_chunks(name, kind, cache):
    mask = padding(kind)
    agree(both(name, lambda model: in_chunks(model, mask, cache)), mask)


def test_generation_with_chunks_of_the_prompt():
    def run(model):
        made = model.generate(TOKENS, attention_mask=padding("left"), max_new_tokens=3, do_sample=False,
                              pad_token_id=0, output_logits=True, return_dict_in_generate=True,
                              prefill_chunk_size=5)
        return torch.stack(made.logits)

    agree(both("mistral", run))


@pytest.mark.parametrize("kind", ["ones", "left", "right"])
def test_t5(kind):
    mask = padding(kind)
    words = TOKENS[:, :7]
    agree(both("t5", lambda model: model(TOKENS, attention_mask=mask, decoder_input_ids=words).logits))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_t5_generation(cache):
    def run(model):
        made = model.generate(TOKENS, attention_mask=padding("right"), max_new_tokens=5, do_sample=False,
                              eos_token_id=None, output_logits=True, return_dict_in_generate=True,
                              cache_implementation=cache)
        return torch.stack(made.logits)

    agree(both("t5", run))


@pytest.mark.parametrize("kind", ["ones", "right"])
def test_whisper(kind):
    torch.manual_seed(1)
    sound, mask = torch.randn(3, 8, 40), padding(kind)
    agree(both("whisper", lambda model: model(sound, decoder_input_ids=TOKENS,
                                              decoder_attention_mask=mask).logits), mask)


def test_vit():
    torch.manual_seed(1)
    images = torch.randn(2, 3, 16, 16)
    agree(both("vit", lambda model: model(images).logits))


# These models compute attention in their own code, which must get the mask of "eager".
@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("kind", [None, "ones", "left"])
@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_models_without_the_attention_interface(name, kind):
    mask = padding(kind)
    with torch.no_grad():
        agree([evaluated(name, implementation)(TOKENS, attention_mask=mask if kind else None).logits
               for implementation in ("octavo", "eager")], mask)
    assert octavo.torch.fallbacks() == {f"{name} does not use the attention interface of transformers": 1}


# Compiled code makes tensors of masks. Masks that were described before remain so, as inputs of which
# new lengths need no new code.
def test_compiled_with_padding():
    from transformers.masking_utils import create_masks_for_generate

    torch._dynamo.reset()
    model, eager = (huggingface.gemma2(name).eval() for name in ("octavo", "eager"))
    compiled = torch.compile(model.forward, backend="eager", fullgraph=True)
    described = torch.compile(model.forward, backend="eager", fullgraph=True)
    with torch.no_grad():
        for kind in ("left", "right"):
            mask = padding(kind)
            wanted = eager(TOKENS, attention_mask=mask, use_cache=False).logits
            agree((compiled(TOKENS, attention_mask=mask, use_cache=False).logits, wanted), mask)
            masks = create_masks_for_generate(config=model.config, inputs_embeds=torch.zeros(3, 12, 1),
                                              attention_mask=mask, past_key_values=None)
            assert {type(one) for one in masks.values()} == {octavo.transformers.DescribedMask}
            agree((described(TOKENS, attention_mask=masks, use_cache=False).logits, wanted), mask)
    assert octavo.torch.fallbacks() == {}


# A mask that somebody reads is a tensor from then on, and may be written.
def test_masks_that_are_read():
    model = huggingface.decoder("octavo")
    from transformers.masking_utils import create_causal_mask

    embeds = torch.zeros(3, 12, 1)
    mask, wanted = (create_causal_mask(config=one.config, inputs_embeds=embeds,
                                       attention_mask=padding("left"), past_key_values=None)
                    for one in (model, huggingface.decoder("sdpa")))
    assert type(mask) is octavo.transformers.DescribedMask and mask.shape == wanted.shape
    assert mask.contiguous() is mask and mask.dtype == torch.bool
    q = torch.randn(3, 4, 12, 8)
    assert mask.options(q, q) is not None
    assert type(mask[:, :, 2:]) is torch.Tensor and torch.equal(mask[:, :, 2:], wanted[:, :, 2:])
    assert mask.options(q, q) is None
    mask[0, 0, 5, 3] = False
    wanted[0, 0, 5, 3] = False
    out = octavo.transformers.attention_forward(Layer(), q, q, q, mask)[0]
    rows = padding("left").bool()
    torch.testing.assert_close(out[rows], torch.nn.functional.scaled_dot_product_attention(
        q, q, q, attn_mask=wanted).transpose(1, 2)[rows])


@pytest.mark.parametrize("name, kind", [
    ("decoder", None), ("mistral", None), ("decoder", "right"), ("decoder", "left"), ("gpt_oss", None),
    ("gpt_oss", "right"), ("gemma2", None), ("gemma2", "left")])
def test_training_has_the_gradients_of_eager(name, kind):
    gradients = []
    mask = padding(kind) if kind else None
    for implementation in ("octavo", "eager"):
        model = getattr(huggingface, name)(implementation)
        # Padding tokens have no labels, and the token behind them is predicted from padding alone.
        labels = TOKENS if mask is None else TOKENS.masked_fill((mask == 0) | (mask.cumsum(1) <= 1), -100)
        model(TOKENS, attention_mask=mask, labels=labels).loss.backward()
        layer = model.model.layers[0].self_attn
        gradients.append([x.grad for x in (layer.q_proj.weight, getattr(layer, "sinks", None)) if x is not None])
    for one, other in zip(*gradients):
        assert one.abs().sum() > 0
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert len(gradients[0]) == (2 if name == "gpt_oss" else 1)
    assert octavo.torch.fallbacks() == {}


class Layer(torch.nn.Module):
    """An attention layer of a model whose module has an eager function or not."""

    is_causal = True
    num_key_value_groups = 1


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return [torch.randn(1, 2, 6, 8) for _ in range(3)]


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
def test_unknown_arguments_go_to_the_model_s_eager_function_or_are_refused(inputs, monkeypatch):
    call = octavo.transformers.attention_forward
    with pytest.raises(NotImplementedError, match="strange_extra is given to a layer of Layer"):
        call(Layer(), *inputs, None, strange_extra=3)
    seen = {}

    def eager(module, q, k, v, mask, scaling, dropout, **kwargs):
        seen.update(kwargs, mask=mask)
        return "eager"

    monkeypatch.setitem(globals(), "eager_attention_forward", eager)
    assert call(Layer(), *inputs, None, strange_extra=3) == "eager"
    assert seen["strange_extra"] == 3 and seen["mask"].dtype == torch.float32
    assert torch.equal(seen["mask"][0, 0] == 0, torch.ones(6, 6, dtype=torch.bool).tril())
    assert octavo.torch.fallbacks() == {"strange_extra is given": 2}


def test_a_window_that_no_mask_says(inputs):
    call = octavo.transformers.attention_forward
    q, k, v = inputs
    beyond = torch.arange(6)[None, :] - torch.arange(6)[:, None]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=(beyond <= 0) & (beyond > -3)).transpose(1, 2)
    torch.testing.assert_close(call(Layer(), q, k, v, None, sliding_window=3)[0], wanted)
    last = call(Layer(), q[:, :, -1:], k, v, None, sliding_window=3)[0]
    torch.testing.assert_close(last, wanted[:, -1:])
    with pytest.raises(NotImplementedError, match="sliding_window is 3 in a layer that is not causal"):
        call(Layer(), q, k, v, None, sliding_window=3, is_causal=False)
    call(Layer(), q, k, v, None, sliding_window=6)  # no key is outside it
    assert octavo.torch.fallbacks() == {}


def test_compiled_training(inputs):
    torch._dynamo.reset()
    layer, gradients = Layer(), []
    compiled = torch.compile(
        lambda q, k, v: octavo.transformers.attention_forward(layer, q, k, v, None, softcap=2.0)[0],
        backend="aot_eager", fullgraph=True)
    plain = lambda q, k, v: octavo.transformers.plain_attention(  # noqa: E731
        q, k, v, causal=True, softcap=2.0)[0].transpose(1, 2)
    for call in (compiled, plain):
        q = inputs[0].clone().requires_grad_()
        call(q, *inputs[1:]).square().sum().backward()
        gradients.append(q.grad)
    torch.testing.assert_close(*gradients)
    assert octavo.torch.fallbacks() == {}


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
def test_probabilities_are_given_where_asked_for():
    model = decoder("octavo").eval()
    wanted = decoder("eager").eval()
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        ours, theirs = (one(tokens, output_attentions=True).attentions for one in (model, wanted))
    if ours is None or ours[0] is None:
        pytest.skip("this version of transformers does not ask for them here")
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=1e-5)
