# SPDX-License-Identifier: Apache-2.0
"""Builds of FlashAttention-3, with operators of the real schemas that compute on the CPU."""

import importlib
import lzma
import sys

import pytest

from octavo import _peers

torch = pytest.importorskip("torch")

COMMON = ("Tensor? k_new{0}, Tensor? v_new{0}, Tensor? q_v{0}, Tensor(out!)? out{0}, Tensor? cu_seqlens_q{0}, "
          "Tensor? cu_seqlens_k{0}, Tensor? cu_seqlens_k_new{0}, Tensor? seqused_q{0}, Tensor? seqused_k{0}, "
          "int? max_seqlen_q{0}, int? max_seqlen_k{0}, Tensor? page_table{0}, Tensor? kv_batch_idx{0}, "
          "Tensor? leftpad_k{0}, Tensor? rotary_cos{0}, Tensor? rotary_sin{0}, Tensor? seqlens_rotary{0}, "
          "Tensor? q_descale{0}, Tensor? k_descale{0}, Tensor? v_descale{0}, ")
UPSTREAM = ("fwd(Tensor q, Tensor k, Tensor v, " + COMMON.format(" = None") + "float? softmax_scale = None, "
            "bool is_causal = False, int window_size_left = -1, int window_size_right = -1, "
            "int attention_chunk = 0, float softcap = 0.0, bool is_rotary_interleaved = False, "
            "Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None, int sm_margin = 0) "
            "-> (Tensor, Tensor, Tensor, Tensor)")
# vLLM's operator has no defaults, and arguments of its own.
VLLM = ("fwd(Tensor q, Tensor k, Tensor v, " + COMMON.format("") + "float softmax_scale, bool is_causal, "
        "int window_size_left, int window_size_right, float softcap, bool is_rotary_interleaved, "
        "Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux, "
        "int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]")
BWD = ("bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq = None, "
       "Tensor(dk!)? dk = None, Tensor(dv!)? dv = None, Tensor? cu_seqlens_q = None, "
       "Tensor? cu_seqlens_k = None, float? softmax_scale = None, bool is_causal = False, "
       "int window_size_left = -1, int window_size_right = -1, float softcap = 0.0, "
       "bool deterministic = False, int sm_margin = 0) -> ()")


