"""The planner against published runs: times within its intervals, and layouts that experts chose near its top.

Values were fitted on vTrain's rows and, for attention, llm-foundry's, those of H100 on others (assumptions.yaml);
bench/published_runs.yaml has what they were held to. The form of the matrix efficiency was chosen, among four that fit
vTrain equally well, by how they held for Megatron's and Korthikanti's rows: those are no blind test.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import Choices, Job, Layouts, valid_layouts
from benchsuite_plan.layout.cost import cost
from benchsuite_plan.layout.layout_search import NUM_DRAWS, QUANTILES, ranked
from benchsuite_plan.layout.machines import Machine
from benchsuite_plan.theory.flops import transformer_flops
from tests.helpers.published_tables import all_rows

DGX = machines.load("dgx-a100")

MEGATRON = [
    # arXiv:2104.04473, table 1: model, tensor, pipeline parallel, GPUs, batch, TFLOP/s a GPU; microbatch as NVIDIA's
    # slides of it print for five rows, for the others what lies between their neighbours'. Fully recomputed, no ZeRO,
    # no sequence parallelism, scores stored.
    ("megatron-1.7b", 1, 1, 32, 512, 137, (16,)),
    ("megatron-3.6b", 2, 1, 64, 512, 138, (16,)),
    ("megatron-7.5b", 4, 1, 128, 512, 142, (16,)),
    ("megatron-18.4b", 8, 1, 256, 1024, 135, (4, 8, 16)),
    ("megatron-39.1b", 8, 2, 512, 1536, 138, (4,)),
    ("megatron-76.1b", 8, 4, 1024, 1792, 140, (2, 4)),
    ("megatron-145.6b", 8, 8, 1536, 2304, 148, (2,)),
    ("megatron-310.1b", 8, 16, 1920, 2160, 155, (1, 2)),
    ("megatron-529.6b", 8, 35, 2520, 2520, 163, (1,)),
    ("megatron-1t", 8, 64, 3072, 3072, 163, (1,)),
]
MT_NLG = [
    # arXiv:2201.11990, section 2.4: the same, as measured on 280 and 350 nodes; microbatch 1.
    ("mt-nlg-530b", 8, 35, 2240, 1920, 126, (1,)),
    ("mt-nlg-530b", 8, 35, 2800, 1920, 121, (1,)),
]


def as_published(name: str, gpus: int, batch: int) -> Job:
    """As Megatron-LM trained in 2021."""
    return Job(models.load(name), DGX, gpus, batch, "fp16", sequence_parallel=False, flash_attention=False)


def constraints(microbatch: tuple[int, ...], **fixed: Any) -> Choices:
    """What the papers had to choose from."""
    return Choices(zero=(0,), recompute=("full",), microbatch=microbatch, ends_count=(False,), **fixed)


def interval(job: Job, of: Layouts) -> tuple[float, float, float]:
    """Predicted step time and the bounds of its interval, of one layout."""
    low, high = np.quantile(cost(job, of, job.drawn(NUM_DRAWS)).step_s, QUANTILES)
    return float(cost(job, of, job.typical).step_s[0]), float(low), float(high)


class TestMegatronTimes:
    def predicted(self, row: tuple[Any, ...]) -> tuple[float, float, float, float]:
        """Seconds a step: predicted, its bounds, and published."""
        name, tp, pp, gpus, batch, tflops, microbatch = row
        job = as_published(name, gpus, batch)
        of = valid_layouts(
            job.model, DGX, gpus, batch, constraints(microbatch, tensor_parallel=(tp,), pipeline_parallel=(pp,))
        )
        best = of.take(np.array([np.argmin(cost(job, of, job.typical).step_s)]))
        assert job.model.layers and job.model.hidden
        flops = transformer_flops(batch, 2048, job.model.layers, job.model.hidden, 51200)
        return *interval(job, best), float(flops) / gpus / tflops / 1e12

    @pytest.mark.parametrize("row", MEGATRON, ids=lambda row: row[0])
    def test_every_row_is_within_its_interval(self, row: tuple[Any, ...]):
        predicted, low, high, published = self.predicted(row)
        assert low <= published <= high
        assert predicted == pytest.approx(published, rel=0.08)

    def test_all_rows_together(self):
        errors = [abs(predicted / published - 1) for predicted, _, _, published in map(self.predicted, MEGATRON)]
        assert np.mean(errors) < 0.04


class TestPublishedLayouts:
    @pytest.mark.parametrize("row", MEGATRON + MT_NLG, ids=lambda row: f"{row[0]}-{row[3]}")
    def test_rank_in_the_top_three_without_interleaving(self, row: tuple[Any, ...]):
        name, tp, pp, gpus, batch, _, microbatch = row
        found = ranked(as_published(name, gpus, batch), constraints(microbatch, interleave=(1,)))
        place = found.rank_of(tp=tp, pp=pp)
        assert place is not None and place <= 3

    def test_ranks_where_interleaving_is_free(self):
        """18.4B falls to 6: interleaved pipelines of 2 x 4 and 4 x 2 are predicted faster than 8 x 1, by 15 %."""
        places = {}
        for name, tp, pp, gpus, batch, _, microbatch in MEGATRON + MT_NLG:
            places[name, gpus] = ranked(as_published(name, gpus, batch), constraints(microbatch)).rank_of(tp=tp, pp=pp)
        assert places.pop(("megatron-18.4b", 256)) == 6
        assert all(place is not None and place <= 3 for place in places.values())

    def test_gpt_neox_20b(self):
        """arXiv:2204.06745, section 2.3: 96 A100 of 40 GB, 8 a node: tensor 2, pipeline 4, ZeRO-1, 1,538 sequences."""
        job = Job(models.load("gpt-neox-20b"), machines.load("berzelius"), 96, 1536, "fp16", False, False)
        place = ranked(job, Choices()).rank_of(tp=2, pp=4, zero=1)
        assert place is not None and place <= 3


@dataclass(frozen=True)
class Run:
    """A published step: degrees, microbatch, recomputation as an index, seconds."""

    job: Job
    tp: int
    pp: int
    zero: int
    microbatch: int
    recompute: int
    seconds: float
    interleave: int = 1

    def layout(self) -> Layouts:
        dp = self.job.devices // self.tp // self.pp
        count = self.job.batch // dp // self.microbatch
        numbers = (self.tp, self.pp, dp, self.zero, self.microbatch, count, self.interleave, self.recompute, 1, 1, 0)
        return Layouts(*(np.array([number]) for number in numbers))


def errors_and_coverage(runs: Iterable[Run]) -> tuple[float, float]:
    """Mean absolute relative error, and the share of runs within their interval."""
    found = [(*interval(run.job, run.layout()), run.seconds) for run in runs]
    errors = [abs(predicted / seconds - 1) for predicted, _, _, seconds in found]
    return float(np.mean(errors)), float(np.mean([low <= seconds <= high for _, low, high, seconds in found]))


def gpt(hidden: int, layers: int, heads: int, seq_len: int, vocab: int) -> models.Model:
    values = {"hidden": hidden, "layers": layers, "heads": heads, "seq_len": seq_len, "vocab": vocab}
    return models.parse({"name": "gpt", "kind": "decoder", "source": "", "learned_positions": True} | values, "here")


OTHERS = [
    # arXiv:2205.05198, table 5: 22B on one node, 530B on 35; recomputed in full, or its scores (sequence parallel).
    # Hidden, layers, heads, GPUs, batch, tensor, pipeline parallel, microbatch, interleave, recomputed, seconds.
    (6144, 48, 64, 8, 4, 8, 1, 4, 1, 2, 1.42),
    (6144, 48, 64, 8, 4, 8, 1, 4, 1, 1, 1.10),
    (20480, 105, 128, 280, 280, 8, 35, 1, 3, 2, 49.05),
    (20480, 105, 128, 280, 280, 8, 35, 1, 3, 1, 37.83),
    # arXiv:2104.04473, table 2, the rows without ZeRO: 153, 171 and 167 TFLOP/s a GPU.
    (12288, 96, 96, 384, 1536, 8, 12, 1, 2, 2, 76.85),
    (20480, 105, 128, 560, 2240, 8, 35, 1, 3, 2, 206.3),
    (20480, 105, 128, 1120, 2240, 8, 35, 1, 1, 2, 105.6),
    # arXiv:2201.11990, section 2.4: MT-NLG 530B.
    (20480, 105, 128, 2240, 1920, 8, 35, 1, 1, 2, 60.1),
    (20480, 105, 128, 2800, 1920, 8, 35, 1, 1, 2, 50.2),
]


def other(row: tuple[Any, ...]) -> Run:
    hidden, layers, heads, gpus, batch, tp, pp, microbatch, interleave, recompute, seconds = row
    job = Job(gpt(hidden, layers, heads, 2048, 51200), DGX, gpus, batch, "fp16", recompute == 1, False)
    return Run(job, tp, pp, 0, microbatch, recompute, seconds, interleave)


def test_runs_that_nothing_was_fitted_on():
    """MT-NLG's two took a fifth longer than predicted, out of their intervals; the other seven are within 8 %."""
    error, inside = errors_and_coverage(map(other, OTHERS))
    assert error < 0.08 and inside >= 0.75


