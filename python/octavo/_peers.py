# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 builds that run in this process beside Octavo.

A build is a library that registers the operators of FlashAttention-3 with PyTorch. It comes from an
installed package or from a path: a library, or a folder with libraries, compressed by xz or not. The
builds name the arguments of their operators alike, but differ in their defaults, so calls are made by
name from the operator's schema. Which dtypes a build was compiled for is known only by calling it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import lzma
import os
import pathlib

PATHS = "OCTAVO_PEERS"  # environment variable: paths of builds, separated as in $PATH
# Packages that hold a build, the namespace of its operators, and its library within the package.
# The first that serves a dtype is the one that is timed.
PACKAGES = {
    "flash_attn_3": ("flash_attn_3", "_C*.so"),
    "flash_attn_interface": ("flash_attn_3", None),  # a module; importing it loads the library
    "xformers": ("flash_attn_3", "flash_attn_3/_C*.so"),
    "fa3_fwd": ("fa3_fwd", "_C*.so"),
    "vllm": ("_vllm_fa3_C", "vllm_flash_attn/_vllm_fa3_C*.so"),
}
NAMESPACES = tuple(dict.fromkeys(namespace for namespace, _ in PACKAGES.values()))
VARLEN_ONLY = ("_vllm_fa3_C",)  # builds that serve only calls with cu_seqlens
# Values of plain attention for arguments that have no default in some build. FlashAttention's own
# Python function also passes num_splits=1.
NEUTRAL = {"window_size_left": -1, "window_size_right": -1, "attention_chunk": 0, "softcap": 0.0,
           "is_rotary_interleaved": False, "num_splits": 1, "sm_margin": 0, "deterministic": False,
           "cp_world_size": 1, "cp_rank": 0}
UNAVAILABLE = (ImportError, OSError, RuntimeError, ValueError, NotImplementedError, AttributeError)


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def arguments_of(schema, given):
    """The arguments of a call by name: those given that the operator has, and neutral values."""
    made = {}
    for argument in schema.arguments:
        if argument.name in given:
            made[argument.name] = given[argument.name]
        elif argument.name in NEUTRAL:
            made[argument.name] = NEUTRAL[argument.name]
        elif not argument.has_default_value():
            if not str(argument.type).startswith("Optional"):
                raise ValueError(f"an argument of {schema.name} is '{argument.name}'; supported: "
                                 "those of FlashAttention-3 that have a neutral value.")
            made[argument.name] = None
    return made


class Build:
    """One build of FlashAttention-3. Tensors are (batch, seqlen, heads, head_dim)."""

    def __init__(self, torch, name, namespace):
        self.torch, self.name, self.namespace = torch, name, namespace

    def operator(self, name):
        return getattr(getattr(self.torch.ops, self.namespace), name).default

    def call_of(self, name, given):
        """A function without parameters that calls the operator."""
        operator = self.operator(name)
        arguments = arguments_of(operator._schema, given)
        return lambda: operator(**arguments)

    def forward(self, q, k, v, causal):
        """A function that computes attention and returns (out, lse, ...)."""
        given = {"q": q, "k": k, "v": v, "softmax_scale": q.shape[-1] ** -0.5, "is_causal": causal}
        if q.dtype.itemsize == 1:  # 8-bit inputs have one scale per head, which is 1 here
            one = self.torch.ones((k.shape[0], k.shape[2]), device=k.device)
            given.update(q_descale=one, k_descale=one, v_descale=one)
        if self.namespace not in VARLEN_ONLY:
            return self.call_of("fwd", given)
        for side, x in (("q", q), ("k", k)):
            batch, length = x.shape[:2]
            given[f"cu_seqlens_{side}"] = length * self.torch.arange(
                batch + 1, device=x.device, dtype=self.torch.int32)
            given[f"max_seqlen_{side}"] = length
        given.update(q=q.flatten(0, 1), k=k.flatten(0, 1), v=v.flatten(0, 1))
        call = self.call_of("fwd", given)

        def padded():
            out, *rest = call()
            return out.view(*q.shape[:3], v.shape[3]), *rest

        return padded

    def decode(self, q, k_pages, v_pages, page_table, lengths):
        """A function that attends to paged keys and values, (pages, page, heads, head_dim), with a causal
        mask aligned to the bottom right; the build chooses how it divides the keys."""
        batch, seqlen_q = q.shape[:2]
        given = {"q": q, "k": k_pages, "v": v_pages, "softmax_scale": q.shape[-1] ** -0.5, "is_causal": True,
                 "page_table": page_table, "seqused_k": lengths, "num_splits": 0}
        if q.dtype.itemsize == 1:
            one = self.torch.ones((batch, k_pages.shape[2]), device=q.device)
            given.update(q_descale=one, k_descale=one, v_descale=one)
        if self.namespace in VARLEN_ONLY:
            given.update(
                q=q.flatten(0, 1), max_seqlen_q=seqlen_q, max_seqlen_k=page_table.shape[1] * k_pages.shape[1],
                cu_seqlens_q=seqlen_q * self.torch.arange(batch + 1, device=q.device, dtype=self.torch.int32))
        call = self.call_of("fwd", given)
        return lambda: call()[0].view(q.shape)

    def backward(self, dout, q, k, v, causal, deterministic=False):
        """A function that computes (dq, dk, dv) from one forward pass made here."""
        out, lse = self.forward(q, k, v, causal)()[:2]
        dq, dk, dv = (self.torch.empty_like(x) for x in (q, k, v))
        call = self.call_of("bwd", {
            "dout": dout, "q": q, "k": k, "v": v, "out": out, "softmax_lse": lse, "dq": dq, "dk": dk,
            "dv": dv, "softmax_scale": q.shape[-1] ** -0.5, "is_causal": causal,
            "deterministic": deterministic})

        def gradients():
            call()
            return dq, dk, dv

        return gradients


