"""What operators compute and move: a module counted by hand, and models against `workloads.flops`."""

import pytest
import torch
from torch import nn

from benchsuite import workloads
from benchsuite.workloads.flops import count
from benchsuite.workloads.parallel.operators import CLASSES, Operators, class_of
from benchsuite.workloads.workload import Workload

KINDS = {
    "contraction": "mm addmm bmm convolution convolution_backward mkldnn_convolution linear baddbmm_ "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention_backward conv2d",
    "normalisation": "native_layer_norm native_batch_norm_backward _softmax _log_softmax_backward_data sum mean "
    "max_pool2d_with_indices amax linalg_vector_norm",
    "element_wise": "add add_ mul gelu gelu_backward threshold_backward relu_ native_dropout bernoulli_ where sqrt "
    "_foreach_add_ _fused_adamw_ addcdiv_",
    "other": "copy_ _to_copy clone cat view empty fill_ zero_ normal_ embedding upsample_bilinear2d convert as_strided",
}


@pytest.mark.parametrize(("kind", "names"), KINDS.items())
def test_classes(kind: str, names: str) -> None:
    assert {name: class_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_a_module_by_hand() -> None:
    """(4, 8) -> linear to 16 with bias -> ReLU -> softmax -> sum, forward alone, in float32."""
    torch.manual_seed(0)
    linear, given = nn.Linear(8, 16), torch.randn(4, 8)
    with torch.no_grad(), Operators() as operators:
        torch.relu(linear(given)).softmax(-1).sum()
    found = operators.found
    product = 4 * (16 + 4 * 8 + 8 * 16 + 4 * 16)  # bias, input and weight are read, the result is written
    assert (found["contraction"].flops, found["contraction"].num_bytes) == (2 * 4 * 8 * 16, product)
    assert (found["element_wise"].flops, found["element_wise"].num_bytes) == (64, 4 * 2 * 64)
    # softmax: 5 an element, reads and writes 64; the sum: 1 an element, reads 64 and writes one
    assert (found["normalisation"].flops, found["normalisation"].num_bytes) == (5 * 64 + 64, 4 * (2 * 64 + 64 + 1))
    assert (found["other"].flops, found["other"].num_bytes) == (0, 0), "views move nothing"


def test_what_is_moved_by_hand() -> None:
    """In place: read and written; overwritten: written alone; gathered: the rows alone; repeated: what is stored."""
    table, row, other = torch.ones(100, 4), torch.ones(4), torch.zeros(3, 4)
    rows = torch.tensor([1, 2, 3])

    def moved(call: object) -> int:
        with torch.no_grad(), Operators() as operators:
            call()  # type: ignore[operator]
        return sum(one.num_bytes for one in operators.found.values())

    assert moved(lambda: other.add_(1.0)) == 2 * 48
    assert moved(lambda: other.copy_(table[:3])) == 2 * 48
    assert moved(lambda: other.zero_()) == 48
    assert moved(lambda: nn.functional.embedding(rows, table)) == 2 * 48 + 24
    assert moved(lambda: torch.empty(1000)) == 0
    assert moved(lambda: row.expand(3, 4) + other) == 16 + 2 * 48
    assert moved(lambda: torch._foreach_add_([other, table], 1.0)) == 2 * (48 + 1600)


@pytest.mark.parametrize("name", ["bert", "gpt_neox", "resnet50", "unet3d"])
def test_contractions_of_a_step_are_the_models_flops(name: str) -> None:
    """Counted in a real step on the CPU, with its fused attention, and on the meta device without any values."""
    torch.manual_seed(0)
    workload: Workload = workloads.load(workloads.WORKLOADS, name)
    variant = workload.variants["tiny"]
    model, batch = workload.build(variant), workload.synthetic(variant, 2, torch.device("cpu"))
    targets = workload.targets(batch) if workload.targets else {}
    optimizer = workload.optimizer(model.parameters())
    with Operators() as operators:
        workload.loss(model, {**batch, **targets}).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    wanted, found = count(workload, variant), operators.found
    assert found["contraction"].flops == 2 * (wanted.forward_flops + wanted.backward_flops)
    assert list(found) == list(CLASSES) and all(one.operators for one in found.values())
    parameters = sum(weight.numel() for weight in model.parameters())
    assert found["element_wise"].flops > 2 * parameters, "the optimizer has several operators a weight"
