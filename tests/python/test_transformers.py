"""Hugging Face models with random weights, by octavo and by sdpa, on the CPU."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import octavo.torch  # noqa: E402
import octavo.transformers  # noqa: E402
from huggingface import decoder, encoder, logits_of  # noqa: E402


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


def test_the_model_does_call_octavo(monkeypatch):
    calls = []
    original = octavo.torch._plain_sdpa
    monkeypatch.setattr(octavo.torch, "_plain_sdpa", lambda *a: calls.append(1) or original(*a))
    logits_of(decoder, "octavo", "cpu", torch.float32)
    assert len(calls) == 2  # one for each layer


def test_generation_with_a_cache():
    tokens = []
    for name in ("octavo", "sdpa"):
        model = decoder(name).eval()
        inputs = torch.arange(1, 13).reshape(1, 12)
        tokens.append(model.generate(inputs, max_new_tokens=8, do_sample=False, pad_token_id=0))
    assert torch.equal(*tokens)
    assert octavo.torch.fallbacks() == {}


@pytest.mark.parametrize("make", [decoder, encoder])
def test_padding_falls_back_visibly(make):
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    with pytest.warns(octavo.torch.FallbackWarning, match="attention_mask"):
        ours = logits_of(make, "octavo", "cpu", torch.float32, attention_mask=mask)
    theirs = logits_of(make, "sdpa", "cpu", torch.float32, attention_mask=mask)
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=1e-5, rtol=1e-5)
    assert octavo.torch.fallbacks() == {"attention_mask is a tensor": 2}


def test_training_falls_back_and_has_gradients():
    model = decoder("octavo").train()
    inputs = torch.arange(1, 13).reshape(1, 12)
    with pytest.warns(octavo.torch.FallbackWarning, match="gradient"):
        model(inputs, labels=inputs).loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
