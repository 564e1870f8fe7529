"""Octavo in Hugging Face models.

    octavo.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="octavo")

Layers without a mask tensor (encoders without padding; decoders, causal) run on Octavo. Padding
masks, dropout in training and other extras go to the model's own "sdpa" way:
octavo.torch.fallbacks() counts them by reason.
"""

from __future__ import annotations

from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .torch import count_fallback, sdpa

__all__ = ["attention_forward", "register"]

# What a layer may ask for beside the plain attention, by the names it does so.
_EXTRAS = ("softcap", "position_bias", "s_aux", "cache", "head_mask")


def attention_forward(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None,
                      is_causal=None, **kwargs):
    """An attention function as transformers calls it: (output as (B, S, H, D), None)."""
    reason = None
    if attention_mask is not None:
        reason = "attention_mask is a tensor"
    else:
        for extra in _EXTRAS:
            if kwargs.get(extra) is not None:
                reason = f"{extra} is given"
    if reason is not None:
        count_fallback(reason)
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                      scaling=scaling, is_causal=is_causal, **kwargs)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # A single query sees every key, as in a step with a cache; else there is none before the first.
    causal = query.shape[2] > 1 and is_causal
    out = sdpa(query, key, value, dropout_p=dropout, is_causal=causal, scale=scaling,
               enable_gqa=query.shape[1] != key.shape[1])
    return out.transpose(1, 2).contiguous(), None


def register(name: str = "octavo") -> None:
    """Lets models take attn_implementation=name."""
    AttentionInterface.register(name, attention_forward)
    try:
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError:  # before 4.53 models make their masks by the name "sdpa" or eagerly
        return
    # The mask of "sdpa": none at all where causality or nothing is all it would say.
    AttentionMaskInterface.register(name, sdpa_mask)
