"""What a precision does to the computation."""

from collections.abc import Iterator

import pytest
import torch

from benchsuite.workloads.precision import autocast, set_float32
from benchsuite.workloads.resnet50 import WORKLOAD

CPU = torch.device("cpu")


@pytest.fixture
def restored() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_fp32_leaves_everything_in_float32() -> None:
    a = torch.randn(8, 8)
    with autocast("fp32", CPU):
        assert torch.equal(a @ a, a @ a)
        assert (a @ a).dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")


def test_bf16_computes_in_bfloat16_and_ends_with_the_block() -> None:
    a = torch.randn(8, 8)
    with autocast("bf16", CPU):
        product = a @ a
    assert product.dtype == torch.bfloat16
    assert (a @ a).dtype == torch.float32
    assert torch.allclose(product.float(), a @ a, atol=0.1)


def test_tf32_is_off_in_fp32(restored: None) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    set_float32("fp32")
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_tf32_is_on_where_it_is_asked_for(restored: None) -> None:
    set_float32("tf32")
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32


def test_a_bf16_loss_is_near_that_in_fp32_over_float32_weights() -> None:
    torch.manual_seed(0)
    variant = WORKLOAD.variants["tiny"]
    model = WORKLOAD.build(variant)
    batch = WORKLOAD.synthetic(variant, 8, CPU)
    losses = {}
    for precision in ("fp32", "bf16"):
        with autocast(precision, CPU):
            losses[precision] = WORKLOAD.loss(model, batch)
    assert losses["bf16"].dtype == torch.float32, "a loss in bfloat16 has three digits"
    assert losses["bf16"].item() != losses["fp32"].item()
    assert losses["bf16"].item() == pytest.approx(losses["fp32"].item(), rel=0.02)
    losses["bf16"].backward()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