def test_zero_3_of_2021_was_slower_than_its_bytes():
    """arXiv:2104.04473, table 2: DeepSpeed's ZeRO-3 on 384 and 768 GPUs took 81.7 and 66.8 s; see FSDP below."""
    for gpus, microbatch, seconds in ((384, 4, 81.7), (768, 2, 66.8)):
        job = Job(gpt(12288, 96, 96, 2048, 51200), DGX, gpus, 1536, "fp16", False, False)
        assert interval(job, Run(job, 1, 1, 3, microbatch, 2, seconds).layout())[0] < 0.8 * seconds


HIDDEN_LAYERS_HEADS = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
FOUNDRY = [
    # llm-foundry scripts/train/benchmarking/README.md @8c8dd48f7, every ninth row of FULL_SHARD in bf16: model, tokens,
    # GPUs, GPU, microbatch, accumulation, global batch, tokens/s, recomputed.
    ("70b", 2048, 128, "h100_80gb", 8, 1, 1024, 135490, True),
    ("13b", 32768, 8, "h100_80gb", 1, 3, 24, 15812, True),
    ("7b", 4096, 8, "h100_80gb", 16, 2, 256, 68893, True),
    ("3b", 1024, 8, "h100_80gb", 20, 6, 960, 216369, False),
    ("1b", 1024, 8, "h100_80gb", 18, 4, 576, 391287, False),
    ("760m", 512, 8, "h100_80gb", 96, 2, 1536, 669998, False),
    ("13b", 8192, 8, "a100_80gb", 5, 3, 120, 14362, True),
    ("7b", 2048, 8, "a100_80gb", 6, 2, 96, 37130, False),
    ("3b", 512, 8, "a100_80gb", 40, 6, 1920, 97019, False),
    ("760m", 65536, 8, "a100_80gb", 1, 2, 16, 33150, True),
    ("350m", 32768, 8, "a100_80gb", 2, 2, 32, 109222, False),
    ("125m", 16384, 8, "a100_80gb", 4, 2, 64, 480322, False),
    ("13b", 2048, 16, "a100_40gb", 10, 1, 160, 31900, True),
    ("7b", 1024, 8, "a100_40gb", 24, 4, 768, 30833, True),
    ("3b", 512, 8, "a100_40gb", 20, 8, 1280, 90596, False),
    ("760m", 32768, 8, "a100_40gb", 1, 4, 32, 57464, True),
    ("350m", 16384, 8, "a100_40gb", 2, 4, 64, 183175, False),
    ("125m", 8192, 8, "a100_40gb", 5, 3, 120, 694868, False),
]


