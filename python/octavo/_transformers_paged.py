# SPDX-License-Identifier: Apache-2.0
"""Attention over the paged cache of transformers' continuous batching."""

from __future__ import annotations

import inspect

import torch

import octavo

# Features beyond attention, by the names of transformers, that are served here.
SERVED = ("softcap", "s_aux", "sliding_window")


def _updated(cache, layer, key, value, arguments):
    """K and V of the batch as (1, H, tokens, D), after the cache has stored the new ones.

    Newer versions take all arguments, and replace those that differ from layer to layer.
    """
    if "kwargs" in inspect.signature(cache.update).parameters:
        return cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=arguments)
    key, value = cache.update(key_states=key, value_states=value, layer_idx=layer,
                              read_index=arguments["read_index"], write_index=arguments["write_index"])
    return key.transpose(0, 1)[None], value.transpose(0, 1)[None]


def _of_layer(given, window):
    """An argument that models with several types of layers give for each type."""
    if not isinstance(given, dict):
        return given
    return given["full_attention" if window is None else "sliding_attention"]


def _longest(arguments, side, window):
    """The length of the longest sequence; its name depends on the version."""
    name = next(n for n in (f"max_length_{side}", f"max_seqlen_{side}") if n in arguments)
    return int(_of_layer(arguments[name], window))


def attention(module, query, key, value, cache, scaling, causal, arguments):
    """Attention of a batch of continuous batching, as (1, tokens, H, D).

    Tokens of all sequences follow one another, as in a varlen batch. The mask, if transformers makes
    one, says the same as the lengths and is not needed.
    """
    arguments = dict(arguments)
    window = arguments.get("sliding_window")
    key, value = _updated(cache, module.layer_idx, key, value, arguments)
    options = {"causal": "bottom_right"} if causal else {}
    if window is not None:
        options["window"] = (window - 1, -1)
    if arguments.get("softcap") is not None:
        options["softcap"] = arguments["softcap"]
    if arguments.get("s_aux") is not None:
        options["sinks"] = arguments["s_aux"].float()
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    out = octavo.attention(
        query, key, value, scale=scaling,
        cu_seqlens_q=arguments["cu_seq_lens_q"].to(torch.int32),
        cu_seqlens_kv=_of_layer(arguments["cu_seq_lens_k"], window).to(torch.int32),
        max_seqlen_q=_longest(arguments, "q", window), max_seqlen_kv=_longest(arguments, "k", window),
        **options)
    return out[None]
