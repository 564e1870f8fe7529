# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models with random weights on a GPU: octavo against eager attention, in FP16."""

import functools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU here", allow_module_level=True)

import huggingface  # noqa: E402
import octavo.torch  # noqa: E402
import octavo.transformers  # noqa: E402

DECODERS = ["decoder", "mistral", "qwen3", "gemma2", "gemma3", "gemma_wide", "gpt_oss", "llama4"]
ENCODERS = ["encoder", "modern_bert"]
TOKENS = torch.arange(1, 37, device="cuda").reshape(3, 12)


@pytest.fixture(autouse=True)
def registered():
    octavo.transformers.register()
    octavo.torch.reset_fallbacks()
    torch.manual_seed(1)


def padding(kind):
    """A 2D mask of three sequences of at most 12 tokens, 1 for tokens."""
    mask = torch.ones_like(TOKENS)
    rows = {"left": slice(0, 5), "right": slice(7, 12), "holes": slice(3, 6), "ones": slice(0, 0)}
    mask[1, rows[kind]] = 0
    return mask


@functools.cache
def evaluated(name, implementation):
    return getattr(huggingface, name)(implementation).to("cuda", torch.float16).eval()


def check(name, run, seen=None, fallbacks=None):
    """Compares run(model) of octavo with eager attention's. Both round to FP16 in other places."""
    with torch.no_grad():
        ours, theirs = (run(evaluated(name, implementation)) for implementation in ("octavo", "eager"))
    if seen is not None:
        ours, theirs = ours[seen.bool()], theirs[seen.bool()]
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
    assert octavo.torch.fallbacks() == (fallbacks or {})


@pytest.mark.parametrize("kind", [None, "ones", "left", "right", "holes"])
@pytest.mark.parametrize("name", DECODERS + ENCODERS)
def test_logits(name, kind):
    mask = padding(kind) if kind else None
    check(name, lambda model: model(TOKENS, attention_mask=mask).logits, mask)


# The logits of the first new token, as later ones follow from choices that a rounding may change.
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generation(name, cache):
    def run(model):
        made = model.generate(TOKENS, attention_mask=padding("left"), max_new_tokens=4, do_sample=False,
                              pad_token_id=0, eos_token_id=None, output_logits=True,
                              return_dict_in_generate=True, cache_implementation=cache, disable_compile=True)
        assert len(made.logits) == 4
        return made.logits[0]

    try:
        with torch.no_grad():
            run(evaluated(name, "eager"))
    except TypeError as error:  # transformers 5.17 itself, for chunked attention with a static cache
        assert "block_sequence_ids" in str(error)
        pytest.skip(f"transformers {transformers.__version__}: {error}")
    check(name, run)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_prefill_in_chunks(name, cache):
    mask = padding("left")

    def run(model):
        past = (transformers.DynamicCache(config=model.config) if cache == "dynamic"
                else transformers.StaticCache(config=model.config, max_cache_len=20))
        return torch.cat([model(TOKENS[:, begin:end], attention_mask=mask[:, :end],
                                past_key_values=past).logits
                          for begin, end in ((0, 4), (4, 10), (10, 11), (11, 12))], 1)

    check(name, run, mask)


@pytest.mark.parametrize("kind", ["ones", "left", "right"])
def test_t5(kind):
    mask = padding(kind)
    check("t5", lambda model: model(TOKENS, attention_mask=mask, decoder_input_ids=TOKENS[:, :7]).logits)


@pytest.mark.parametrize("kind", ["ones", "right"])
def test_whisper(kind):
    sound, mask = torch.randn(3, 8, 40, device="cuda", dtype=torch.float16), padding(kind)
    check("whisper", lambda model: model(sound, decoder_input_ids=TOKENS,
                                         decoder_attention_mask=mask).logits, mask)


def test_vit():
    images = torch.randn(2, 3, 16, 16, device="cuda", dtype=torch.float16)
    check("vit", lambda model: model(images).logits)


# These models compute attention in their own code, which must get the mask of "eager".
@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("kind", ["ones", "left"])
@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_models_without_the_attention_interface(name, kind):
    mask = padding(kind)
    check(name, lambda model: model(TOKENS, attention_mask=mask).logits, mask,
          {f"{name} does not use the attention interface of transformers": 1})
