"""A workload that waits in its first step for as long as the file BENCHSUITE_TEST_HOLD names its batch size."""

import dataclasses
import os
import time
from pathlib import Path

from torch import Tensor, nn

from benchsuite.workloads.gpt_neox import WORKLOAD as NEOX
from benchsuite.workloads.workload import Batch


def loss(model: nn.Module, batch: Batch) -> Tensor:
    hold, tokens = Path(os.environ["BENCHSUITE_TEST_HOLD"]), batch["tokens"]
    while not tokens.is_meta and hold.exists() and hold.read_text() == str(len(tokens)):  # meta: FLOPs are counted
        hold.with_suffix(".held").touch()
        time.sleep(0.02)
    return NEOX.loss(model, batch)


WORKLOAD = dataclasses.replace(NEOX, name="held", loss=loss)
