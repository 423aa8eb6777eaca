"""Ranks that run many cases one after another: `python -m tests.workloads.parallel.job WORLD_SIZE FOLDER full|normal`.

One job for each number of ranks, since starting ranks takes longer than a case. Rank 0 writes a line for each case.
"""

import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from tests.workloads.parallel.cases import Asked, cases
from workloads.parallel.check import Compared, compare, train_alone, train_spread

CPU = torch.device("cpu")


def run(asked: Asked, keep: list[object]) -> Compared | None:
    """Train a case over all ranks; on rank 0 compare it with the reference."""
    case = asked.case()
    spread = train_spread(case, CPU, keep)
    if dist.get_rank():
        return None
    return compare(case, spread, train_alone(case, CPU), CPU)


def rank_main(rank: int, world_size: int, folder: Path, which: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    keep: list[object] = []
    with (folder / f"rank-{rank}.jsonl").open("w") as lines:
        for asked in cases(world_size, which):
            start = time.perf_counter()
            found: dict[str, object] = {"name": asked.name}
            try:
                compared = run(asked, keep)
                found |= {} if compared is None else asdict(compared) | {"equal": compared.equal}
            except Exception:
                found["error"] = traceback.format_exc()
            found["seconds"] = time.perf_counter() - start
            lines.write(json.dumps(found) + "\n")
            lines.flush()
            if "error" in found:
                os._exit(1)
            dist.barrier()


def main() -> None:
    world_size, folder, which = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT, 0o644)
            os.dup2(log, 2)
            try:
                rank_main(rank, world_size, folder, which)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
