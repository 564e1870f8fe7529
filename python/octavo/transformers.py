# SPDX-License-Identifier: Apache-2.0
"""Octavo in Hugging Face models.

    octavo.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="octavo")

Models describe their masks to mask(), which turns them into lengths, causality and windows where it
can, and into a boolean tensor otherwise. attention_forward() computes attention with these and with
softcap, sinks and position bias, and their gradients. What Octavo does not serve (dropout, attention
weights as a result, ...) gives the same result by a fallback, which octavo.torch.fallbacks() counts by
reason. Anything else raises NotImplementedError.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

try:
    import transformers.masking_utils as theirs
except ImportError:  # before 4.53 models create masks only for "sdpa" and eager attention
    theirs = None

import octavo

from . import _transformers_paged
from .torch import _fallback_by_tensors, count_fallback, sdpa

__all__ = ["attention_forward", "mask", "register"]

# Features beyond attention that plain_attention() implements.
_EXTRAS = ("softcap", "position_bias", "s_aux", "head_mask", "sliding_window", "output_attentions")
# Those of them that Octavo serves.
_SERVED = ("softcap", "position_bias", "s_aux", "sliding_window")
# Arguments that reach an attention function and do not affect its result.
_IGNORED = frozenset((
    "cache_position", "deterministic", "input_ids", "inputs_embeds", "labels", "layer_idx",
    "logits_to_keep", "max_length_k", "max_length_q", "mm_token_type_ids", "num_items_in_batch",
    "output_hidden_states", "output_router_logits", "past_key_value", "past_key_values",
    "position_embeddings", "position_ids", "return_dict", "token_type_ids", "use_cache"))
# Starts of varlen sequences; they can be ignored if a mask tensor is given as well.
_VARLEN = ("cu_seq_lens_q", "cu_seq_lens_k")

# -------------------------------------------------------------------------------------------- masks


class DescribedMask(torch.Tensor):
    """A boolean mask (batch, 1, seqlen_q, seqlen_kv) that is described by options of octavo.attention.

    Its elements are computed when something other than attention_forward() reads them, e.g. a model
    that slices its masks. From then on it is the tensor of these elements, which may be written.
    """

    # Otherwise PyTorch would make the results of functions masks of this class, too.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, shape, device, options, make):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)

    def __init__(self, shape, device, options, make):
        self._options, self._make, self._made, self._read = options, make, None, False

    def options(self, query, key):
        """The options of octavo.attention, or None if the mask was read or is for other tensors."""
        fits = self.shape[2] == query.shape[2] and self.shape[3] == key.shape[2]
        return None if self._read or not fits else self._options

    def elements(self):
        if self._made is None:
            self._made = self._make()
        return self._made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        def read(mask):
            mask._read = True
            return mask.elements()

        arguments, named = tree_map_only(cls, read, (arguments, named or {}))
        return function(*arguments, **named)


def _parts(mask_function, example):
    """The functions that and_masks() combined, if mask_function has the code of `example`."""
    if getattr(mask_function, "__code__", None) is not example.__code__:
        return ()
    cells = dict(zip(mask_function.__code__.co_freevars, mask_function.__closure__ or ()))
    return cells["mask_functions"].cell_contents if "mask_functions" in cells else ()


def _number(function, example, name):
    """The variable of a closure with the code of `example`, or None."""
    if getattr(function, "__code__", None) is not example.__code__:
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    return cells[name].cell_contents if name in cells else None


def _pattern(mask_function, last_key):
    """(causal, window) of a mask function of transformers, or None for any other function."""
    if mask_function is theirs.causal_mask_function:
        return True, None
    if mask_function is getattr(theirs, "bidirectional_mask_function", None):
        return False, None
    parts = _parts(mask_function, theirs.and_masks())
    if len(parts) != 2:
        return None
    if parts[1] is theirs.causal_mask_function:
        window = _number(parts[0], theirs.sliding_window_overlay(1), "sliding_window")
        if window is not None:
            return True, (window - 1, -1)
        chunk = _number(parts[0], theirs.chunked_overlay(1, None), "chunk_size")
        # Within the first chunk a mask of chunks is only causal.
        return (True, None) if chunk is not None and last_key <= chunk else None
    if parts[1] is getattr(theirs, "bidirectional_mask_function", None):
        overlay = getattr(theirs, "sliding_window_bidirectional_overlay", None)
        window = overlay and _number(parts[0], overlay(1), "sliding_window")
        return (False, (window, window)) if window else None
    return None


def _readable(device, q_length):
    """Whether the host reads what the 2D mask holds.

    On a GPU this waits for it, as transformers' own masks do: once for each mask of a prefill, and
    never while decoding.
    """
    if device.type == "cuda":
        return q_length > 1 and not torch.cuda.is_current_stream_capturing()
    return True


def _used_keys(padding):
    """(begin, end, holes) of the True elements of each row; end is 0 and begin beyond it without any."""
    keys = padding.shape[1]
    positions = torch.arange(keys, device=padding.device)
    end = (padding * (positions + 1)).amax(1)
    begin = keys - (padding * (keys - positions)).amax(1)
    return begin, end, end - begin > padding.sum(1)


def _lengths(q_length, kv_length, shift, begin, end):
    """Lengths that align query i with key i + shift, where keys begin to end are no padding."""
    q_end = (end - shift).clamp(0, q_length)
    kv_end = (q_end + shift).clamp(0, kv_length)
    q_begin = torch.minimum((begin - shift).clamp(min=0), q_end)
    kv_begin = torch.minimum(begin, kv_end)
    return {"leftpad_q": q_begin.int(), "seqlens_q": (q_end - q_begin).int(),
            "leftpad_kv": kv_begin.int(), "seqlens_kv": (kv_end - kv_begin).int()}


def _described(pattern, batch, q_length, kv_length, shift, padding, device):
    """Options of octavo.attention for a mask; "keys" is the number of keys that are used.

    A causal query i attends to keys up to i + shift; shift is a tensor in a static cache on a GPU.
    padding: (batch, kv_length), True for keys, or None.
    """
    causal, window = pattern
    options = {"causal": "bottom_right"} if causal else {}
    if window is not None:
        options["window"] = window
    used = q_length + shift if causal else kv_length
    holes = None
    if padding is None:
        if isinstance(shift, int):
            return dict(options, keys=used)
        begin, end = torch.zeros(batch, dtype=torch.int64, device=device), used.reshape(1).expand(batch)
    else:
        begin, end, holes = _used_keys(padding)
        if isinstance(shift, int) and _readable(padding.device, q_length):
            unpadded = (begin == 0) & (end == used)
            unpadded, any_holes = torch.stack((unpadded.all(), holes.any())).tolist()
            if unpadded and not any_holes:
                return dict(options, keys=used)
            holes = holes if any_holes else None
    if holes is not None:
        options["mask"] = padding[:, None, None, :]
    lengths = _lengths(q_length, kv_length, shift, begin, end)
    if not causal and window is None:
        # The queries may be those of another sequence, whose padding is not known here.
        lengths = {"leftpad_kv": begin.int(), "seqlens_kv": (end - begin).clamp(min=0).int()}
    return dict(options, **lengths)


@torch.compiler.assume_constant_result
def _uses_the_interface(configuration):
    """False for models that compute attention by their own code, whatever is registered.

    configuration: the name of the module of the model's configuration.
    """
    name = configuration.replace(".configuration_", ".modeling_")
    return name not in sys.modules or hasattr(sys.modules[name], "ALL_ATTENTION_FUNCTIONS")


def mask(**given):
    """The mask function that transformers calls for attn_implementation="octavo"."""
    config = given.get("config")
    if config is not None and not _uses_the_interface(type(config).__module__):
        count_fallback(f"{config.model_type} does not use the attention interface of transformers")
        of_model = theirs.sdpa_mask if config._attn_implementation == "sdpa" else theirs.eager_mask
        return of_model(**given)
    padding, q_length, kv_length = (given.get(x) for x in ("attention_mask", "q_length", "kv_length"))
    q_offset, kv_offset = given.get("q_offset", 0), given.get("kv_offset", 0)
    # Traced code cannot read functions and numbers; older versions pass other arguments.
    if (torch.compiler.is_compiling() or q_length is None or not isinstance(kv_offset, int)
            or (padding is not None and type(padding) is not torch.Tensor)):
        return theirs.sdpa_mask(**given)
    # Some models join or change their masks and ask for the elements. Compiled decoding does, too.
    elements = not (given.get("allow_is_causal_skip", True) or given.get("allow_is_bidirectional_skip"))
    given = dict(given, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    pattern = _pattern(given["mask_function"], kv_offset + kv_length)
    if isinstance(q_offset, torch.Tensor) and _readable(q_offset.device, q_length):
        q_offset = int(q_offset)
    shift = q_offset - kv_offset
    aligned = isinstance(shift, int) and shift == 0 and q_length == kv_length
    if pattern is None or elements or (pattern[1] and not pattern[0] and not aligned):
        return theirs.sdpa_mask(**given)
    if padding is not None:
        padding = theirs.prepare_padding_mask(padding, kv_length, kv_offset)
        padding = padding[:, kv_offset:kv_offset + kv_length]
    batch, device = given["batch_size"], torch.device(given.get("device", "cpu"))
    options = _described(pattern, batch, q_length, kv_length, shift, padding, device)
    # Without a mask attention_forward() takes a single query as the last one, and several as all.
    if pattern[1] is None and options.get("keys") == kv_length and q_length in (1, kv_length):
        return None
    return DescribedMask((batch, 1, q_length, kv_length), device, options,
                         lambda: theirs.sdpa_mask(**given))


# ---------------------------------------------------------------------------------------- fallbacks


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
    mask = mask.elements() if isinstance(mask, DescribedMask) else mask
    if mask is None:
        mask = _implicit_mask(query, key, causal, kwargs.get("sliding_window"))
        mask = mask if mask is None else mask[None, None]
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest)
    return eager(module, query, key, value, mask, scaling=scaling, dropout=dropout, **kwargs)


def _fallback(module, query, key, value, mask, dropout, scaling, is_causal, causal, given):
    """Attention by PyTorch's operations; `given` has the features beyond attention."""
    mask = mask.elements() if isinstance(mask, DescribedMask) else mask
    if not given:
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling,
                                      is_causal=is_causal)
    weights = given.pop("output_attentions", False)
    out, p = plain_attention(query, key, value, mask, dropout, scaling, causal, **given)
    return out.transpose(1, 2).contiguous(), p if weights else None


