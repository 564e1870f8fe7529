"""Hugging Face models with random weights: octavo against eager attention, on the CPU."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import huggingface  # noqa: E402
import octavo.torch  # noqa: E402
import octavo.transformers  # noqa: E402
from huggingface import decoder, encoder, logits_of  # noqa: E402

DECODERS = ["decoder", "mistral", "gemma2", "gemma3", "gpt_oss"]


@pytest.fixture(autouse=True)
def registered():
    octavo.transformers.register()
    octavo.torch.reset_fallbacks()


@pytest.mark.parametrize("make", [decoder, encoder])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_sdpa(make, dtype):
    ours, theirs = (logits_of(make, name, "cpu", dtype) for name in ("octavo", "sdpa"))
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    assert octavo.torch.fallbacks() == {}


# Features that sdpa ignores (sinks, softcap) must not be lost.
@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [*DECODERS, "encoder"])
def test_logits_are_those_of_eager(name, padded):
    make = getattr(huggingface, name)
    mask = torch.ones(2, 12, dtype=torch.long)
    if padded:
        mask[1, :5] = 0
    ours, theirs = (logits_of(make, one, "cpu", torch.float32, attention_mask=mask)
                    for one in ("octavo", "eager"))
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=2e-5, rtol=2e-5)


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("name, reason", [("gpt_oss", "s_aux is given"),
                                          ("gemma2", "softcap is given")])
def test_what_sdpa_lacks_is_counted(name, reason):
    logits_of(getattr(huggingface, name), "octavo", "cpu", torch.float32)
    assert octavo.torch.fallbacks() == {reason: 2}


def test_the_model_does_call_octavo(monkeypatch):
    calls = []
    original = octavo.torch._plain_sdpa
    monkeypatch.setattr(octavo.torch, "_plain_sdpa", lambda *a: calls.append(1) or original(*a))
    logits_of(decoder, "octavo", "cpu", torch.float32)
    assert len(calls) == 2  # one per layer


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_generation_with_a_cache(name, padded):
    scores = []
    for implementation in ("octavo", "eager"):
        model = getattr(huggingface, name)(implementation).eval()
        inputs = torch.arange(1, 25).reshape(2, 12)
        mask = torch.ones_like(inputs)
        if padded:
            mask[1, :4] = 0
        made = model.generate(inputs, attention_mask=mask, max_new_tokens=5, do_sample=False,
                              pad_token_id=0, output_logits=True, return_dict_in_generate=True)
        scores.append(torch.stack(made.logits))
    torch.testing.assert_close(*scores, atol=2e-5, rtol=2e-5)
    if name == "decoder" and not padded:
        assert octavo.torch.fallbacks() == {}


@pytest.mark.parametrize("make", [decoder, encoder])
def test_padding_falls_back_visibly(make):
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    with pytest.warns(octavo.torch.FallbackWarning, match="attention_mask"):
        logits_of(make, "octavo", "cpu", torch.float32, attention_mask=mask)
    assert octavo.torch.fallbacks() == {"attention_mask is a tensor": 2}


# gpt_oss has sinks, which fall back to plain operations.
@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("name, falls_back", [("decoder", False), ("gpt_oss", True)])
def test_training_has_the_gradients_of_eager(name, falls_back):
    gradients = []
    for implementation in ("octavo", "eager"):
        model = getattr(huggingface, name)(implementation)
        inputs = torch.arange(1, 13).reshape(1, 12)
        model(inputs, labels=inputs).loss.backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
    assert bool(octavo.torch.fallbacks()) == falls_back


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


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
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
    assert octavo.torch.fallbacks() == {"sliding_window is given": 2}
    call(Layer(), q, k, v, None, sliding_window=6)  # no key is outside it
    assert octavo.torch.fallbacks() == {"sliding_window is given": 2}


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
