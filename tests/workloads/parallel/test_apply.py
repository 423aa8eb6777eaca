"""Blocks that are checkpointed and compiled."""

import pytest
import torch
from torch._dynamo.utils import counters

from benchsuite.workloads.gpt_neox import WORKLOAD
from benchsuite.workloads.parallel.apply import shape_blocks
from benchsuite.workloads.spec import ComputeSpec

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