def foundry(row: Iterable[Any]) -> Run:
    name, tokens, gpus, gpu, microbatch, _, batch, tokens_per_s, recomputed = row
    hidden, layers, heads = HIDDEN_LAYERS_HEADS[name]
    machine = machines.load({"h100_80gb": "dgx-h100", "a100_80gb": "dgx-a100", "a100_40gb": "berzelius"}[gpu])
    job = Job(gpt(hidden, layers, heads, tokens, 50368), machine, gpus, batch)
    return Run(job, 1, 1, 3, microbatch, 2 if recomputed else 0, batch * tokens / tokens_per_s)


def of_eight_hundred(machine: Machine) -> Machine:
    """vTrain's nodes: 800 Gb/s."""
    return machine.model_copy(update={"inter_node": machine.inter_node.model_copy(update={"bytes_per_s": 12.5e9})})


VTRAIN = [
    # VIA-Research/vTrain data/ @f8dda84, several nodes of 8 A100: GPUs, batch, microbatch, hidden, heads, layers,
    # tensor, pipeline parallel, ms.
    (64, 512, 8, 3072, 32, 30, 1, 1, 3566.5),
    (64, 512, 2, 3072, 32, 30, 1, 1, 3700.5),
    (64, 512, 16, 3072, 32, 30, 2, 1, 3937.5),
    (64, 512, 4, 3072, 32, 30, 2, 1, 4078.2),
    (64, 512, 16, 3072, 32, 30, 4, 1, 4492.1),
    (64, 512, 4, 3072, 32, 30, 1, 2, 4382.1),
    (64, 512, 32, 3072, 32, 30, 8, 1, 4972.3),
    (64, 512, 8, 3072, 32, 30, 16, 1, 10894.0),
    (256, 1024, 8, 6144, 48, 40, 8, 1, 9603.6),
    (256, 1024, 2, 6144, 48, 40, 8, 1, 10453.3),
    (256, 1024, 2, 6144, 48, 40, 4, 2, 10031.6),
    (256, 1024, 4, 6144, 48, 40, 2, 4, 10825.0),
    (256, 1024, 4, 6144, 48, 40, 1, 8, 12379.0),
    (256, 1024, 2, 6144, 48, 40, 8, 4, 10926.4),
    (256, 1024, 8, 6144, 48, 40, 8, 8, 11026.1),
    (256, 1024, 2, 6144, 48, 40, 16, 1, 20414.8),
]


