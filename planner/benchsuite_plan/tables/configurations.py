"""Rows of a table as configurations of a GPT, and the work of their steps."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import Job, Layouts
from benchsuite_plan.layout.work import Work, counted, joined


@dataclass(frozen=True)
class Configurations:
    """Training configurations of GPTs in 16 bits, one an element: float64 arrays of one shape (n,)."""

    microbatch: Floats
    """Sequences of a microbatch."""
    num_microbatches: Floats
    """Per step and data-parallel rank."""
    seq_len: Floats
    num_layers: Floats
    hidden_size: Floats
    num_heads: Floats
    vocab_size: Floats
    tensor: Floats
    pipeline: Floats
    data: Floats
    zero: Floats
    """0 to 3; 3 is FSDP's FULL_SHARD."""
    recompute: Floats
    """1: every layer's forward pass is done again."""
    flash: Floats
    """1: attention's scores never reach memory."""
    ranks_per_node: Floats

    @property
    def ranks(self) -> Floats:
        """Devices in all."""
        return self.tensor * self.pipeline * self.data

    @property
    def tokens(self) -> Floats:
        """Tokens of one microbatch."""
        return self.microbatch * self.seq_len

    @property
    def step_tokens(self) -> Floats:
        """Tokens of one step on all devices."""
        return self.tokens * self.num_microbatches * self.data

    def take(self, which: Any) -> "Configurations":
        """The configurations at these places."""
        return Configurations(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    @cached_property
    def work(self) -> Work:
        """What the steps compute and move, counted as the planner counts it, a model at a time."""
        columns = (
            self.num_layers,
            self.hidden_size,
            self.num_heads,
            self.vocab_size,
            self.seq_len,
            self.ranks_per_node,
        )
        alike, places = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        order = np.argsort(places, kind="stable")
        found = joined([self._of_one(row, np.flatnonzero(places == at)) for at, row in enumerate(alike)])
        return found.take(np.argsort(order))

    def _of_one(self, row: Floats, which: Any) -> Work:
        """Work of rows of one model and kind of node: stages have equally many layers, perhaps not whole ones."""
        layers, hidden, heads, vocab, tokens, each = (int(number) for number in row)
        sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "seq_len": tokens}
        model = models.parse({"name": "table", "kind": "decoder", "head_dim": max(hidden // heads, 1)} | sizes, "table")
        machine = machines.load("dgx-a100").changed(devices_per_node=each)
        job = Job(model, machine, each, 1, sequence_parallel=False, flash_attention=False)
        runs = self.take(which)
        stage = runs.num_layers / runs.pipeline
        counts = counted(job, runs._layouts(), (stage, stage, stage))
        changed = {"repeated": runs.recompute, "rescored": runs.recompute}
        return Work(**vars(counts) | changed | {"score_bytes": counts.score_bytes * (1 - runs.flash)})

    def _layouts(self) -> Layouts:
        ones = np.ones(len(self.tensor), dtype=np.int64)
        columns = {
            "tp": self.tensor,
            "pp": self.pipeline,
            "dp": self.data,
            "zero": self.zero,
            "microbatch": self.microbatch,
            "num_microbatches": self.num_microbatches,
        }
        whole = {name: np.round(column).astype(np.int64) for name, column in columns.items()}
        return Layouts(**whole, interleave=ones, recompute=0 * ones, cp=ones, ep=ones, ends_count=0 * ones)
