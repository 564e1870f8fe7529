# SPDX-License-Identifier: Apache-2.0
"""The part of Octavo's C interface (include/octavo/octavo.h) that the tools use, through ctypes.

A test compares these structs with the header's, field by field.
"""

import ctypes
import re
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p

F32, F16, BF16, SIM8, BOOL = 0, 1, 2, 6, 7
WIDE = {"f16": F16, "bf16": BF16}
PER_HEAD = 1
CAUSAL = {"none": 0, "top_left": 1, "bottom_right": 2}


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("shape", c_int64 * 4),
                ("stride", c_int64 * 4)]


class Scales(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("granularity", c_int32), ("block_rows", c_int64),
                ("stride", c_int64 * 3)]


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("causal", c_int32), ("window_left", c_int64),
                ("window_right", c_int64), ("precision", c_int32), ("granularity_qk", c_int32),
                ("granularity_v", c_int32), ("block_rows", c_int64), ("scale_rule", c_int32),
                ("smooth_k", c_int32), ("hadamard", c_int32), ("batch_invariant", c_int32),
                ("overlap_launch", c_int32), ("max_error", c_float), ("softcap", c_float),
                ("sm_margin", c_int32)]


class BlockMask(ctypes.Structure):
    _fields_ = [("block_size", c_int64), ("batch", c_int64), ("heads", c_int64),
                ("q_blocks", c_int64), ("kv_num_blocks", c_void_p), ("kv_indices", c_void_p),
                ("kv_capacity", c_int64), ("full_kv_num_blocks", c_void_p),
                ("full_kv_indices", c_void_p), ("full_kv_capacity", c_int64),
                ("bit_indices", c_void_p), ("bits", c_void_p), ("bit_blocks", c_int64)]


class GroupScales(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("channels", c_int64)]


class Arguments(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("out", Tensor),
                ("lse", Tensor), ("has_scale", c_int32), ("scale", c_float), ("q_scales", Scales),
                ("k_scales", Scales), ("v_scales", Scales), ("cu_seqlens_q", c_void_p),
                ("cu_seqlens_kv", c_void_p), ("sequences", c_int64), ("max_seqlen_q", c_int64),
                ("max_seqlen_kv", c_int64), ("page_table", c_void_p), ("v_layout", c_int32),
                ("q_max_quantized", c_float), ("k_max_quantized", c_float), ("out_scales", Scales),
                ("out_amax", c_void_p), ("seqlens_q", c_void_p), ("seqlens_kv", c_void_p),
                ("leftpad_q", c_void_p), ("leftpad_kv", c_void_p), ("bias", Tensor),
                ("mask", Tensor), ("alibi_slopes", c_void_p), ("alibi_batch_stride", c_int64),
                ("sinks", c_void_p), ("page_table_stride", c_int64),
                ("pages_per_sequence", c_int64), ("block_mask", BlockMask), ("k_groups", GroupScales),
                ("v_groups", GroupScales), ("draft_tree", c_void_p)]


class BackwardArguments(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("out", Tensor),
                ("lse", Tensor), ("dout", Tensor), ("dq", Tensor), ("dk", Tensor), ("dv", Tensor),
                ("has_scale", c_int32), ("scale", c_float), ("cu_seqlens_q", c_void_p),
                ("cu_seqlens_kv", c_void_p), ("sequences", c_int64), ("max_seqlen_q", c_int64),
                ("max_seqlen_kv", c_int64), ("seqlens_q", c_void_p), ("seqlens_kv", c_void_p),
                ("leftpad_q", c_void_p), ("leftpad_kv", c_void_p), ("bias", Tensor),
                ("mask", Tensor), ("alibi_slopes", c_void_p), ("alibi_batch_stride", c_int64),
                ("sinks", c_void_p), ("dbias", Tensor), ("dsinks", c_void_p),
                ("block_mask", BlockMask)]


class QuantizeOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("granularity", c_int32), ("block_rows", c_int64),
                ("scale_rule", c_int32), ("smooth", c_int32), ("hadamard", c_int32),
                ("scales_given", c_int32), ("layout", c_int32), ("max_quantized", c_float)]


