"""Tables of layouts held to published measurements: a selection of rows here, all of them where PUBLISHED_TABLES is."""

import pandas as pd
import pytest

from planner.tests.tables.back_tests import constant_rate, halves, held_out, joined, mpt_scales
from planner.tests.tables.published import mpt

FSDP = [
    # model, length, GPUs, microbatch, microbatches, recomputed, tokens per second and GPU
    ("125m", 1024, 8, 52, 3, False, 148289),
    ("350m", 1024, 8, 32, 4, False, 62523),
    ("760m", 1024, 8, 24, 4, False, 33422),
    ("1b", 1024, 8, 16, 8, False, 20959),
    ("3b", 1024, 8, 10, 8, False, 10731),
    ("7b", 1024, 8, 24, 4, True, 3854),
    ("13b", 1024, 8, 8, 16, True, 1727),
    ("125m", 2048, 8, 26, 3, False, 136334),
    ("350m", 2048, 8, 16, 4, False, 55995),
    ("760m", 2048, 8, 12, 4, False, 30173),
    ("1b", 2048, 8, 8, 8, False, 19271),
    ("3b", 2048, 8, 5, 8, False, 10065),
    ("7b", 2048, 8, 12, 4, True, 3679),
    ("13b", 2048, 8, 4, 16, True, 1668),
    ("125m", 4096, 8, 13, 3, False, 115162),
    ("350m", 4096, 8, 8, 4, False, 46833),
    ("760m", 4096, 8, 6, 4, False, 25863),
    ("1b", 4096, 8, 4, 8, False, 16856),
    ("3b", 4096, 8, 2, 8, False, 8777),
    ("7b", 4096, 8, 6, 4, True, 3366),
    ("13b", 4096, 8, 2, 16, True, 1603),
    ("125m", 8192, 8, 5, 3, False, 86858),
    ("350m", 8192, 8, 4, 4, False, 34933),
    ("760m", 8192, 8, 3, 4, False, 20106),
    ("1b", 8192, 8, 2, 8, False, 13474),
    ("3b", 8192, 8, 1, 8, False, 7149),
    ("7b", 8192, 8, 3, 4, True, 2887),
    ("13b", 8192, 8, 1, 16, True, 1407),
    ("125m", 2048, 16, 26, 1, False, 130535),
    ("350m", 2048, 16, 18, 1, False, 55413),
    ("760m", 2048, 16, 12, 1, False, 29607),
    ("1b", 2048, 16, 8, 1, False, 19085),
    ("3b", 2048, 16, 5, 1, False, 9750),
    ("7b", 2048, 16, 16, 1, True, 3645),
    ("13b", 2048, 16, 10, 1, True, 1993),
]
"""MPT on A100-40GB with FSDP and flash attention (mosaicml/llm-foundry, scripts/train/benchmarking/README.md)."""


def fsdp_table() -> pd.DataFrame:
    names = ["model", "seq", "gpus", "microbatch", "grad_accum", "act_ckpt", "tokens_per_s_gpu"]
    return pd.DataFrame(FSDP, columns=names).assign(sharding="FULL_SHARD", gpu="a100_40gb", precision="bf16")


def test_twice_the_devices_from_half():
    """Keeping tokens per second and device is off by 4.5 %."""
    table = fsdp_table()
    runs, seconds = mpt(table)
    small = (table["gpus"] == 8).to_numpy()
    found = held_out(runs, seconds, small, known={"node_bytes_per_s": 0.8 * 200e9})
    assert found.errors.mean() < 0.035
    assert found.covered >= 6 / 7
    assert constant_rate(table, small).mean() == pytest.approx(0.0452, abs=5e-4)


def test_eighty_gigabytes_are_held_back_too_and_eight_bits_left_out():
    given = fsdp_table()
    others = [given.assign(gpu="a100_80gb"), given.assign(gpu="h100_80gb")]
    eight_bits = given.head(1).assign(gpu="h100_80gb", gpus=128, precision="amp_fp8")
    found = {device: len(test.errors) for device, test, _ in mpt_scales(pd.concat([given, *others, eight_bits]))}
    held = int((given["gpus"] > 8).sum())
    assert found == {"a100_40gb": held, "a100_80gb": held, "h100_80gb": held}


class TestAllRows:
    def test_multi_node_halves(self, published: dict[str, pd.DataFrame]):
        found = joined(halves(published["vtrain_multi_node"], 10))
        assert found.errors.mean() <= 0.08
        assert 0.8 <= found.covered <= 0.97

    def test_more_devices_from_up_to_half(self, published: dict[str, pd.DataFrame]):
        found = joined([test for _, test, _ in mpt_scales(published["llmfoundry_fsdp"])])
        assert len(found.errors) == 14
        assert found.errors.mean() <= 0.025
        assert found.covered >= 0.8
