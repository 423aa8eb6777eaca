"""FLOPs and parameters of a model: the one place where they are counted. Torch is imported only where something is
counted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchsuite.workloads import WorkloadError
from benchsuite.workloads.spec import Variant

if TYPE_CHECKING:
    from torch import nn
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode

    from benchsuite.workloads.workload import Workload

CONVENTION = (
    "2 FLOPs per multiply-add of convolutions and matrix products, attention's included (all of it, masked or not); "
    "norms, activations, losses and the optimizer are left out; backward without recomputation"
)
ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Arguments of torch's attention, in order."""
SAMPLES_COUNTED = 2
"""More than one, since batch norm in training refuses a single value per channel."""


@dataclass(frozen=True)
class Flops:
    """What a model costs. FLOPs are per sample."""

    parameters: int
    forward_flops: int
    backward_flops: int
    blocks_forward_flops: int
    """FLOPs of the forward pass that are in blocks: that is done again under full activation checkpointing."""
    convention: str = CONVENTION
    masked_flops: int = 0
    """Share of forward and backward: what causal attention computes behind its mask, which kernels may leave out."""


def count(workload: "Workload", variant: Variant) -> Flops:
    """Counts, without memory or computation: model and batch are on the meta device.

    Raises:
        WorkloadError: the model needs real values to be built or run.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    meta = torch.device("meta")
    # The counter knows attention only as the matrix products that this backend makes of it.
    masked = _Masked()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, masked.mode():
        try:
            with meta:
                model = workload.build(variant)
                batch = workload.synthetic(variant, SAMPLES_COUNTED, meta)
                targets = workload.targets(batch) if workload.targets else {}
                for module in workload.experts(model) if workload.experts else ():
                    module.forward = module.same_flops  # type: ignore[assignment]
                in_blocks = _counted_in_blocks(workload, model, counter)
            loss = workload.loss(model, {**batch, **targets})
            forward = counter.get_total_flops()
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise WorkloadError(f"workload {workload.name}: cannot be counted on the meta device: {error}") from error
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    backward = counter.get_total_flops() - forward
    again = sum(in_blocks) if workload.blocks else forward
    return Flops(
        num_parameters,
        forward // SAMPLES_COUNTED,
        backward // SAMPLES_COUNTED,
        again // SAMPLES_COUNTED,
        masked_flops=masked.flops // SAMPLES_COUNTED,
    )


class _Masked:
    """Counts what a causal mask makes needless in attention: half of two products, forward once and backward twice.

    Of S positions each sees (S + 1) / 2 in the mean; as FlashAttention's and Megatron's figures do, half is taken off.
    """

    def __init__(self) -> None:
        self.flops = 0

    def mode(self) -> "TorchFunctionMode":
        """What sees the calls of attention, however a model has imported it."""
        import torch
        from torch.overrides import TorchFunctionMode

        counted = self

        class Mode(TorchFunctionMode):
            def __torch_function__(self, function: Any, _types: Any, given: Any = (), options: Any = None) -> Any:
                options = options or {}
                named = dict(zip(ATTENTION, given, strict=False)) | options
                if function is torch.nn.functional.scaled_dot_product_attention and named.get("is_causal"):
                    counted.flops += 3 * 2 * named["query"].numel() * named["key"].shape[-2]
                return function(*given, **options)

        return Mode()


def _counted_in_blocks(workload: "Workload", model: "nn.Module", counter: "FlopCounterMode") -> list[int]:
    """Filled by the forward pass with what each block takes."""
    found: list[int] = []
    begun: list[int] = []

    def begin(*_arguments: object) -> None:
        begun.append(counter.get_total_flops())

    def end(*_arguments: object) -> None:
        found.append(counter.get_total_flops() - begun.pop())

    for block in workload.blocks(model) if workload.blocks else ():
        block.register_forward_pre_hook(begin)
        block.register_forward_hook(end)
    return found