class Octavo:
    """The library; a failed call raises RuntimeError with its error sentence."""

    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        self.c.octavo_version.restype = c_char_p
        self.c.octavo_last_error.restype = c_char_p
        self.c.octavo_tensor_bhsd.restype = Tensor
        self.c.octavo_tensor_bhsd.argtypes = [c_void_p, c_int32] + [c_int64] * 4
        for kind, plan, explain in ((Arguments, "octavo_plan", "octavo_explain"),
                                    (BackwardArguments, "octavo_backward_plan", "octavo_explain_backward")):
            types = {f"{plan}_create": [POINTER(kind), POINTER(Options), c_char_p, POINTER(c_void_p)],
                     f"{plan}_destroy": [c_void_p],
                     f"{plan}_workspace_bytes": [c_void_p, POINTER(kind), POINTER(c_size_t)],
                     f"{plan}_run": [c_void_p, POINTER(kind), c_void_p, c_size_t, c_void_p],
                     explain: [POINTER(kind), POINTER(Options), c_char_p, c_char_p, c_size_t,
                               POINTER(c_size_t)]}
            if not hasattr(self.c, explain):  # a library from before the backward pass
                continue
            for name, parameters in types.items():
                getattr(self.c, name).argtypes = parameters
            getattr(self.c, f"{plan}_destroy").restype = None
        self.c.octavo_quantize.argtypes = [POINTER(Tensor), POINTER(QuantizeOptions),
                                           POINTER(Tensor), c_void_p, c_void_p, c_void_p]
        for name in ("arguments", "backward_arguments", "options", "quantize_options"):
            if hasattr(self.c, f"octavo_{name}_init_sized"):
                getattr(self.c, f"octavo_{name}_init_sized").restype = None

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.c.octavo_last_error().decode())

    def version(self):
        return self.c.octavo_version().decode()

    def arguments(self):
        made = Arguments()
        self.c.octavo_arguments_init_sized(byref(made), c_size_t(ctypes.sizeof(made)))
        return made

    def backward_arguments(self):
        made = BackwardArguments()
        self.c.octavo_backward_arguments_init_sized(byref(made), c_size_t(ctypes.sizeof(made)))
        return made

    def options(self, causal="none"):
        made = Options()
        self.c.octavo_options_init_sized(byref(made), c_size_t(ctypes.sizeof(made)))
        made.causal = CAUSAL[causal]
        return made

    def quantize_options(self):
        made = QuantizeOptions()
        self.c.octavo_quantize_options_init_sized(byref(made), c_size_t(ctypes.sizeof(made)))
        return made

    def bhsd(self, pointer, dtype, shape):
        return self.c.octavo_tensor_bhsd(pointer, dtype, *shape)

    def strided(self, x, dtype):
        """A tensor of PyTorch, (batch, heads, seqlen, head_dim) in any memory order."""
        made = self.bhsd(x.data_ptr(), dtype, x.shape)
        made.stride = (c_int64 * 4)(*x.stride())
        return made

    def quantize_per_head(self, x, quantized, scales):
        """Quantizes the host tensor x; `scales`: the address of a float per head."""
        options = self.quantize_options()
        options.granularity = PER_HEAD
        self.check(self.c.octavo_quantize(byref(x), byref(options), byref(quantized), scales, None,
                                          None))

    def explain(self, arguments, options, device, function="octavo_explain"):
        """(kernel, config, reason)"""
        text = ctypes.create_string_buffer(8192)
        self.check(getattr(self.c, function)(byref(arguments), byref(options), device.encode(), text,
                                             len(text), None))
        found = re.search(r"kernel (\S+), config (.*), workspace \d+ bytes: (.*)$",
                          text.value.decode())
        return found.groups()


class Plan:
    """A plan, and the arguments of every run of it."""

    NAME, EXPLAIN = "octavo_plan", "octavo_explain"

    def __init__(self, octavo, arguments, options, device):
        self.octavo, self.arguments, self.handle = octavo, arguments, c_void_p()
        self.kernel, self.config, self.reason = octavo.explain(arguments, options, device, self.EXPLAIN)
        octavo.check(self.function("create")(byref(arguments), byref(options), device.encode(),
                                             byref(self.handle)))
        needed = c_size_t()
        octavo.check(self.function("workspace_bytes")(self.handle, byref(arguments), byref(needed)))
        self.workspace_bytes = needed.value

    def function(self, name):
        return getattr(self.octavo.c, f"{self.NAME}_{name}")

    def __del__(self):
        self.function("destroy")(self.handle)

    def run(self, workspace, stream):
        self.octavo.check(self.function("run")(self.handle, byref(self.arguments), workspace,
                                               self.workspace_bytes, stream))


class BackwardPlan(Plan):
    NAME, EXPLAIN = "octavo_backward_plan", "octavo_explain_backward"
