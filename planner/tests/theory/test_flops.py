"""FLOPs, training days and utilization against published tables, sums by hand and counted models."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.theory import flops
from tests.helpers.published_tables import all_rows

A100, H100 = 312e12, 989.4e12
"""Dense bf16 peak, FLOP/s."""

MEGATRON_TABLE_1 = [
    # hidden, layers, billions of flops, GPUs, batch, TFLOP/s a GPU, % of peak, total PFLOP/s, seconds a step
    (2304, 24, 1.7, 32, 512, 137, 44, 4.4, 3.53),
    (4096, 36, 7.5, 128, 512, 142, 46, 18.2, 3.70),
    (8192, 48, 39.1, 512, 1536, 138, 44, 70.8, 14.45),
    (12288, 80, 145.6, 1536, 2304, 148, 47, 227.1, 24.82),
    (20480, 105, 529.6, 2520, 2520, 163, 52, 410.2, 54.08),
]
"""Narayanan et al. 2021 (arXiv:2104.04473), table 1: s = 2048, V = 51200, full recomputation; step times derived."""
SHAPES = {174.6: (96, 12288), 529.6: (105, 20480)}
"""Layers and hidden size by billions of flops."""
MEGATRON_TABLE_2 = [
    # billions of flops, batch, GPUs, TFLOP/s a GPU, days for 300e9 tokens
    (174.6, 1536, 384, 144, 90),
    (174.6, 1536, 768, 88, 74),
    (529.6, 2560, 640, 138, 169),
    (174.6, 1536, 384, 153, 84),
    (529.6, 2240, 560, 171, 156),
    (529.6, 2240, 1120, 167, 80),
]
"""The same paper, table 2."""
DAYS = [(2.7e9, 127, 1.2), (6.7e9, 130, 3.0), (13e9, 135, 5.6), (175e9, 140, 72.3)]
"""Parameters, TFLOP/s a GPU, days on 480 A100 for 300e9 tokens (NVIDIA's notebook on large-scale training, 2023)."""
KORTHIKANTI_TABLE_5 = [
    # layers, hidden, batch, GPUs, seconds a step with selective recomputation, MFU %, HFU %
    (48, 6144, 4, 8, 1.10, 41.5, 43.7),
    (105, 20480, 280, 280, 37.83, 56.0, 57.0),
]
"""Korthikanti et al. 2022 (arXiv:2205.05198), table 5; s = 2048, V = 51200."""
MPT = {
    "125m": (12, 768), "350m": (24, 1024), "760m": (24, 1536), "1b": (24, 2048), "3b": (32, 2560),
    "7b": (32, 4096), "13b": (40, 5120), "30b": (48, 7168), "70b": (80, 8192),
}  # fmt: skip
LLM_FOUNDRY = [
    # model, seq, GPUs, peak, MFU %, tokens/s, parameters
    ("70b", 2048, 128, H100, 43.36, 135490, 64862437376),
    ("13b", 16384, 8, H100, 35.55, 23881, 12927354880),
    ("3b", 32768, 8, H100, 28.84, 46984, 2730480640),
    ("1b", 2048, 16, H100, 42.36, 736596, 1315950592),
    ("30b", 512, 8, A100, 56.4, 7739, 29964204032),
    ("7b", 2048, 8, A100, 64.23, 37130, 6658859008),
    ("1b", 16384, 8, A100, 56.6, 79650, 1345310720),
    ("760m", 1024, 8, A100, 47.76, 238122, 758897664),
    ("125m", 16384, 8, A100, 50.61, 480322, 136321536),
    ("13b", 512, 8, A100, 44.28, 14108, 12846090240),
    ("3b", 2048, 16, A100, 56.02, 156013, 2651837440),
    ("760m", 32768, 8, A100, 44.53, 57464, 807656448),
    ("350m", 2048, 16, A100, 48.66, 886622, 355985408),
]
"""mosaicml/llm-foundry, scripts/train/benchmarking/README.md (FSDP, MPT, bf16)."""


def step(layers: float, hidden: float, batch: float, recompute: str = "full") -> Any:
    return flops.transformer_flops(batch, 2048, layers, hidden, 51200, recompute)


class TestTransformer:
    def test_is_the_sum_of_its_matrix_products(self) -> None:
        """A layer of h = 4, s = 2: query, key, value and output 4 h x h, MLP 2 of h x 4h; scores and values s x s."""
        products = 2 * 2 * (4 * 4 * 4 + 2 * 4 * 16)
        attention = 2 * (2 * 2 * 2 * 4)
        head = 2 * 2 * 4 * 10
        forward = 3 * (products + attention) + head  # 3 layers
        found = flops.transformer_flops(5, 2, 3, 4, 10, "none")
        assert found == 5 * 3 * forward
        again = flops.transformer_flops(5, 2, 3, 4, 10, "full")
        assert again - found == 5 * 3 * (products + attention)
        selective = flops.transformer_flops(5, 2, 3, 4, 10, "selective")
        assert selective - found == 5 * 3 * attention
        causal = flops.transformer_flops(5, 2, 3, 4, 10, "none", causal=True)
        assert found - causal == 5 * 3 * 3 * attention / 2

    def test_is_the_published_form(self) -> None:
        b, s, layers, h, v = 3, 2048, 40, 5120, 50257
        base = b * s * layers * h**2
        assert flops.transformer_flops(b, s, layers, h, v) == pytest.approx(
            96 * base * (1 + s / (6 * h) + v / (16 * layers * h))
        )
        assert flops.transformer_flops(b, s, layers, h, v, "none") == pytest.approx(
            72 * base * (1 + s / (6 * h) + v / (12 * layers * h))
        )
        assert flops.transformer_flops(b, s, layers, h, v, "selective_published") == pytest.approx(
            72 * base * (1 + s / (3 * h) + v / (12 * layers * h))
        )
        assert flops.transformer_flops(b, s, layers, h, v, "selective") == pytest.approx(
            72 * base * (1 + 2 * s / (9 * h) + v / (12 * layers * h))
        )

    def test_takes_keywords_and_arrays(self) -> None:
        found = flops.transformer_flops(
            batch_size=[1, 2], seq_len=2048, num_layers=24, hidden_size=[[1024], [2048]], vocab_size=50304
        )
        assert found.shape == (2, 2) and found.dtype == np.float64
        assert found[1, 1] == flops.transformer_flops(2, 2048, 24, 2048, 50304)

    def test_is_what_the_real_model_counts(self) -> None:
        """GPT-NeoX counted on the meta device: same convention (all of attention), so the same number."""
        from benchsuite.workloads import gpt_neox
        from benchsuite.workloads.flops import count

        variant = gpt_neox.WORKLOAD.variants["nano"]
        for layers, hidden in ((2, 64), (3, 128)):
            shape = replace(
                variant, model=dict(variant.model) | {"num_layers": layers, "hidden_size": hidden, "num_heads": 4}
            )
            counted = count(gpt_neox.WORKLOAD, shape)
            s, v = shape.sample["seq_len"], shape.sample["vocab_size"]
            both = counted.forward_flops + counted.backward_flops
            assert flops.transformer_flops(1, s, layers, hidden, v, "none") == both
            again = both + counted.blocks_forward_flops
            assert flops.transformer_flops(1, s, layers, hidden, v, "full") == again

    @pytest.mark.parametrize(
        ("given", "line"),
        [
            ({"recompute": "half"}, "recompute 'half' is unknown; allowed: full, none, selective, selective_published"),
            ({"seq_len": 0}, "seq_len 0 is not allowed; allowed: a finite number above 0"),
            ({"hidden_size": [8, -1]}, "hidden_size -1 is not allowed; allowed: a finite number above 0"),
            ({"batch_size": float("nan")}, "batch_size nan is not allowed; allowed: a finite number above 0"),
            ({"vocab_size": "many"}, "vocab_size 'many' is not a number; allowed: a finite number above 0"),
        ],
    )
    def test_refuses(self, given: dict[str, Any], line: str) -> None:
        valid = {"batch_size": 1, "seq_len": 8, "num_layers": 2, "hidden_size": 8, "vocab_size": 16}
        with pytest.raises(ValueError) as error:
            flops.transformer_flops(**valid | given)
        assert str(error.value) == line and isinstance(error.value, UserError)


class TestMegatron:
    @pytest.mark.parametrize("row", MEGATRON_TABLE_1)
    def test_table_1(self, row: tuple[float, ...]) -> None:
        hidden, layers, params_b, gpus, batch, tflops, percent, pflops, seconds = row
        params = flops.transformer_params(layers, hidden, 51200, 2048)
        assert params / 1e9 == pytest.approx(params_b, rel=0.03 if params_b < 18 else 0.003)
        step_flops = step(layers, hidden, batch)
        exact = flops.step_s(step_flops, gpus, A100, tflops * 1e12 / A100)
        assert exact == pytest.approx(seconds, abs=0.006)
        assert 100 * flops.utilization(step_flops, exact, gpus, A100) == pytest.approx(percent, abs=0.6)
        assert step_flops / exact / 1e15 == pytest.approx(pflops, rel=0.004)

    @pytest.mark.parametrize("row", MEGATRON_TABLE_2)
    def test_table_2(self, row: tuple[float, ...]) -> None:
        params_b, batch, gpus, tflops, days = row
        layers, hidden = SHAPES[params_b]
        found = flops.exact_training_days(step(layers, hidden, batch), batch * 2048, 300e9, gpus, tflops * 1e12)
        assert found == pytest.approx(days, rel=0.012)
        short = flops.training_days(params_b * 1e9, 300e9, gpus, tflops * 1e12)
        assert 0.014 <= 1 - short / found <= 0.03

    def test_all_rows(self) -> None:
        found = all_rows("megatron_table1")
        for row in found:
            rest = [row[name] for name in ("gpus", "batch", "tflops_per_gpu", "pct_peak", "agg_pflops")]
            self.test_table_1((row["hidden"], row["layers"], row["params_B"], *rest, row["derived_iter_time_s"]))
        for row in all_rows("megatron_table2"):
            names = ("params_B", "batch", "gpus", "tflops_per_gpu", "days_300B_tokens")
            self.test_table_2(tuple(row[name] for name in names))
        assert len(found) == len(MEGATRON_TABLE_1)


class TestDays:
    @pytest.mark.parametrize(("params", "tflops", "days"), DAYS)
    def test_printed(self, params: float, tflops: float, days: float) -> None:
        found = flops.training_days(params=params, tokens=300e9, num_devices=480, achieved_flops=tflops * 1e12)
        assert round(float(found), 1) == days

    def test_gpt3_on_few_devices(self) -> None:
        """3.14e23 FLOP take 148.5 years at 67 TFLOP/s (an H100 in fp32), 31.9 at an A100's dense bf16 peak."""
        years = flops.step_s(3.14e23, 1, [67e12, A100]) / flops.SECONDS_PER_DAY / 365.25
        assert years == pytest.approx([148.5, 31.9], abs=0.05)

    def test_neox_20b_does_not_take_30_days(self) -> None:
        """472e9 tokens (150,000 steps of 1,536 sequences) at 117 TFLOP/s on 96 A100: 80 days (its 20B.yml)."""
        tokens = 150_000 * 96 / 8 * 4 * 32 * 2048
        assert flops.training_days(20.55e9, tokens, 96, 117e12) == pytest.approx(80, abs=0.5)

    def test_all_rows(self) -> None:
        for row in all_rows("days_needed_nvidia_slides"):
            found = flops.training_days(row["P_used"], row["tokens"], row["n_gpus"], row["X_tflops"] * 1e12)
            assert round(float(found), 1) == row["days_printed"]

    @pytest.mark.parametrize("name", ["params", "tokens", "num_devices", "achieved_flops"])
    def test_refuses_nothing(self, name: str) -> None:
        valid = {"params": 1e9, "tokens": 1e9, "num_devices": 8, "achieved_flops": 1e12}
        with pytest.raises(ValueError, match=f"{name} 0 is not allowed"):
            flops.training_days(**valid | {name: 0})


class TestUtilization:
    @pytest.mark.parametrize("row", KORTHIKANTI_TABLE_5)
    def test_korthikanti_table_5(self, row: tuple[float, ...]) -> None:
        layers, hidden, batch, gpus, seconds, mfu, hfu = row
        model = flops.utilization(step(layers, hidden, batch, "none"), seconds, gpus, A100)
        assert 100 * model == pytest.approx(mfu, abs=0.2)
        hardware = flops.utilization(step(layers, hidden, batch, "selective_published"), seconds, gpus, A100)
        assert 100 * hardware == pytest.approx(hfu, abs=0.2)

    def test_hardware_of_selective_recomputation_is_less_than_published(self) -> None:
        """22B: 42.4 % where 43.7 is printed, with attention done again once."""
        assert 100 * flops.utilization(step(48, 6144, 4, "selective"), 1.10, 8, A100) == pytest.approx(42.4, abs=0.15)

    @pytest.mark.parametrize("row", LLM_FOUNDRY)
    def test_llm_foundry(self, row: tuple[Any, ...]) -> None:
        model, seq, gpus, peak, mfu, tokens_per_s, params = row
        layers, hidden = MPT[model]
        per_token = flops.flops_per_token(params, layers, hidden, seq)
        found = 100 * flops.utilization(per_token * tokens_per_s, 1, gpus, peak)
        assert found == pytest.approx(mfu, rel=2.5e-4)

    def test_llm_foundry_all_rows(self) -> None:
        rows = [row for row in all_rows("llmfoundry_fsdp") if row["precision"] != "amp_fp8"]
        for row in rows:
            peak = H100 if row["gpu"].startswith("h100") else A100
            self.test_llm_foundry(
                (row["model"], row["seq"], row["gpus"], peak, row["MFU"], row["tokens_per_s"], row["params"])
            )
        assert len(rows) > 100

    def test_torchtitan(self) -> None:
        """llama3.1-8B on 8 H100 (torchtitan, benchmarks/*.md): 33 % of the peak, 39 compiled.

        Parameters without the embedding, all of attention: 6 (P - V h) + 12 l h s.
        """
        params = 8_030_261_248
        per_token = flops.flops_per_token(params - 128256 * 4096, 32, 4096, 8192)
        shares = flops.utilization(per_token * np.array([5762, 6667]), 1, 1, H100)
        assert 100 * shares == pytest.approx([33.7, 39.0], abs=0.05)

    def test_mt_nlg_530b(self) -> None:
        """126 and 121 TFLOP/s a GPU (Smith et al. 2022, arXiv:2201.11990, section 2.4): batch 1920, full recompute."""
        achieved = step(105, 20480, 1920) / (np.array([60.1, 50.2]) * [2240, 2800])
        assert achieved / 1e12 == pytest.approx([126, 121], rel=0.03)

    def test_llama_65b(self) -> None:
        """About 380 tokens/s a GPU, so 1.4e12 tokens take 1,022,362 GPU hours (Touvron et al. 2023, table 15)."""
        per_token = flops.flops_per_token(65.2e9, 80, 8192, 2048)
        hours = 24 * flops.exact_training_days(per_token, 1, 1.4e12, 1, 380 * per_token)
        assert hours == pytest.approx(1_022_362, rel=0.002)

    def test_conventions_of_a_token(self) -> None:
        """Palm's 6 P + 12 l h s, a causal mask's half of that, and parameters alone."""
        found = [
            flops.flops_per_token(1e9, 10, 1000, 2000, convention)
            for convention in ("full_attention", "causal", "none")
        ]
        assert found == [6e9 + 2.4e8, 6e9 + 1.2e8, 6e9]
        with pytest.raises(ValueError, match="convention 'palm' is unknown; allowed: full_attention, causal, none"):
            flops.flops_per_token(1e9, 10, 1000, 2000, "palm")

    def test_a_step_at_half_of_the_peak_takes_twice_as_long(self) -> None:
        assert flops.step_s(1e15, 10, 1e12, 0.5) == 200
        assert flops.utilization(1e15, 200, 10, 1e12) == 0.5
        with pytest.raises(ValueError, match="efficiency 2 is not allowed; allowed: a number from 0 to 1"):
            flops.step_s(1e15, 10, 1e12, 2)