def unpacked(path):
    """The library that path holds, compressed by xz or not. It is unpacked beside the file."""
    if path.suffix != ".xz":
        return path
    made = path.with_suffix("")
    if not made.exists():
        # Another process must not find half a library.
        part = made.with_name(f".{made.name}.{os.getpid()}")
        try:
            with lzma.open(path) as packed, part.open("wb") as out:
                while block := packed.read(1 << 24):
                    out.write(block)
            part.replace(made)
        finally:
            part.unlink(missing_ok=True)
    return made


def libraries_at(path):
    """The libraries of a path: itself, or those in the folder, each once."""
    path = pathlib.Path(path)
    if not path.exists():
        raise OSError(f"a path of peers is '{path}'; supported: libraries and folders that exist.")
    found = sorted(p for p in path.iterdir() if p.name.endswith((".so", ".so.xz"))) if path.is_dir() else [path]
    return list(dict.fromkeys(p.with_suffix("") if p.suffix == ".xz" else p for p in found))


class Builds:
    """All builds that could be loaded here, and for the others the reason."""

    def __init__(self, torch, paths=()):
        self.torch, self.found, self.missing = torch, [], {}
        for path in [*paths, *filter(None, os.environ.get(PATHS, "").split(os.pathsep))]:
            self.add_path(path)
        for name, (namespace, library) in PACKAGES.items():
            self.add_package(name, namespace, library)
        order = {namespace: i for i, namespace in enumerate(NAMESPACES)}
        self.found.sort(key=lambda build: order[build.namespace])

    def has_forward(self, namespace):
        return hasattr(getattr(self.torch.ops, namespace), "fwd")

    def add(self, name, namespaces):
        """Adds the build that a library has just registered. PyTorch holds one for each namespace."""
        known = {build.namespace for build in self.found}
        for namespace in namespaces:
            if namespace not in known and self.has_forward(namespace):
                self.found.append(Build(self.torch, name, namespace))
                return
        self.missing[name] = ("another build has registered the same operators"
                              if known.intersection(namespaces) else "it registers no operator fwd")

    def load(self, library):
        if not library.exists():
            library = unpacked(library.with_name(library.name + ".xz"))
        # A build for another CUDA release than PyTorch's may bring its run-time library.
        for runtime in library.parent.glob("libcudart.so.*"):
            ctypes.CDLL(str(runtime))
        self.torch.ops.load_library(str(library))

    def add_path(self, path):
        try:
            libraries = libraries_at(path)
        except OSError as refused:
            self.missing[str(path)] = first_line(refused)
            return
        for library in libraries:
            try:
                self.load(library)
            except UNAVAILABLE as refused:
                self.missing[library.name] = first_line(refused)
                continue
            self.add(library.name, NAMESPACES)

    def add_package(self, name, namespace, pattern):
        try:
            spec = importlib.util.find_spec(name)
            if spec is None:
                self.missing[name] = "it is not installed"
                return
            if pattern is None:
                importlib.import_module(name)
            else:
                libraries = [found for folder in spec.submodule_search_locations or ()
                             for found in sorted(pathlib.Path(folder).glob(pattern))]
                if not libraries:
                    self.missing[name] = "it holds no library of FlashAttention-3"
                    return
                self.load(libraries[0])
        except UNAVAILABLE as refused:
            self.missing[name] = first_line(refused)
            return
        self.add(name, (namespace,))

    def why_not(self):
        return "; ".join(f"{name}: {reason}" for name, reason in self.missing.items())

    def first(self, make):
        """The first build for which make(build), a function without parameters, can be made and
        called: (build, function). ValueError with all reasons if there is none."""
        reasons = [self.why_not()] if not self.found else []
        for build in self.found:
            try:
                call = make(build)
                call()
            except UNAVAILABLE as refused:
                reasons.append(f"{build.name}: {first_line(refused)}")
                continue
            return build, call
        raise ValueError(f"no build of FlashAttention-3 serves this call ({'; '.join(reasons)})")


def torch_backward(torch, library, dout, q, k, v, causal):
    """A function that computes (dq, dk, dv) with a library of PyTorch, cudnn or flash, from one forward
    pass made here. Tensors are (batch, heads, seqlen, head_dim)."""
    aten = torch.ops.aten
    if library == "cudnn":
        r = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
        return lambda: aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, r[0], r[1], r[6], r[7], None, r[2], r[3], r[4], r[5], 0.0, causal)
    r = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
    return lambda: aten._scaled_dot_product_flash_attention_backward(
        dout, q, k, v, r[0], r[1], r[2], r[3], r[4], r[5], 0.0, causal, r[6], r[7])
