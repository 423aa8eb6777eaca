"""The naive exchange: equal replicas, and (N - 1) D bytes sent by each rank."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from benchsuite.workloads.engines import broadcast
from benchsuite.workloads.parallel.account import Kept, observed, wire_bytes
from tests.workloads.spawned import found_by_ranks

RANKS, DEADLINE_S = 3, 120.0
SIZES = (7, 5, 3)


def exchanged(rank: int, folder: Path) -> None:
    broadcast.PIECE_BYTES = 40  # the second gradient ends a piece
    store = dist.FileStore(str(folder / "meet"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    gradients = [torch.full((size,), float(rank * 10 + size)) for size in SIZES]
    with observed(Kept()) as counted:
        broadcast.exchange(gradients, dist.group.WORLD)
    sent = [wire_bytes(*entry) for entry in counted.found if entry[0] == "send"]
    np.savez(folder / f"rank{rank}.npz", mean=torch.cat(gradients).numpy(), sent=np.array(sent))
    dist.barrier()
    os._exit(0)


def test_every_rank_sends_its_gradients_to_every_other(tmp_path: Path) -> None:
    found = found_by_ranks(exchanged, RANKS, tmp_path, DEADLINE_S)
    expected = np.concatenate([np.full(size, 10.0 + size) for size in SIZES])
    for rank in found:
        assert rank["mean"] == pytest.approx(expected)
        assert sorted(rank["sent"]) == [12, 12, 48, 48]  # two pieces, to two others
        assert rank["sent"].sum() == (RANKS - 1) * 4 * sum(SIZES)
