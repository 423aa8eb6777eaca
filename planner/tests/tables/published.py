"""Published measurements as the predictor takes them; the tables are no part of this repository."""

from typing import Any

import numpy as np
import pandas as pd

from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.tables.configurations import Configurations

VTRAIN = {
    "# GPUs": "ranks",
    "global batch": "global_batch",
    "micro batch": "microbatch",
    "hidden size": "hidden_size",
    "attention heads": "num_heads",
    "# layers": "num_layers",
    "sequence length": "seq_len",
    "tensor parallelism": "tensor",
    "data parallelism": "data",
    "pipeline parallelism": "pipeline",
}
MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
"""Layers, width and heads of llm-foundry's models (scripts/train/benchmarking)."""
GPT2_VOCAB, MPT_VOCAB = 50257, 50368


def vtrain(table: pd.DataFrame) -> tuple[Configurations, Floats]:
    """Rows of Megatron-DeepSpeed on A100 (VIA-Research/vTrain, data/): every layer recomputed, 1F1B, 8 GPUs a node."""
    rows = table.rename(columns=VTRAIN)
    batches = rows["global_batch"] / rows["data"] / rows["microbatch"]
    return _configurations(rows, batches, GPT2_VOCAB, 0.0, 1.0, 0.0), rows["iteration time (ms)"].to_numpy() / 1e3


def mpt(table: pd.DataFrame) -> tuple[Configurations, Floats]:
    """Rows of FSDP with flash attention (mosaicml/llm-foundry, scripts/train/benchmarking)."""
    shape = {name: [MPT[model][place] for model in table["model"]] for place, name in enumerate(SHAPE)}
    rows = table.assign(**shape, seq_len=table["seq"], tensor=1.0, pipeline=1.0, data=table["gpus"])
    zero = np.where(table["sharding"] == "FULL_SHARD", 3.0, 2.0)
    seconds = table["microbatch"] * table["grad_accum"] * table["seq"] / table["tokens_per_s_gpu"]
    runs = _configurations(rows, table["grad_accum"], MPT_VOCAB, zero, table["act_ckpt"].to_numpy(dtype=float), 1.0)
    return runs, seconds.to_numpy(dtype=np.float64)


SHAPE = ("num_layers", "hidden_size", "num_heads")


def _configurations(
    rows: pd.DataFrame, batches: "pd.Series[float]", vocab: float, zero: Any, recompute: Any, flash: float
) -> Configurations:
    told = rows.assign(
        num_microbatches=batches, vocab_size=vocab, zero=zero, recompute=recompute, flash=flash, ranks_per_node=8.0
    )
    return Configurations(
        **{name: told[name].to_numpy(dtype=np.float64) for name in Configurations.__dataclass_fields__}
    )
