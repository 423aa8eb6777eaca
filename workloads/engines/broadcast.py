"""Engine `broadcast`: every rank sends its gradients to every other one. The naive baseline of all exchanges.

Each rank sends (N - 1) D bytes where a ring sends 2 (N - 1) / N D; nothing overlaps with the backward pass.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchsuite.workloads.parallel.modes import by_hand
from benchsuite.workloads.parallel.recipe import Recipe
from benchsuite.workloads.parallel.step import Training, stepping_of

PIECE_BYTES = 25 << 20
"""Gradients go in pieces of about this size, so that what has come from others does not fill the memory."""


def train(model: nn.Module, recipe: Recipe, global_batch: int) -> Training:
    """Replicas whose gradients are averaged after each backward pass."""
    stepping = stepping_of(by_hand(model, recipe, exchange), recipe, global_batch)
    return stepping.training(stepping.step, model, model)


def exchange(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Average gradients in place. All ranks add in the same order, so that their replicas stay equal."""
    me, ranks = dist.get_rank(group), dist.get_world_size(group)
    for piece in _pieces(gradients):
        own = torch.cat([gradient.reshape(-1) for gradient in piece])
        every = [own if rank == me else torch.empty_like(own) for rank in range(ranks)]
        messages = [
            dist.P2POp(operation, tensor, group=group, group_peer=peer)
            for peer in range(ranks)
            if peer != me
            for operation, tensor in ((dist.isend, own), (dist.irecv, every[peer]))
        ]
        for work in dist.batch_isend_irecv(messages) if messages else ():
            work.wait()
        mean = sum(every[1:], every[0]) / ranks
        for gradient, part in zip(piece, torch.split(mean, [gradient.numel() for gradient in piece]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _pieces(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type that together have about the size of a piece."""
    piece: list[Tensor] = []
    for gradient in sorted(gradients, key=lambda gradient: str(gradient.dtype)):
        if piece and (gradient.dtype != piece[0].dtype or sum(one.nbytes for one in piece) >= PIECE_BYTES):
            yield piece
            piece = []
        piece.append(gradient)
    if piece:
        yield piece