def attention(q, k, v, scale, causal):
    """(batch, seqlen, heads, head_dim), in float32."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale).transpose(1, 2)


class Operators:
    """Registers the operators of a build, as loading its library does; records the calls."""

    def __init__(self):
        self.calls, self.libraries = [], []

    def register(self, namespace, schema=UPSTREAM, dtypes=(torch.float16, torch.bfloat16)):
        library = torch.library.Library(namespace, "FRAGMENT")
        self.libraries.append(library)

        def forward(*values, **named):
            names = [a.name for a in getattr(torch.ops, namespace).fwd.default._schema.arguments]
            given = {**dict(zip(names, values)), **named}
            self.calls.append((namespace, given))
            q, k, v = (given[x] for x in "qkv")
            if q.dtype not in dtypes:
                raise RuntimeError(f"{namespace} does not support {q.dtype}\nC++ frames")
            if (table := given.get("page_table")) is not None:
                assert given["seqused_k"].tolist() == [table.shape[1] * k.shape[1]] * len(table)
                k, v = (x[table.long()].flatten(1, 2) for x in (k, v))
                if schema == VLLM:
                    assert given["max_seqlen_k"] == k.shape[1]
                    k, v = k.flatten(0, 1), v.flatten(0, 1)
            if schema == VLLM:
                batch = given["cu_seqlens_q"].numel() - 1
                assert given["cu_seqlens_q"].tolist()[-1] == q.shape[0] == batch * given["max_seqlen_q"]
                q, k, v = (x.unflatten(0, (batch, -1)) for x in (q, k, v))
            # The causal mask of these operators is aligned to the bottom right.
            causal = given["is_causal"] and q.shape[1] > 1
            out = attention(q, k, v, given.get("softmax_scale"), causal)
            out = out.to(torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype)
            lse = torch.zeros(1)
            if schema == VLLM:
                return [out.flatten(0, 1), lse]
            return out, lse, torch.empty(0), torch.empty(0)

        library.define(schema)
        library.impl("fwd", forward, "CompositeExplicitAutograd")
        return library


@pytest.fixture
def operators():
    made = Operators()
    yield made
    for library in made.libraries:
        library._destroy()
    for namespace in _peers.NAMESPACES:
        if namespace in torch.ops.__dict__:
            delattr(torch.ops, namespace)


@pytest.fixture
def no_packages(monkeypatch):
    for name in _peers.PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delenv(_peers.PATHS, raising=False)


def inputs(dtype, heads=4, heads_kv=2):
    torch.manual_seed(0)
    return [torch.randn(2, 24, h, 16).to(dtype) for h in (heads, heads_kv, heads_kv)]


def as_library(monkeypatch, operators, made):
    """torch.ops.load_library registers what `made` has for the name of the file."""
    def load(path):
        name = path.rsplit("/", 1)[1]
        if name not in made:
            raise OSError(f"{name}: cannot open shared object file\nmore")
        operators.register(*made[name])
    monkeypatch.setattr(torch.ops, "load_library", load)


def test_a_folder_of_compressed_and_plain_libraries(tmp_path, monkeypatch, operators, no_packages):
    f8 = torch.float8_e4m3fn
    as_library(monkeypatch, operators, {
        "xf_fa3_C.so": ("flash_attn_3",), "fa3_fwd_C.so": ("fa3_fwd", UPSTREAM, (torch.bfloat16, f8)),
        "vllm_fa3.so": ("_vllm_fa3_C", VLLM, (torch.float16, torch.bfloat16, f8))})
    (tmp_path / "xf_fa3_C.so.xz").write_bytes(lzma.compress(b"library"))
    for name in ("fa3_fwd_C.so", "vllm_fa3.so", "other.so"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setenv(_peers.PATHS, str(tmp_path))
    builds = _peers.Builds(torch)
    assert [b.name for b in builds.found] == ["xf_fa3_C.so", "fa3_fwd_C.so", "vllm_fa3.so"]
    assert (tmp_path / "xf_fa3_C.so").read_bytes() == b"library"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    assert builds.missing["other.so"] == "other.so: cannot open shared object file"
    assert builds.missing["vllm"] == "it is not installed"
    # xformers' build has no FP8; the next one that has is taken.
    for dtype, name in ((torch.float16, "xf_fa3_C.so"), (f8, "fa3_fwd_C.so")):
        q, k, v = inputs(dtype)
        build, call = builds.first(lambda b: b.forward(q, k, v, True))
        assert build.name == name
        torch.testing.assert_close(call()[0].float(), attention(q, k, v, None, True), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("schema, namespace", [(UPSTREAM, "flash_attn_3"), (VLLM, "_vllm_fa3_C")])
def test_calls_by_name_whatever_the_defaults(operators, schema, namespace):
    operators.register(namespace, schema, (torch.float16, torch.float8_e4m3fn))
    build = _peers.Build(torch, "x", namespace)
    for dtype in (torch.float16, torch.float8_e4m3fn):
        for causal in (False, True):
            q, k, v = inputs(dtype)
            out = build.forward(q, k, v, causal)()[0]
            assert out.shape == q.shape
            torch.testing.assert_close(out.float(), attention(q, k, v, None, causal), atol=2e-2, rtol=2e-2)
            _, given = operators.calls[-1]
            assert given["num_splits"] == 1 and given["window_size_left"] == -1
            assert (given.get("q_descale") is not None) == (dtype.itemsize == 1)
            assert given["softmax_scale"] == 0.25


@pytest.mark.parametrize("schema, namespace", [(UPSTREAM, "flash_attn_3"), (VLLM, "_vllm_fa3_C")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_paged_decoding(operators, schema, namespace, dtype):
    operators.register(namespace, schema, (dtype,))
    q, k, v = (x.to(dtype) for x in (torch.randn(2, 1, 4, 16), torch.randn(6, 8, 2, 16), torch.randn(6, 8, 2, 16)))
    table = torch.tensor([[5, 0, 3], [1, 4, 2]], dtype=torch.int32)
    lengths = torch.full((2,), 24, dtype=torch.int32)
    out = _peers.Build(torch, "x", namespace).decode(q, k, v, table, lengths)()
    wanted = attention(q, *(x[table.long()].flatten(1, 2) for x in (k, v)), None, False)
    torch.testing.assert_close(out.float(), wanted, atol=2e-2, rtol=2e-2)
    _, given = operators.calls[-1]
    assert given.get("num_splits", 0) == 0 and given["is_causal"]  # 0 is the default of one build
    assert (given.get("k_descale") is not None) == (dtype.itemsize == 1)


def test_an_argument_without_a_neutral_value_is_refused(operators):
    operators.register("fa3_fwd", "fwd(Tensor q, Tensor k, Tensor v, int new_thing) -> Tensor[]")
    with pytest.raises(ValueError, match="an argument of fa3_fwd::fwd is 'new_thing'; supported"):
        _peers.Build(torch, "x", "fa3_fwd").forward(*inputs(torch.float16), False)


def test_no_build_says_every_reason(operators, no_packages, tmp_path):
    builds = _peers.Builds(torch, [str(tmp_path / "none")])
    with pytest.raises(ValueError) as refused:
        builds.first(lambda b: b.forward(*inputs(torch.float16), False))
    for name in (*_peers.PACKAGES, "none"):
        assert name in str(refused.value)
    operators.register("fa3_fwd", dtypes=())
    builds.add("a build", ("fa3_fwd",))
    with pytest.raises(ValueError, match=r"a build: fa3_fwd does not support torch.float16\)$"):
        builds.first(lambda b: b.forward(*inputs(torch.float16), False))


def test_packages(tmp_path, monkeypatch, operators, no_packages):
    """xformers holds a library; flash_attn_interface registers by being imported."""
    folder = tmp_path / "xformers/flash_attn_3"
    folder.mkdir(parents=True)
    (tmp_path / "xformers/__init__.py").write_text("raise RuntimeError('it must not be imported')\n")
    (folder / "_C.so").write_bytes(b"")
    (tmp_path / "fa3_fwd").mkdir()
    (tmp_path / "fa3_fwd/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    for name in ("xformers", "fa3_fwd"):
        monkeypatch.delitem(sys.modules, name)
    as_library(monkeypatch, operators, {"_C.so": ("flash_attn_3",)})
    builds = _peers.Builds(torch)
    assert [b.name for b in builds.found] == ["xformers"]
    assert builds.missing["fa3_fwd"] == "it holds no library of FlashAttention-3"


def test_a_second_build_of_the_same_operators_is_not_counted(operators, no_packages):
    operators.register("flash_attn_3")
    builds = _peers.Builds(torch)
    builds.add("first", ("flash_attn_3",))
    builds.add("second", ("flash_attn_3",))
    assert [b.name for b in builds.found] == ["first"]
    assert "same operators" in builds.missing["second"]


def test_backward_uses_the_forward_pass_made_before(operators):
    library = operators.register("flash_attn_3")
    seen = {}

    def backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, *rest, **named):
        seen.update(named, out=out)
        for gradient in (dq, dk, dv):
            gradient.fill_(3)

    library.define(BWD)
    library.impl("bwd", backward, "CompositeExplicitAutograd")
    q, k, v = inputs(torch.bfloat16)
    call = _peers.Build(torch, "x", "flash_attn_3").backward(q, q, k, v, True, deterministic=True)
    gradients = call()
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
    assert all((g == 3).all() for g in gradients)
    torch.testing.assert_close(seen["out"].float(), attention(q, k, v, None, True), atol=2e-2, rtol=2e-2)


def test_the_backend_fa3_of_the_benchmark(tmp_path, monkeypatch, operators, no_packages):
    import json

    import octavo.bench as bench

    f8 = torch.float8_e4m3fn
    operators.register("fa3_fwd", UPSTREAM, (torch.float16, f8))
    monkeypatch.setattr(bench._peers.Builds, "add_package",
                        lambda self, name, *_: self.add("fa3_fwd", ("fa3_fwd",)) if name == "fa3_fwd" else None)
    monkeypatch.setitem(bench.SHAPES, "mission", (1, 2, 32, 16))
    for words, dtype, error in (((), torch.float16, 5e-3), (("--prequantized",), f8, 0.3)):
        operators.calls.clear()
        path = tmp_path / "summary.json"
        assert bench.main(["--shapes", "mission", "--iters", "3", "--warmup", "1", "--device", "cpu", "--dtype",
                           "float16", "--backend", "fa3", "--causal", "--json", str(path), *words]) == 0
        row, = json.loads(path.read_text())["rows"]
        assert row["peer_max_error"] < error and row["max_error"] < error, row
        assert {given["q"].dtype for _, given in operators.calls} == {dtype}
        assert row["ratio"] == row["peer"]["median_us"] / row["octavo"]["median_us"]
