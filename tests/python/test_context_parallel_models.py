# SPDX-License-Identifier: Apache-2.0
"""Models whose sequences are divided among two ranks: the GPT of the examples, and Hugging Face models."""

import functools
import pathlib
import re
import sys

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("PyTorch has no Gloo", allow_module_level=True)
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
import train_gpt  # noqa: E402
from octavo.distributed import positions, shard, unshard  # noqa: E402
from ranks import Ranks  # noqa: E402

TINY = train_gpt.Sizes(layers=2, heads=2, width=32, context=48, batch=4)
STEPS = 6
LEARNING_RATE = 3e-2  # as in test_train_gpt.py: the losses depend on attention
LIMIT = 1e-4


@pytest.fixture(scope="module")
def two():
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def losses():
    return train_gpt.train("octavo", TINY, STEPS, learning_rate=LEARNING_RATE)[0]


def train_in_parallel(fault=None):
    """The losses and bits of DistributedDataParallel, with a fault if one is named."""
    distributed = train_gpt.import_distributed()
    if fault == "attention":  # each rank attends to its own tokens alone
        train_gpt.ATTENTION[train_gpt.CONTEXT_PARALLEL] = train_gpt.ATTENTION["octavo"]
        train_gpt.import_distributed, unchanged = lambda: distributed, train_gpt.import_distributed
    elif fault == "positions":  # each rank counts from 0
        distributed.positions, unchanged = lambda n, device: torch.arange(n // 2), positions
    try:
        return train_gpt.train(train_gpt.CONTEXT_PARALLEL, TINY, STEPS, learning_rate=LEARNING_RATE)
    finally:
        if fault == "attention":
            train_gpt.import_distributed = unchanged
        elif fault == "positions":
            distributed.positions = unchanged


def train_with_fsdp():
    """Losses of two steps with fully_shard, and those of one process."""
    train_gpt.import_distributed()
    text, vocabulary = train_gpt.load_text()
    curves = []
    for attention in (train_gpt.CONTEXT_PARALLEL, "octavo"):
        torch.manual_seed(0)
        model = train_gpt.GPT(TINY, vocabulary, attention)
        places = None
        window = text[:4 * (TINY.context + 1)].reshape(4, -1)
        inputs, labels = window[:, :-1], window[:, 1:]
        if attention == train_gpt.CONTEXT_PARALLEL:
            mesh = init_device_mesh("cpu", (2,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            places, inputs, labels = positions(TINY.context), shard(inputs), shard(labels)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(inputs, places).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss = loss.detach()
            if places is not None:
                dist.all_reduce(loss)
                loss /= 2
            losses.append(loss.item())
        curves.append(losses)
    return curves


def model_logits(name, sharding, **inputs):
    """The logits of two ranks, and those of transformers' own attention in one process."""
    import huggingface
    import octavo.transformers

    octavo.transformers.register("octavo_parallel", context_parallel=dist.group.WORLD, sharding=sharding)
    tokens = torch.arange(32).reshape(2, 16)
    model = getattr(huggingface, name)("octavo_parallel").eval()
    given = dict(position_ids=positions(16, sharding=sharding).unsqueeze(0), use_cache=False) | inputs
    with torch.no_grad():
        found = model(shard(tokens, sharding=sharding), **given).logits
        wanted = getattr(huggingface, name)("eager").eval()(tokens).logits
    return (unshard(found, sharding=sharding) - wanted).abs().max().item(), wanted.std().item()


# --------------------------------------------------------------------------------------- the tests


def test_gpt_trains_as_in_one_process(two, losses):
    results = two.run(train_in_parallel)
    assert torch.equal(results[0][1], results[1][1])  # both ranks have the same weights
    assert max(abs(one - other) for one, other in zip(results[0][0], losses)) < LIMIT
    again = two.run(train_in_parallel)
    assert torch.equal(results[0][1], again[0][1])


@pytest.mark.parametrize("fault", ["attention", "positions"])
def test_the_limit_detects_faults(two, losses, fault):
    found = two.run(train_in_parallel, fault)[0][0]
    assert max(abs(one - other) for one, other in zip(found, losses)) > LIMIT


def test_fsdp(two):
    for found, wanted in two.run(train_with_fsdp):
        assert found[0] != found[-1]
        assert max(abs(one - other) for one, other in zip(found, wanted)) < LIMIT


def examples_in_parallel():
    """The largest differences from one process of the two examples, as two processes."""
    import context_parallel
    import tensor_parallel

    return context_parallel.run("cpu"), tensor_parallel.run(dist.get_rank(), 2, "cpu")


def test_examples(two):
    for differences in two.run(examples_in_parallel):
        assert max(differences) < 1e-4


def test_the_command_of_the_example(two, tmp_path, monkeypatch):
    """`train_gpt.py --context-parallel 2` starts two processes and plots the losses of one."""
    # They are forks too.
    monkeypatch.setattr(torch.multiprocessing, "spawn",
                        functools.partial(torch.multiprocessing.start_processes, start_method="forkserver"))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on: None)
    flags = ["--device", "cpu", "--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--batch", "2",
             "--steps", "3", "--plot"]
    curves = []
    for ranks in ("1", "2"):
        plot = tmp_path / f"{ranks}.svg"
        assert train_gpt.main([*flags, str(plot), "--context-parallel", ranks]) == 0
        line, = re.findall('<polyline points="([^"]*)"', plot.read_text())
        curves.append([float(number) for number in re.split("[ ,]", line)])
    assert len(curves[0]) == 6 and curves[0] == pytest.approx(curves[1], abs=0.02)


def test_the_flag_of_the_example(tmp_path, capsys):
    flags = ["--device", "cpu", "--context", "20", "--context-parallel"]
    for ranks, sentence in (("3", "supported: 1, and numbers whose double divides --context, which is 20."),
                            ("0", "--context-parallel is 0; supported: 1"),
                            ("2 --compare", "supported: 1 with --compare or --attention torch.")):
        with pytest.raises(SystemExit):
            train_gpt.main([*flags, *ranks.split(), "--plot", str(tmp_path / "a.svg")])
        assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name, sharding", [("decoder", "zigzag"), ("mistral", "zigzag"), ("mistral", "contiguous"),
                                            ("gemma2", "zigzag"), ("gpt_oss", "zigzag"),
                                            ("encoder", "contiguous")])
