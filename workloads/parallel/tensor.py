"""Recipe `tp`: each layer's matrices are split over ranks (Shoeybi et al., "Megatron-LM", 2019).

With sequence parallelism the activations between layers are split as well (Korthikanti et al. 2022); with loss
parallelism the logits stay split over the vocabulary.
"""

from contextlib import AbstractContextManager, nullcontext

from torch import nn

from benchsuite.workloads.parallel.spread import Recipe


def tp(model: nn.Module, recipe: Recipe) -> None:
    """Split the layers of a model over the tensor-parallel ranks, in place."""
    from torch.distributed.tensor.parallel import parallelize_module

    layout, split = recipe.ranks.layout, recipe.workload.tensor_parallel
    assert split is not None and recipe.ranks.mesh is not None
    plan = split.plan(model, layout.sequence_parallel, layout.loss_parallel)
    parallelize_module(model, recipe.ranks.mesh["tp"], dict(plan))


def loss_context(layout_loss_parallel: bool) -> AbstractContextManager[object]:
    """What the loss is computed in: logits that are split over the vocabulary need another cross-entropy."""
    if not layout_loss_parallel:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    context: AbstractContextManager[object] = loss_parallel()
    return context
