# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models on sequences that are divided among ranks: octavo.transformers.register(context_parallel=...).

Each rank gives the model its shard of the tokens, and their positions in the whole sequence as
position_ids. Layers are causal or not and may have a sliding window, softcap and sinks; all other features
are refused.
"""

from __future__ import annotations

import weakref

import torch
import transformers.masking_utils as theirs
from transformers import AttentionInterface

from .distributed import context_parallel, number_of_ranks, positions

_POSITIONS = ("position_ids are not octavo.distributed.positions({}, sharding={!r}) in a model with context_parallel; "
              "supported: these, without packed documents.")


def _closure(function, example):
    """The variables of `function` by their names, if it has the code of `example`; else nothing."""
    if getattr(function, "__code__", None) is not example.__code__:
        return {}
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}


class ParallelAttention:
    """The mask function and the attention function of one registered name."""

    def __init__(self, group, sharding):
        self.group, self.sharding = group, sharding
        self.checked = None  # the last position_ids, which all layers share

    def _check_positions(self, position_ids, rows):
        if position_ids is None or (self.checked is not None and self.checked() is position_ids):
            return
        ranks, _ = number_of_ranks(self.group)
        wanted = positions(rows * ranks, self.group, self.sharding, device=position_ids.device)
        if position_ids.shape[-1] != rows or not (position_ids == wanted).all():
            raise ValueError(_POSITIONS.format(rows * ranks, self.sharding))
        self.checked = weakref.ref(position_ids)

    def _pattern(self, function, rows):
        """(causal, window) of a mask function of transformers; window is -1 without one."""
        if function is theirs.causal_mask_function:
            return 1, -1
        if function is getattr(theirs, "bidirectional_mask_function", None):
            return 0, -1
        parts = _closure(function, theirs.and_masks()).get("mask_functions", ())
        if len(parts) == 2 and parts[1] is theirs.causal_mask_function:
            window = _closure(parts[0], theirs.sliding_window_overlay(1)).get("sliding_window")
            if window is not None:
                return 1, window - 1
        # The two parts of a zigzag shard look like two packed documents to transformers.
        if len(parts) == 2 and _closure(parts[0], theirs.packed_sequence_mask_function(None)):
            inner = _closure(parts[1], theirs.remap_positions_for_packed_sequence(None, None))
            if inner:
                self._check_positions(inner["position_ids"][0], rows)
                return self._pattern(inner["mask_function"], rows)
        raise NotImplementedError("a mask is neither causal nor a sliding window in a model with context_parallel; "
                                  "supported: these two, and none.")

    def mask(self, *, q_length, kv_length, mask_function, attention_mask=None, q_offset=0, use_vmap=False, **given):
        """Describes the mask to attention(): a tensor (1, 1, 1, 2) with (causal, window)."""
        if attention_mask is not None and not attention_mask.all():
            raise NotImplementedError("attention_mask has padding in a model with context_parallel; supported: "
                                      "sequences without padding.")
        if q_length != kv_length or use_vmap:
            raise NotImplementedError(
                f"{'a mask function of its own' if use_vmap else 'a KV cache with earlier tokens'} is given to a model "
                "with context_parallel; supported: training and prefill by causal masks and sliding windows.")
        return torch.tensor(self._pattern(mask_function, q_length)).reshape(1, 1, 1, 2)

    def attention(self, module, query, key, value, attention_mask=None, dropout=0.0, scaling=None,
                  is_causal=None, **given):
        """The attention function that transformers calls: (output as (B, S, H, D), None)."""
        from .transformers import _IGNORED

        self._check_positions(given.get("position_ids"), query.shape[2])
        window, softcap, sinks = (given.pop(name, None) for name in ("sliding_window", "softcap", "s_aux"))
        refused = [name for name, value in given.items()
                   if value is not None and value is not False and name not in _IGNORED]
        if dropout:
            refused.append("dropout")
        if attention_mask is not None and (attention_mask.dtype != torch.int64
                                           or tuple(attention_mask.shape) != (1, 1, 1, 2)):
            refused.append("a mask tensor")
        if refused:
            raise NotImplementedError(f"{refused[0]} is given to a layer of {type(module).__name__} with "
                                      "context_parallel; supported: causal attention, sliding windows, softcap and sinks.")
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        limit = None if window is None else window - 1
        if attention_mask is not None:
            causal, described = attention_mask.flatten().tolist()
            causal, limit = bool(causal), limit if described < 0 else described
        if limit is not None and not causal:
            raise NotImplementedError(f"sliding_window is {window} in a layer that is not causal, with "
                                      "context_parallel; supported: None there.")
        out = context_parallel(query, key, value, self.group, causal=causal, scale=scaling,
                               window=None if limit is None else (limit, None), sharding=self.sharding, softcap=softcap,
                               sinks=None if sinks is None else sinks.float())
        return out.transpose(1, 2).contiguous(), None


def register(name, group, sharding) -> None:
    attention = ParallelAttention(group, sharding)
    AttentionInterface.register(name, attention.attention)
    theirs.AttentionMaskInterface.register(name, attention.mask)