# ---------------------------------------------------------------------------------------- attention


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


def _remembered(tensor, name, make):
    """make(tensor), computed once for the layers of a model, which share the tensor."""
    if torch.compiler.is_compiling() or type(tensor) is not torch.Tensor or tensor.is_inference():
        return make(tensor)
    version, made = tensor.__dict__.get(name, (None, None))
    if version != tensor._version:
        made = make(tensor)
        setattr(tensor, name, (tensor._version, made))
    return made


def _last_key(mask):
    """The number of keys up to the last that a mask (batch, 1, 1, seqlen_kv) shows, as int32."""
    positions = torch.arange(1, mask.shape[3] + 1, device=mask.device)
    return (mask[:, 0, 0] * positions).amax(1).int()


def _mask_options(query, key, mask, causal):
    """The options of octavo.attention for a mask, or for its absence."""
    if mask is None:
        return {"causal": "top_left"} if causal else {}
    if isinstance(mask, DescribedMask):
        options = mask.options(query, key)
        if options is not None:
            return dict(options)
        mask = mask.elements()
    if mask.dtype != torch.bool:
        return {"bias": mask}
    options = {"mask": mask}
    # A static cache has room beyond the keys that a decoding step sees.
    if mask.shape[1:3] == (1, 1) and query.shape[2] == 1 and mask.shape[3] == key.shape[2] > 0:
        lengths = _remembered(mask, "_octavo_last_key", _last_key)
        options["seqlens_kv"] = lengths.expand(query.shape[0]).contiguous()
    return options


