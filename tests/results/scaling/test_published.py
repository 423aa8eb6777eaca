"""Published throughputs, fed in as records, give the published efficiencies."""

from typing import Any

import pandas as pd
import pytest

from benchsuite.results.scaling.series import Series, find_series
from tests.results.scaled import frame, made_trials


def strong(rates: dict[int, float], batch: int, **spec: Any) -> Series:
    spec |= {"batch_size": None, "global_batch_size": batch}
    records = made_trials({ranks: [rate] for ranks, rate in rates.items()}, spec=spec)
    (found,) = find_series(frame(*records))
    return found


def weak(rates: dict[int, float], batch: int) -> Series:
    (found,) = find_series(frame(*made_trials({n: [rate] for n, rate in rates.items()}, spec={"batch_size": batch})))
    return found


@pytest.mark.parametrize(
    ("batch", "sequences_per_s", "published_speedup"),
    [
        (65536, {1: 4553, 2: 9191, 4: 18119}, {2: 2.02, 4: 3.98}),
        (65536, {1: 2486, 2: 4979, 4: 9859}, {2: 2.0, 4: 3.97}),
        (32768, {1: 1648, 2: 3291, 4: 6464}, {2: 2.0, 4: 3.92}),
        (32768, {1: 854, 2: 1684, 4: 3293}, {2: 1.97, 4: 3.86}),
    ],
    ids=["128 mixed", "128 TF32", "512 mixed", "512 TF32"],
)
def test_bert_large_over_nodes(batch: int, sequences_per_s: dict[int, float], published_speedup: dict[int, float]):
    """BERT-large, global batch 65,536 at length 128 and 32,768 at 512: NVIDIA DeepLearningExamples, BERT README."""
    series = strong({8 * nodes: rate for nodes, rate in sequences_per_s.items()}, batch)
    assert (series.kind, series.baseline_ranks) == ("strong", 8)
    for found in series.points[1:]:
        assert found.efficiency is not None
        nodes = found.ranks // 8
        assert found.efficiency * nodes == pytest.approx(published_speedup[nodes], abs=0.006)


def test_llm_foundry_keeps_its_flops_utilization():
    """MPT-7B, 6 sequences of 2048 per H100 (llm-foundry, benchmarking README): MFU 46.44 % on 8, 45.71 % on 128.

    At one model and length MFU is tokens per second and device over a constant, so its ratio is the efficiency.
    """
    series = weak({8: 85144 / 2048, 128: 1340830 / 2048}, 6)
    assert series.points[1].efficiency == pytest.approx(45.71 / 46.44, abs=2e-4)


def test_megatron_turing_530b():
    """MT-NLG 530B, batch 1920 (Smith et al. 2022, 2.4): 60.1 s on 2240 A100, 50.2 s on 2800; 126 and 121 TFLOP/s each.

    The printed TFLOP/s, rounded to whole ones, give the same efficiency.
    """
    series = strong({2240: 1920 / 60.1, 2800: 1920 / 50.2}, 1920, parallelism={"dp": None, "tp": 8, "pp": 35})
    assert series.points[1].efficiency == pytest.approx(60.1 * 2240 / (50.2 * 2800))
    assert series.points[1].efficiency == pytest.approx(121 / 126, abs=0.006)


def test_imagenet_in_an_hour():
    """ResNet-50: 1740 minutes on 8 P100 (He et al.), 60 on 256 (Goyal et al. 2017): 29 x on 32 x GPUs, 90.6 %."""
    series = weak({8: 1 / 1740, 256: 1 / 60}, 32)
    assert series.points[1].efficiency == pytest.approx(0.906, abs=5e-4)


@pytest.mark.parametrize(
    ("one", "eight", "published_factor"),
    [(10.40, 81.71, 7.85), (17.91, 100.24, 5.60)],
    ids=["TF32", "mixed"],
)
def test_unet3d_within_a_node(one: float, eight: float, published_factor: float):
    """UNet3D volumes per second on 1 and 8 A100 (NVIDIA DeepLearningExamples); 7.85 is printed cut, not rounded."""
    found = weak({1: one, 8: eight}, 2).points[1].efficiency
    assert found is not None and found * 8 == pytest.approx(published_factor, abs=0.01)


class TestAllRows:
    def test_bert_large_over_nodes(self, published: dict[str, pd.DataFrame]):
        """Every printed speed-up of 2 and 4 nodes, at both lengths and precisions."""
        num_checked = 0
        for length, rows in published["bert_large_multinode_strong"].groupby("seq"):
            for precision in ("mixed", "tf32"):
                rates = dict(zip(8 * rows["nodes(8xA100-80)"], rows[f"{precision}_seq_s"], strict=True))
                series = strong(
                    {int(ranks): float(rate) for ranks, rate in rates.items()}, 65536 if length == 128 else 32768
                )
                printed = dict(zip(8 * rows["nodes(8xA100-80)"], rows[f"{precision}_scaling"], strict=True))
                for found in series.points[1:]:
                    assert found.efficiency is not None
                    assert found.efficiency * found.ranks / 8 == pytest.approx(printed[found.ranks], abs=0.0101)
                    num_checked += 1
        assert num_checked == 8

    def test_llm_foundry_keeps_its_flops_utilization(self, published: dict[str, pd.DataFrame]):
        """All models and lengths that were run on several numbers of GPUs at one batch per GPU."""
        rows, num_checked = published["llmfoundry_fsdp"], 0
        rows = rows.assign(batch=rows["global_batch"] // rows["gpus"])
        for (_, length, *_, batch), group in rows.groupby(["model", "seq", "gpu", "precision", "batch"]):
            alike = group.drop_duplicates("gpus").sort_values("gpus")
            if len(alike) < 2:
                continue
            series = weak(dict(zip(alike["gpus"], alike["tokens_per_s"] / length, strict=True)), int(batch))
            for found, mfu in zip(series.points[1:], alike["MFU"].to_numpy()[1:], strict=True):
                assert found.efficiency == pytest.approx(mfu / alike["MFU"].to_numpy()[0], rel=2e-3)
                num_checked += 1
        assert num_checked == 2