def test_hugging_face_logits(two, name, sharding):
    pytest.importorskip("transformers")
    for error, spread in two.run(model_logits, name, sharding):
        assert error < 1e-4 * (1 + spread)


def with_dropout():
    import huggingface
    import octavo.transformers

    octavo.transformers.register("octavo_parallel", context_parallel=dist.group.WORLD)
    model = huggingface.decoder("octavo_parallel").train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    model(torch.zeros(1, 8, dtype=torch.int64), position_ids=positions(16).unsqueeze(0), use_cache=False)


def with_padding():
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[0, 0] = 0
    model_logits("decoder", "zigzag", attention_mask=mask)


def with_other_positions():
    model_logits("decoder", "zigzag", position_ids=None)


@pytest.mark.parametrize("function, sentence", [
    (with_dropout, "dropout is given to a layer of LlamaAttention with context_parallel; supported: causal attention, "
     "sliding windows, softcap and sinks."),
    (with_padding, "attention_mask has padding in a model with context_parallel; supported: sequences without padding."),
    (with_other_positions, "position_ids are not octavo.distributed.positions(16, sharding='zigzag') in a model with "
     "context_parallel; supported: these, without packed documents."),
])
def test_inputs_of_models_are_refused(two, function, sentence):
    pytest.importorskip("transformers")
    for good, told in two.outcomes(function):
        assert not good and told[1] == sentence
