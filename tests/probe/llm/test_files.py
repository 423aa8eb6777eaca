"""Files of LLM checkpoints: the shapes are those of FSDP2 and of tensor parallelism, the sizes those published."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.probe.llm.files import (
    FRAMEWORKS,
    Cut,
    bytes_by_rank,
    bytes_of,
    cut_of,
    dealt,
    deepspeed,
    fsdp,
    layers_of_stages,
    megatron,
)
from benchsuite.probe.llm.shapes import shapes_of

PARAMETERS = {"llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800}

FSDP = (("nano_llama", 7, 6), ("llama3-8b", 512, 511), ("llama3-405b", 512, 511))
TENSOR_PARALLEL = (("nano_llama", 4, 0), ("nano_llama", 4, 3))
"""Models, numbers of ranks, and the one that is looked at."""
SHARDED = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from benchsuite import workloads
from benchsuite.probe.llm.files import chosen
from benchsuite.workloads.gpt_neox import tensor_parallel_plan


def shapes(kind, model, ranks, rank):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    workload = workloads.load(workloads.WORKLOADS, "gpt_neox", "benchsuite.workloads")
    with torch.device("meta"):
        built = workload.build(chosen(model))
    mesh = init_device_mesh("cpu", (ranks,))
    if kind == "fsdp":
        for layer in built.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(built, mesh=mesh)
    else:
        parallelize_module(built, mesh, tensor_parallel_plan(built, False, False))
    found = {}
    for name, value in built.named_parameters():
        found[name] = list((value.to_local() if hasattr(value, "to_local") else value).shape)
    return found


for asked in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        print(json.dumps(shapes(*asked)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@cache
def sharded_by_torch(*asked: tuple[str, str, int, int]) -> list[dict[str, tuple[int, ...]]]:
    """The parts of parameters that torch gives one rank of many, for each that is asked for, in processes of their own.

    They are forked from one: most of what each takes is importing torch.
    """
    words = [sys.executable, "-c", SHARDED, json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [{name: tuple(shape) for name, shape in line.items()} for line in lines]


IN_CI = (*(("fsdp", *each) for each in FSDP[:2]), *(("tp", *each) for each in TENSOR_PARALLEL))


def by_torch(kind: str, model: str, ranks: int, rank: int) -> dict[str, tuple[int, ...]]:
    asked = (kind, model, ranks, rank)
    return sharded_by_torch(*IN_CI)[IN_CI.index(asked)] if asked in IN_CI else sharded_by_torch(asked)[0]


class TestFsdp:
    @pytest.mark.parametrize(
        ("model", "ranks", "rank"), [*FSDP[:2], *(pytest.param(*each, marks=pytest.mark.full) for each in FSDP[2:])]
    )
    def test_parts_are_those_of_fsdp2(self, model: str, ranks: int, rank: int):
        ((name, parts),) = fsdp(shapes_of(model), Cut(ranks), rank).items()
        assert name == f"__{rank}_0.distcp"
        found = {part.name: part.shape for part in parts}
        theirs = {name: shape for name, shape in by_torch("fsdp", model, ranks, rank).items() if shape[0]}
        assert {name: found[f"model.{name}"] for name in theirs} == theirs
        assert len(parts) == 3 * len(theirs)
        assert all(
            found[f"optimizer.state.{name}.{moment}"] == shape
            for name, shape in theirs.items()
            for moment in ("exp_avg", "exp_avg_sq")
        )

    def test_all_ranks_together_hold_each_row_once(self):
        shapes = shapes_of("nano_llama")
        parts = [part for rank in range(7) for part in fsdp(shapes, Cut(7), rank)[f"__{rank}_0.distcp"]]
        for name, shape in shapes.items():
            assert sum(part.elements for part in parts if part.name == f"model.{name}") == math.prod(shape)


class TestMegatron:
    def test_cut_as_tensor_parallelism_cuts(self):
        cut = Cut(4, tp=4)
        for model, ranks, rank in TENSOR_PARALLEL:
            files = megatron(shapes_of(model), cut, rank)
            found = {part.name.removeprefix("model."): part.shape for parts in files.values() for part in parts}
            theirs = by_torch("tp", model, ranks, rank)
            whole = {name for name in theirs if "norm" in name}
            assert {name: found.get(name) for name in theirs.keys() - whole} == {
                name: shape for name, shape in theirs.items() if name not in whole
            }
            assert (whole <= found.keys()) == (rank == 0), "what all hold is written by the first"

    @pytest.mark.parametrize(("tp", "pp", "ranks"), [(1, 1, 8), (2, 2, 8), (4, 1, 4), (1, 3, 6)])
    def test_every_weight_is_written_once(self, tp: int, pp: int, ranks: int):
        shapes, cut = shapes_of("nano_llama"), Cut(ranks, tp, pp)
        files = [megatron(shapes, cut, rank) for rank in range(ranks)]
        parts = [part for each in files for found in each.values() for part in found]
        weights = sum(part.elements for part in parts if part.dtype == "bfloat16")
        assert weights == sum(math.prod(shape) for shape in shapes.values())
        assert len({name for each in files for name in each}) == 2 * ranks
        flat = sum(part.elements for part in parts if part.dtype == "float32") / 3
        held_by_each = sum(math.prod(shape) for name, shape in shapes.items() if "norm" in name)
        assert weights <= flat <= weights + (tp - 1) * held_by_each + ranks

    def test_the_largest_go_to_whoever_has_least(self):
        shares = dealt(megatron(shapes_of("nano_llama"), Cut(1), 0)["__0_0.distcp"], 3)
        sizes = [sum(part.num_bytes for part in share) for share in shares]
        largest = max(part.num_bytes for share in shares for part in share)
        assert max(sizes) - min(sizes) <= largest

    @pytest.mark.parametrize(
        ("layers", "pp", "counts"), [(8, 4, [2, 2, 2, 2]), (126, 32, [3, *[4] * 30, 3]), (126, 16, [7, *[8] * 14, 7])]
    )
    def test_stages(self, layers: int, pp: int, counts: list[int]):
        stages = layers_of_stages(layers, pp)
        assert [len(stage) for stage in stages] == counts
        assert [layer for stage in stages for layer in stage] == [*range(layers)]


class TestDeepspeed:
    def test_flat_groups_of_a_billion_and_a_file_without_weights(self):
        files = deepspeed(shapes_of("llama3-8b"), Cut(2), 1)
        model, optimizer = files.items()
        assert model == ("zero_pp_rank_1_mp_rank_00_model_states.pt", [])
        name, parts = optimizer
        assert name == "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
        assert [part.elements for part in parts[:5]] == [10**9] * 4 + [15_130_624]
        assert bytes_of(files) == 12 * PARAMETERS["llama3-8b"] // 2


class TestPublished:
    @pytest.mark.parametrize(("model", "ranks", "gib"), [("llama3-8b", 8, 105), ("llama3-405b", 512, 5290)])
    def test_megatron_has_the_size_of_mlperf_storage(self, model: str, ranks: int, gib: int):
        """Submission_guidelines.md of v2.0: 105 GB and 5.29 TB, both of 2^30 bytes to a GB."""
        shapes = shapes_of(model)
        assert sum(math.prod(shape) for shape in shapes.values()) == PARAMETERS[model]
        cut = cut_of(model, "megatron", ranks, None, None)
        assert (cut.tp, cut.pp, cut.dp) == {"llama3-8b": (1, 1, 8), "llama3-405b": (8, 32, 2)}[model]
        assert sum(bytes_by_rank("megatron", shapes, cut, range(ranks))) / 2**30 == pytest.approx(gib, rel=0.005)

    @pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
    def test_twelve_bytes_a_parameter(self, framework: str):
        shapes = shapes_of("llama3-70b")
        assert sum(bytes_by_rank(framework, shapes, Cut(64), range(64))) == 12 * PARAMETERS["llama3-70b"]


def refused() -> Iterator[tuple[dict[str, Any], str]]:
    base = {"name": "llama3-8b", "framework": "megatron", "ranks": 8, "tp": None, "pp": None}
    yield base | {"name": "llama3-7b"}, "--model 'llama3-7b' is unknown; nearest: llama3-70b"
    yield base | {"name": "moe"}, "--model 'moe' is unknown"
    yield base | {"tp": 3}, "--ranks 8 is not a multiple of tp 3 x pp 1 = 3"
    yield base | {"tp": 16, "ranks": 16}, "--tp 16 does not divide num_kv_heads 8 of llama3-8b"
    yield base | {"pp": 5, "ranks": 5}, "--pp 5 divides neither 32 layers nor, with embedding and head, 34"
    yield (
        base | {"framework": "fsdp", "tp": 2},
        "--framework fsdp shards over all ranks: --tp and --pp are for megatron",
    )
    yield base | {"name": "llama3-70b", "ranks": 4}, "--ranks 4 is not a multiple of tp 8 x pp 1 = 8"


@pytest.mark.parametrize(("values", "words"), list(refused()))
def test_refused(values: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        cut_of(values["name"], values["framework"], values["ranks"], values["tp"], values["pp"]).place(0)
        from benchsuite.probe.llm.files import chosen

        chosen(values["name"])
    assert str(error.value).startswith(words)


def test_no_torch_is_needed_to_compute():
    lines = "import benchsuite.probe.llm.files, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", lines], check=True, cwd=Path.cwd())
    assert set(FRAMEWORKS) == {"fsdp", "megatron", "deepspeed"}
