"""Waits for other ranks, by whatever torch calls for them: works, and collectives whose caller blocks."""

import sys
from collections.abc import Callable
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "gather", "scatter", "barrier"),
    *("allgather", "allgather_coalesced", "all_gather_single", "_allgather_base"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single"),
)
"""Methods of process groups, by the names of torch 2.6 to 2.13."""


def exchanges() -> bool:
    """Whether this process is one of several ranks."""
    dist: Any = sys.modules.get("torch.distributed")
    return bool(dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def wrap_waits(wrap: Wrap) -> None:
    """Replace what torch's modes call to wait for other ranks: there is no public hook.

    Where its caller blocks, NCCL gives no work, and the stream that computes does the waiting.
    """
    dist: Any = sys.modules["torch.distributed"]
    dist.Work.wait = wrap(dist.Work.wait)
    for name in COLLECTIVES:
        if hasattr(dist.ProcessGroup, name):
            setattr(dist.ProcessGroup, name, _blocking(wrap, getattr(dist.ProcessGroup, name)))


def _blocking(wrap: Wrap, collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective that is a wait where its caller blocks.

    On another stream than the one that computes it delays nothing: what waits for that stream is marked.
    """
    cuda: Any = sys.modules["torch"].cuda
    main = cuda.current_stream() if cuda.is_initialized() else None
    wrapped = wrap(collective)

    def call(*arguments: Any, **options: Any) -> Any:
        asked = options.get("opts", arguments[-1])
        is_wait = not getattr(asked, "asyncOp", True) and (main is None or cuda.current_stream() == main)
        return (wrapped if is_wait else collective)(*arguments, **options)

    return call
