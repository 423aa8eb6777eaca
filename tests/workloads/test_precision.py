"""What a precision does to the computation."""

from collections.abc import Iterator

import pytest
import torch

from benchsuite.workloads.precision import Scaler, autocast, float32_kept, set_float32
from benchsuite.workloads.resnet50 import WORKLOAD

CPU = torch.device("cpu")


@pytest.fixture
def restored() -> Iterator[None]:
    with float32_kept():
        yield


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


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has no other name"
)
def test_choices_by_either_name_are_given_back() -> None:
    """One who chose by the newer name has a choice that torch does not tell by the older one."""
    matmul = torch.backends.cuda.matmul
    with float32_kept():
        matmul.fp32_precision = "tf32"
        with float32_kept():
            set_float32("fp32")
            assert matmul.fp32_precision == "ieee" and not matmul.allow_tf32
        assert matmul.fp32_precision == "tf32"
    with float32_kept():
        matmul.allow_tf32 = True
        with float32_kept():
            set_float32("fp32")
        assert matmul.allow_tf32 and matmul.fp32_precision == "tf32"
    assert not matmul.allow_tf32


def test_skipped_steps_are_counted_where_the_scale_falls() -> None:
    scaler, weight = Scaler("fp16", CPU), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for factor in (1.0, float("inf"), 1.0, float("nan")):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
    assert scaler.skipped_steps == 2
    assert torch.allclose(weight, torch.full((2,), 0.8)), "two steps were taken"
    assert Scaler("bf16", CPU).skipped_steps == 0
