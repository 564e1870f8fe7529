# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of transformers over its paged cache: octavo against eager attention, on the CPU."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import huggingface  # noqa: E402
import octavo.torch  # noqa: E402
import octavo.transformers  # noqa: E402
from octavo import _transformers_paged  # noqa: E402

ContinuousBatchingConfig = getattr(transformers, "ContinuousBatchingConfig", None)
if ContinuousBatchingConfig is None:
    pytest.skip("this version of transformers has no ContinuousBatchingConfig", allow_module_level=True)

FIELDS = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
# Versions with this field accept "sdpa" and flash attention, the others every name behind "paged|".
ONLY_KNOWN_NAMES = "auto_switch_to_flash" in FIELDS
NAME = "sdpa" if ONLY_KNOWN_NAMES else "octavo"
PROMPTS = [list(range(1, 14)), [7, 8], [20] * 9, list(range(1, 30))]


@pytest.fixture(autouse=True)
def registered():
    """Puts Octavo under NAME, and what was there back."""
    interface = transformers.AttentionInterface._global_mapping
    masks = octavo.transformers.theirs.AttentionMaskInterface._global_mapping
    kept = [(mapping, dict(mapping)) for mapping in (interface, masks)]
    octavo.transformers.register(NAME)
    octavo.torch.reset_fallbacks()
    yield
    for mapping, before in kept:
        mapping.clear()
        mapping.update(before)


def generated(model_name, implementation):
    """Tokens that a model appends to PROMPTS, of which 24 at most are computed at once."""
    model = getattr(huggingface, model_name)(implementation).eval()
    given = {"num_blocks": 64, "max_batch_tokens": 24,
             "page_size" if "page_size" in FIELDS else "block_size": 16}
    if ONLY_KNOWN_NAMES:
        given["auto_switch_to_flash"] = False
    greedy = transformers.GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=None,
                                           pad_token_id=0)
    results = model.generate_batch(PROMPTS, generation_config=greedy,
                                   continuous_batching_config=ContinuousBatchingConfig(**given))
    by_prompt = {tuple(result.prompt_ids): result.generated_tokens for result in results.values()}
    return [by_prompt[tuple(prompt)] for prompt in PROMPTS]


# The newest versions do not let Gemma 2 (softcap) and gpt-oss (sinks) have "sdpa".
@pytest.mark.parametrize("name", ["decoder", "mistral"] + ([] if ONLY_KNOWN_NAMES else ["gemma2", "gpt_oss"]))
def test_generates_the_tokens_of_eager_attention(name, monkeypatch):
    served = []

    def attention(*arguments):
        served.append(arguments)
        return of_package(*arguments)

    of_package = _transformers_paged.attention
    monkeypatch.setattr(_transformers_paged, "attention", attention)
    ours = generated(name, NAME)
    assert served and octavo.torch.fallbacks() == {}
    assert all(len(tokens) == 12 for tokens in ours)
    assert ours == generated(name, "paged|eager")


class CacheOfOneSequence:
    """The cache of a batch of one sequence, whose keys are all new."""

    def update(self, key_states, value_states, layer_idx, read_index, write_index):
        return key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)


@pytest.mark.parametrize("given", [{"softcap": 1.5}, {"s_aux": torch.tensor([1.0, -0.5])},
                                   {"sliding_window": 3}])
def test_features_of_models(given):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 7, 16) for heads in (2, 1, 1))
    module = torch.nn.Module()
    module.layer_idx, module.is_causal = 0, True
    lengths = torch.tensor([0, 7], dtype=torch.int32)
    batch = dict(cu_seq_lens_q=lengths, cu_seq_lens_k={"full_attention": lengths, "sliding_attention": lengths},
                 max_length_q=7, max_length_k={"full_attention": 7, "sliding_attention": 7},
                 read_index=None, write_index=None)
    out, _ = octavo.transformers.attention_forward(module, q, k, v, None, cache=CacheOfOneSequence(), **batch,
                                                   **given)
    expected, _ = octavo.transformers.plain_attention(q, k, v, causal=True, **given)
    torch.testing.assert_close(out, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_other_features_are_refused():
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="position_bias is given with a paged cache; supported: softcap"):
        octavo.transformers.attention_forward(torch.nn.Module(), q, q, q, None, cache=CacheOfOneSequence(),
                                              position_bias=torch.zeros(1, 2, 3, 3))
