"""Octavo in Hugging Face models.

    octavo.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="octavo")

Layers without a mask tensor (encoders without padding, causal decoders) run on Octavo. The others
give the same result by a fallback, which octavo.torch.fallbacks() counts by reason: layers with a
padding mask use "sdpa"; features that "sdpa" ignores (sinks, softcap, ...) use plain PyTorch
operations or the model's own "eager" function. Anything else raises NotImplementedError.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .torch import count_fallback, sdpa

__all__ = ["attention_forward", "register"]

# Features that plain_attention() implements and some version of "sdpa" ignores.
_EXTRAS = ("softcap", "position_bias", "s_aux", "head_mask", "sliding_window", "output_attentions")
# Arguments that reach an attention function and do not affect its result.
_IGNORED = frozenset((
    "cache_position", "deterministic", "input_ids", "inputs_embeds", "labels", "layer_idx",
    "logits_to_keep", "max_length_k", "max_length_q", "mm_token_type_ids", "num_items_in_batch",
    "output_hidden_states", "output_router_logits", "past_key_value", "past_key_values",
    "position_embeddings", "position_ids", "return_dict", "token_type_ids", "use_cache"))
# Starts of varlen sequences; they can be ignored if a mask tensor is given as well.
_VARLEN = ("cu_seq_lens_q", "cu_seq_lens_k")


def _repeat_kv(key, heads):
    return key if key.shape[1] == heads else key.repeat_interleave(heads // key.shape[1], 1)


def _implicit_mask(query, key, causal, sliding_window):
    """The mask without a mask tensor: True for visible keys; None if all are visible."""
    if not causal and sliding_window is None:
        return None
    rows, keys = query.shape[2], key.shape[2]
    # As in "sdpa": a single query is aligned with the last key, several with the first.
    first = keys - 1 if rows == 1 else 0
    ahead = (torch.arange(keys, device=query.device)[None, :] - first
             - torch.arange(rows, device=query.device)[:, None])
    seen = ahead <= 0
    return seen if sliding_window is None else seen & (ahead > -sliding_window)


def plain_attention(query, key, value, mask=None, dropout=0.0, scaling=None, causal=False,
                    softcap=None, position_bias=None, s_aux=None, head_mask=None,
                    sliding_window=None):
    """Attention by plain operations with all extras: (output as (B, H, S, D), P)."""
    heads = query.shape[1]
    key, value = _repeat_kv(key, heads), _repeat_kv(value, heads)
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    scores = (query @ key.transpose(2, 3)).float() * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if position_bias is not None:
        scores = scores + position_bias
    if mask is None:
        mask = _implicit_mask(query, key, causal, sliding_window)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
    elif mask is not None:
        scores = scores + mask
    if s_aux is not None:  # a key with V = 0 that every query attends to
        sinks = s_aux.float().reshape(1, -1, 1, 1).expand(query.shape[0], -1, query.shape[2], 1)
        p = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    else:
        p = scores.softmax(-1)
    p = p.to(value.dtype)
    if head_mask is not None:
        p = p * head_mask
    if dropout:
        p = F.dropout(p, dropout)
    return p @ value, p


def _eager(module, query, key, value, mask, dropout, scaling, causal, kwargs, name):
    """Calls the model's own function, for an argument that this module does not know."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise NotImplementedError(
            f"{name} is given to a layer of {type(module).__name__}; supported: "
            f"{', '.join(_EXTRAS)}, and what the model's own eager_attention_forward takes.")
    if mask is None:
        mask = _implicit_mask(query, key, causal, kwargs.get("sliding_window"))
        mask = mask if mask is None else mask[None, None]
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest)
    return eager(module, query, key, value, mask, scaling=scaling, dropout=dropout, **kwargs)


def _requested_features(query, key, mask, causal, kwargs):
    """Names of the requested features beyond attention: those in _EXTRAS, and others."""
    extras, others = [], []
    for name, given in kwargs.items():
        if given is None or given is False or name in _IGNORED:
            continue
        if name == "sliding_window":
            # A mask tensor already contains the window, and shorter sequences lie within it.
            if mask is not None or key.shape[2] <= given:
                continue
            if not causal and query.shape[2] > 1:
                raise NotImplementedError(
                    f"sliding_window is {given} in a layer that is not causal, for "
                    f"{key.shape[2]} keys without a mask tensor; supported: a mask tensor.")
        if name in _VARLEN and (mask is not None or given.numel() <= 2):
            continue
        (extras if name in _EXTRAS else others).append(name)
    return extras, others


def attention_forward(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None,
                      is_causal=None, **kwargs):
    """The attention function that transformers calls: (output as (B, S, H, D), P or None)."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # A single query attends to every key, as in a decoding step. Several queries start at the first key.
    causal = query.shape[2] > 1 and is_causal
    cache = kwargs.get("cache")
    if cache is not None:  # a paged cache: "sdpa" reads it by arguments of its own
        refused = [name for name in _EXTRAS if name != "sliding_window" and kwargs.get(name)]
        if refused:
            raise NotImplementedError(f"{refused[0]} is given with a paged cache; supported: None.")
        count_fallback("cache is given")
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                      scaling=scaling, is_causal=is_causal, **kwargs)
    extras, others = _requested_features(query, key, attention_mask, causal, kwargs)
    if others:
        count_fallback(f"{others[0]} is given")
        return _eager(module, query, key, value, attention_mask, dropout, scaling, causal, kwargs,
                      others[0])
    if extras:
        count_fallback(f"{extras[0]} is given")
        given = {name: kwargs[name] for name in extras if name != "output_attentions"}
        out, p = plain_attention(query, key, value, attention_mask, dropout, scaling, causal, **given)
        return out.transpose(1, 2).contiguous(), p if "output_attentions" in extras else None
    if attention_mask is not None:
        count_fallback("attention_mask is a tensor")
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                      scaling=scaling, is_causal=is_causal)
    out = sdpa(query, key, value, dropout_p=dropout, is_causal=causal, scale=scaling,
               enable_gqa=query.shape[1] != key.shape[1])
    return out.transpose(1, 2).contiguous(), None


def register(name: str = "octavo", context_parallel=None, sharding: str = "zigzag") -> None:
    """Registers Octavo as attn_implementation=name.

    With context_parallel, a ProcessGroup or a DeviceMesh, models get one shard of each sequence per rank
    (docs/context_parallel.md).
    """
    if context_parallel is not None:
        from . import _transformers_parallel

        return _transformers_parallel.register(name, context_parallel, sharding)
    AttentionInterface.register(name, attention_forward)
    try:
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError:  # before 4.53 models create masks only for "sdpa" and eager attention
        return
    # Use the mask of "sdpa", which is None if the mask would be only causal or empty.
    AttentionMaskInterface.register(name, sdpa_mask)
