"""What a precision does to the computation."""

import copy
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchsuite.workloads import WorkloadError, bert, gpt_neox, unet3d
from benchsuite.workloads.precision import Scaler, autocast, convert, float32_kept, set_float32, takes_float8
from benchsuite.workloads.resnet50 import WORKLOAD
from benchsuite.workloads.workload import Workload

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


TRANSFORMERS = (
    (gpt_neox, "nano"),
    (gpt_neox, "nano_llama"),
    (gpt_neox, "nano_gpt2"),
    (gpt_neox, "nano_moe"),
    (bert, "nano"),
)


def types_of_outputs(workload: Workload, variant: str, model: nn.Module) -> dict[str, torch.dtype]:
    """The type of what each module returns under bf16."""
    found: dict[str, torch.dtype] = {}

    def note(name: str, _module: nn.Module, _given: object, output: object) -> None:
        if isinstance(output, Tensor):
            found[name] = output.dtype

    for name, module in model.named_modules():
        module.register_forward_hook(partial(note, name))
    with autocast("bf16", CPU):
        workload.loss(model, workload.synthetic(workload.variants[variant], 2, CPU))
    return found


@pytest.mark.parametrize(("module", "variant"), [*TRANSFORMERS, (unet3d, "nano")])
def test_modes_hand_on_the_types_that_fully_sharded_weights_make(module: ModuleType, variant: str) -> None:
    """FSDP gathers weights of 16 bits; all other modes have weights of 32 under autocast."""
    model = module.WORKLOAD.build(module.WORKLOAD.variants[variant])
    sharded = copy.deepcopy(model).to(torch.bfloat16)
    found = types_of_outputs(module.WORKLOAD, variant, model)
    assert found == types_of_outputs(module.WORKLOAD, variant, sharded)
    assert {*found.values()} == {torch.bfloat16}


@pytest.mark.parametrize(("module", "variant"), TRANSFORMERS)
def test_norms_return_what_they_are_given_on_cuda_too(module: ModuleType, variant: str) -> None:
    """CUDA's autocast has another list of what it leaves in float32. Fake tensors stand in place of a GPU's."""
    with torch.device("meta"):
        model = module.WORKLOAD.build(module.WORKLOAD.variants[variant]).requires_grad_(False)
    leaves = [part for part in model.modules() if isinstance(part, nn.Embedding | nn.LayerNorm | nn.RMSNorm)]
    torch.set_autocast_enabled("cuda", True)  # torch.autocast would look for a device
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            for leaf in leaves:
                leaf.to_empty(device="cuda")
                ids = torch.empty(2, 8, dtype=torch.int64, device="cuda")
                x = torch.empty(2, 8, leaf.weight.shape[-1], dtype=torch.bfloat16, device="cuda")
                assert leaf(ids if isinstance(leaf, nn.Embedding) else x).dtype == torch.bfloat16, leaf
            assert nn.functional.layer_norm(x, x.shape[-1:]).dtype == torch.float32, "torch's own"
    finally:
        torch.set_autocast_enabled("cuda", False)


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


def test_fp8_computes_in_float8_where_sizes_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated: torchao then rounds as float8 does and multiplies in float32; no device was there to multiply."""
    float8 = pytest.importorskip("torchao.float8")
    monkeypatch.setattr(float8, "Float8LinearConfig", partial(float8.Float8LinearConfig, emulate=True))
    workload, variant = gpt_neox.WORKLOAD, gpt_neox.WORKLOAD.variants["nano"]
    torch.manual_seed(0)
    model = workload.build(variant)
    names = {name for name, module in model.named_modules() if takes_float8(module)}
    twin = convert(copy.deepcopy(model), "fp8")
    assert {name for name, module in twin.named_modules() if type(module).__name__ == "Float8Linear"} == names
    assert len(names) == 4 * 4 + 1, "two of each attention and MLP, and the logits"
    assert twin.state_dict().keys() == model.state_dict().keys()
    batch = workload.synthetic(variant, 4, CPU)
    losses = []
    for each in (model, twin):
        loss = workload.loss(each, batch)
        loss.backward()
        losses.append(loss.item())
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.01)
    for (name, exact), (_, rounded) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert exact.grad is not None and rounded.grad is not None, name
        apart = (exact.grad - rounded.grad).norm() / exact.grad.norm()
        assert 0 < apart < 0.35, (name, apart)


def test_fp8_asks_torchao_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub in torchao's place: what it is asked for, where it is not installed either."""
    asked: list[tuple[list[str], dict[str, object]]] = []

    def converted(model: torch.nn.Module, *, module_filter_fn, config):  # type: ignore[no-untyped-def]
        asked.append(([name for name, part in model.named_modules() if module_filter_fn(part, name)], config))
        return model

    stub = ModuleType("torchao.float8")
    vars(stub).update(convert_to_float8_training=converted, Float8LinearConfig=dict)
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", stub)
    model = torch.nn.ModuleDict({"fits": torch.nn.Linear(32, 16), "not": torch.nn.Linear(32, 8)})
    assert convert(model, "fp8") is model
    assert asked == [(["fits"], {"pad_inner_dim": True})]
    with pytest.raises(WorkloadError, match="no linear layer has sizes that are multiples of 16"):
        convert(unet3d.WORKLOAD.build(unet3d.WORKLOAD.variants["nano"]), "fp8")


def test_what_fp8_leaves_is_bfloat16() -> None:
    a = torch.randn(8, 8)
    with autocast("fp8", CPU):
        assert (a @ a).dtype == torch.bfloat16
