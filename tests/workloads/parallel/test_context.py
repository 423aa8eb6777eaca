"""Context parallelism by itself: attention over ranks equals that of one process, and ranks have as much to do."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from benchsuite.workloads import gpt_neox
from benchsuite.workloads.layout import Layout, layout_of
from benchsuite.workloads.parallel import context
from benchsuite.workloads.spec import ContextAttention, Parallelism
from tests.workloads.spawned import found_by_ranks

CPU = torch.device("cpu")
LENGTH, HEADS, HEAD_DIM, SAMPLES = 48, 4, 8, 2
DEADLINE_S = 120
KINDS: tuple[ContextAttention, ...] = ("ring", "all_to_all")
ATTENTION = {"ring": context.ring_attention, "all_to_all": context.all_to_all_attention}
NAMES = ("output", "query", "key", "value")
ERRORS = {torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Distances from one process, as shares of what it computes: a few roundings."""


def shared_by(ranks: int, kind: ContextAttention) -> Layout:
    return layout_of(Parallelism(cp=ranks, cp_attention=kind), ranks)


def drawn(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Query, key, value and the gradient of the output, of whole sequences."""
    torch.manual_seed(7)
    return [torch.randn(SAMPLES, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64).to(dtype) for _ in range(4)]


def attended(
    attend: Callable[..., Tensor], at: Tensor | slice, dtype: torch.dtype, **more: Any
) -> dict[str, Tensor | None]:
    """Outputs and gradients of an attention over the positions `at` of the sequences."""
    *given, gradient = [whole[:, :, at].clone() for whole in drawn(dtype)]
    for part in given:
        part.requires_grad_()
    output = attend(*given, **more)
    output.backward(gradient)  # type: ignore[no-untyped-call]
    return dict(zip(NAMES, (output.detach(), *(part.grad for part in given)), strict=True))


def attend_on_ranks(rank: int, folder: Path, ranks: int) -> None:
    """One of the processes: its part of outputs and gradients, by both kinds, in each type."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    found = {}
    for kind, dtype in product(KINDS, ERRORS):
        at = context.positions(shared_by(ranks, kind), rank, LENGTH, CPU)
        for name, value in attended(ATTENTION[kind], at, dtype, group=dist.group.WORLD).items():
            assert value is not None and value.dtype == dtype
            found[f"{kind} {dtype} {name}"] = value.double().numpy()
    np.savez(folder / f"rank{rank}.npz", **found)
    dist.barrier()


@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_and_gradients_are_those_of_one_process(ranks: int, tmp_path: Path) -> None:
    found = found_by_ranks(partial(attend_on_ranks, ranks=ranks), ranks, tmp_path, DEADLINE_S)
    for dtype, error in ERRORS.items():
        expected = attended(scaled_dot_product_attention, slice(None), dtype, is_causal=True)
        for kind, rank, name in product(KINDS, range(ranks), NAMES):
            at, whole = context.positions(shared_by(ranks, kind), rank, LENGTH, CPU), expected[name]
            assert whole is not None
            own, part = whole[:, :, at].double(), torch.from_numpy(found[rank][f"{kind} {dtype} {name}"])
            assert (part - own).norm() <= error * own.norm(), f"{kind}, {dtype}, {name} of rank {rank}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_each_position_is_held_once(ranks: int, kind: ContextAttention) -> None:
    layout = shared_by(ranks, kind) if ranks > 1 else Layout("none")
    held = [context.positions(layout, rank, LENGTH, CPU) for rank in range(ranks)]
    assert sorted(torch.cat(held).tolist()) == list(range(LENGTH))
    assert all((part.diff() > 0).all() for part in held)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_causal_mask_leaves_ranks_of_a_ring_as_much_to_do(ranks: int) -> None:
    """Position p sees p + 1 keys: consecutive parts would give the last rank almost twice the mean."""
    layout = shared_by(ranks, "ring")
    seen = [int((context.positions(layout, rank, LENGTH, CPU) + 1).sum()) for rank in range(ranks)]
    assert seen == [LENGTH * (LENGTH + 1) // 2 // ranks] * ranks
    assert context.positions(shared_by(2, "ring"), 0, 8, CPU).tolist() == [0, 1, 6, 7]


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_by_products_are_those_of_the_kernel(causal: bool) -> None:
    query, key, value, gradient = drawn()
    output, sums = context.by_products(query, key, value, causal)
    kernel_output, kernel_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal
    )
    torch.testing.assert_close(output, kernel_output)
    torch.testing.assert_close(sums, kernel_sums)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output, sums, 0.0, causal
    )
    ours = context.by_products_backward(gradient, query, key, value, output, sums, causal)
    for one, other in zip(ours, kernel, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_asked_of_cudas_kernel_fits_its_schema() -> None:
    """Shapes alone, on the meta device: no CUDA device has run this."""
    query, key, value, gradient = (part.to("meta", torch.bfloat16) for part in drawn())
    output, sums, *extras = context._attend(query, key, value, causal=True)
    assert (output.shape, sums.shape, sums.dtype) == (query.shape, query.shape[:3], torch.float32)
    half = key[:, :, : LENGTH // 2], value[:, :, : LENGTH // 2]
    found = context._attend_backward(gradient, query, output, sums, *half, False, extras)
    assert [part.shape for part in found] == [query.shape, half[0].shape, half[1].shape]


class Recorded(TorchDispatchMode):
    """The log-sum-exps that CUDA's kernel is given in backward passes: a stub in place of a GPU computes no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizers: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._scaled_dot_product_flash_attention_backward.default:
            self.normalizers.append(args[5])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", context.HALF)
@pytest.mark.parametrize("rank", range(4))
def test_cudas_kernel_is_given_contiguous_normalizers_in_every_turn(
    rank: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not look at their strides: `torch.distributed.tensor.experimental._context_parallel._attention` says so.

    The ring runs on the meta device, in a group that is a stub and sends nothing.
    """
    monkeypatch.setattr(context, "_passed_on", lambda payload, *_: partial(torch.empty_like, payload))
    *given, gradient = (part[:, :, : LENGTH // 4].to("meta", dtype) for part in drawn())
    for part in given:
        part.requires_grad_()
    group: Any = SimpleNamespace(rank=lambda: rank, size=lambda: 4)
    with Recorded() as recorded:
        context.ring_attention(*given, group=group).backward(gradient)
    assert [part.shape[2] for part in recorded.normalizers].count(LENGTH // 8) == 3 - rank  # a part of its rows
    assert len(recorded.normalizers) == 4 and all(part.is_contiguous() for part in recorded.normalizers)


def test_a_batch_is_cut_with_its_positions_and_what_follows() -> None:
    batch = {"tokens": torch.arange(20).view(2, 10)}  # 9 predictions, of which these are at 1 and 7
    part = gpt_neox.cut(batch, lambda length, device: torch.tensor([1, length - 2]))
    assert part["tokens"].tolist() == [[1, 7], [11, 17]]
    assert part["next"].tolist() == [[2, 8], [12, 18]]
    assert part["positions"].tolist() == [[1, 7], [1, 7]]
    assert gpt_neox.uncut(part) is part
    assert gpt_neox.uncut(batch)["next"].tolist() == batch["tokens"][:, 1:].tolist()