def vtrain(row: Iterable[Any], tokens: int = 2048) -> Run:
    gpus, batch, microbatch, hidden, heads, layers, tp, pp, ms = row
    model = gpt(int(hidden), int(layers), int(heads), tokens, 50257)
    job = Job(model, of_eight_hundred(DGX), int(gpus), int(batch), "fp16", False, False)
    return Run(job, int(tp), int(pp), 0, int(microbatch), 2, ms / 1e3)


class TestFitted:
    """What the assumptions were fitted on: not a test of prediction, but of the intervals' width."""

    def test_vtrain_of_several_nodes(self):
        error, inside = errors_and_coverage(map(vtrain, VTRAIN))
        assert error < 0.07 and inside >= 0.8

    def test_foundry(self):
        error, inside = errors_and_coverage(foundry(row) for row in FOUNDRY if row[3] != "h100_80gb")
        assert error < 0.09 and inside >= 0.8
        error, inside = errors_and_coverage(foundry(row) for row in FOUNDRY if row[3] == "h100_80gb")
        assert error < 0.18 and inside >= 0.8, "kernels of 2023: the lower end of what H100 reach"

    @pytest.mark.parametrize("table", ["vtrain_single_node", "vtrain_multi_node"])
    def test_all_of_vtrain(self, table: str):
        keys = ("# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers")
        degrees = ("tensor parallelism", "pipeline parallelism", "iteration time (ms)")
        rows = all_rows(table)
        runs = [vtrain([row[key] for key in (*keys, *degrees)], int(row["sequence length"])) for row in rows]
        error, inside = errors_and_coverage(runs)
        assert error < 0.09 and 0.8 <= inside <= 0.97

    def test_all_of_foundry(self):
        keys = ("model", "seq", "gpus", "gpu", "microbatch", "grad_accum", "global_batch", "tokens_per_s", "act_ckpt")
        rows = [row for row in all_rows("llmfoundry_fsdp") if row["sharding"] == "FULL_SHARD"]
        rows = [row for row in rows if row["precision"] in ("amp_bf16", "bf16")]
        runs = [foundry([row[key] for key in keys]) for row in rows if row["gpu"] != "h100_80gb"]
        error, inside = errors_and_coverage(runs)
        assert len(runs) > 100 and error < 0.09 and 0.8 <= inside <= 0.985
        error, inside = errors_and_coverage(
            foundry([row[key] for key in keys]) for row in rows if row["gpu"] == "h100_80gb"
        )
        assert error < 0.27 and inside >= 0.6


def test_intervals_narrow_with_their_ranges():
    """The draws' spread is what makes an interval, not the number of draws."""
    run = vtrain(VTRAIN[0])
    fixed = replace(
        run.job.drawn(NUM_DRAWS),
        **{name: getattr(run.job.typical, name) for name in ("matrix_efficiency", "unexplained", "half_area")},
    )
    narrow = np.quantile(cost(run.job, run.layout(), fixed).step_s, QUANTILES)
    wide = interval(run.job, run.layout())[1:]
    assert narrow[1] - narrow[0] < 0.8 * (wide[1] - wide[0])