def _add_features(options, given):
    """Adds softcap, sinks, a position bias and a window to the options."""
    if "softcap" in given:
        options["softcap"] = given["softcap"]
    if "s_aux" in given:
        options["sinks"] = given["s_aux"].float()
    if "sliding_window" in given:
        options["window"] = (given["sliding_window"] - 1, -1)
    if "position_bias" in given:
        bias = given["position_bias"]
        options["bias"] = bias if options.get("bias") is None else bias + options["bias"]
    if options.get("bias") is not None and options["bias"].stride(-1) != 1:
        options["bias"] = _remembered(options["bias"], "_octavo_contiguous", torch.Tensor.contiguous)


def _refusal(query, key, value, dropout):
    """The reason for a fallback, or None."""
    return "dropout_p is not 0" if dropout else _fallback_by_tensors(query, key, value, True)


def _by_octavo(query, key, value, scaling, options):
    used = options.pop("keys", key.shape[2])
    if used < key.shape[2]:
        key, value = key[:, :, :used], value[:, :, :used]
    return octavo.attention(query, key, value, scale=scaling, **options).transpose(1, 2).contiguous()


def _continuous_batching(module, query, key, value, cache, dropout, scaling, kwargs):
    """Attention over the paged cache of transformers' continuous batching."""
    refused = [name for name in _EXTRAS if name not in _transformers_paged.SERVED
               and kwargs.get(name) is not None and kwargs[name] is not False]
    if dropout:
        refused.append("dropout")
    if refused:
        raise NotImplementedError(f"{refused[0]} is given with a paged cache; supported: "
                                  f"{', '.join(_transformers_paged.SERVED)}.")
    return _transformers_paged.attention(module, query, key, value, cache, scaling,
                                         getattr(module, "is_causal", True), kwargs)


