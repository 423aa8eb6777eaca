"""Blocks that are checkpointed and compiled, and what is gathered of those that are sharded."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from benchsuite.workloads.decoder import Layer
from benchsuite.workloads.gpt_neox import WORKLOAD
from benchsuite.workloads.layout import layout_of
from benchsuite.workloads.parallel import pipeline
from benchsuite.workloads.parallel.account import Kept, observed
from benchsuite.workloads.parallel.apply import shape_blocks
from benchsuite.workloads.parallel.dry import _alone_among
from benchsuite.workloads.parallel.recipe import Recipe
from benchsuite.workloads.spec import ComputeSpec, Parallelism

VARIANT = WORKLOAD.variants["nano"]


@pytest.mark.full
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_checkpointed_blocks_are_compiled_too(checkpointing: str) -> None:
    torch.manual_seed(0)
    model, batch = WORKLOAD.build(VARIANT), WORKLOAD.synthetic(VARIANT, 2, torch.device("cpu"))
    plain = WORKLOAD.loss(model, batch)
    plain.backward()  # type: ignore[no-untyped-call]
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    torch._dynamo.reset()
    counters.clear()
    shape_blocks(
        model, WORKLOAD, ComputeSpec.model_validate({"compile": True, "activation_checkpointing": checkpointing})
    )
    loss = WORKLOAD.loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert counters["frames"]["ok"] > 0 and not counters["graph_break"], "else torch runs it as it stands, in silence"
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for mine, theirs in zip(expected, (parameter.grad for parameter in model.parameters()), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("asked", "gathers"), [(None, 1), (False, 1), (True, 3)])
def test_a_pipeline_gathers_its_weights_once_for_all_microbatches(asked: bool | None, gathers: int) -> None:
    """Unless it is asked to drop them after forward. One rank alone: nothing is sent, and weights are no numbers."""
    layout = layout_of(Parallelism(pp=2, zero=3), 4)
    compute = ComputeSpec(precision="bf16", reshard_after_forward=asked)
    with _alone_among(layout, 0) as ranks:
        recipe = Recipe(WORKLOAD, ranks, compute)
        model = WORKLOAD.build(VARIANT)
        stages = pipeline.pp(model, recipe)
        pipeline.parallelized(model, nn.ModuleList(stages), recipe)
        with observed(Kept()) as seen:
            for _microbatch in range(3):
                stages[0](**WORKLOAD.synthetic(VARIANT, 2, torch.device("cpu")))
        groups = 1 + len([part for part in stages[0].modules() if isinstance(part, Layer)])
    assert [operation for operation, *_ in seen.found] == ["all_gather"] * groups * gathers