def attention_forward(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None,
                      is_causal=None, **kwargs):
    """The attention function that transformers calls: (output as (B, S, H, D), P or None)."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # A single query attends to every key, as in a decoding step. Several queries start at the first key.
    causal = query.shape[2] > 1 and is_causal
    cache = kwargs.get("cache")
    if cache is not None:
        return _continuous_batching(module, query, key, value, cache, dropout, scaling, kwargs), None
    extras, others = _requested_features(query, key, attention_mask, causal, kwargs)
    if others:
        count_fallback(f"{others[0]} is given")
        return _eager(module, query, key, value, attention_mask, dropout, scaling, causal, kwargs,
                      others[0])
    if attention_mask is None and not extras:
        out = sdpa(query, key, value, dropout_p=dropout, is_causal=causal, scale=scaling,
                   enable_gqa=query.shape[1] != key.shape[1])
        return out.transpose(1, 2).contiguous(), None
    given = {name: kwargs[name] for name in extras}
    reason = next((f"{name} is given" for name in extras if name not in _SERVED), None)
    if reason is None:
        options = _mask_options(query, key, attention_mask, causal)
        _add_features(options, given)
        reason = _refusal(query, key, value, dropout)
    if reason is None and torch.compiler.is_compiling():
        return _by_octavo(query, key, value, scaling, options), None
    if reason is None:
        try:
            return _by_octavo(query, key, value, scaling, options), None
        except NotImplementedError as refused:
            reason = str(refused)
    count_fallback(reason)
    return _fallback(module, query, key, value, attention_mask, dropout, scaling, is_causal, causal, given)


def register(name: str = "octavo", context_parallel=None, sharding: str = "zigzag") -> None:
    """Registers Octavo as attn_implementation=name.

    Newer versions of transformers allow continuous batching (generate_batch) only with "sdpa" and
    implementations of flash attention: there, name="sdpa" puts Octavo in the place of PyTorch's.

    With context_parallel, a ProcessGroup or a DeviceMesh, models get one shard of each sequence per rank
    (docs/context_parallel.md).
    """
    if context_parallel is not None:
        from . import _transformers_parallel

        return _transformers_parallel.register(name, context_parallel, sharding)
    # Continuous batching of older versions looks for names that begin with "paged|".
    for each in (name, f"paged|{name}"):
        AttentionInterface.register(each, attention_forward)
        if theirs is not None:
            theirs.AttentionMaskInterface.register(each, mask)
