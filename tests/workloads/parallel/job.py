"""Ranks that run many cases one after another: `python -m tests.workloads.parallel.job WORLD_SIZE FOLDER WHICH`.

WHICH is full, normal or another that `cases` knows; `every bf16` prints how far losses and gradients of each mode are
from those of one process. One job for each number of ranks, since starting ranks takes longer than a case. Rank 0
writes a line for each case. With another job's rank-0.jsonl behind these words, only what that one did not end well is
run.
"""

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchsuite.trial.clock import HostClock
from benchsuite.workloads.layout import Layout
from benchsuite.workloads.parallel.apply import prepare
from benchsuite.workloads.parallel.check import (
    Case,
    Compared,
    Trained,
    compare,
    new_model,
    sample_batch,
    train_alone,
    train_parallelized,
)
from benchsuite.workloads.parallel.waits import NoClock
from tests.workloads.parallel.cases import Asked, cases

CPU = torch.device("cpu")
LATE_S, LATE_STEPS, LATE_RANK = 0.25, 4, 1
LATE_MODES: tuple[Any, ...] = ("ddp", "zero1", "zero2", "fsdp", "tp", "ep", "cp", "pp")
"""In a pipeline the second stage is late with gradients, and the first waits for those."""


class References:
    """What one process makes of a case, trained once for all modes that deal it the same microbatches."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Trained] = {}

    def of(self, asked: Asked, case: Case) -> Trained:
        layout, compute = case.layout, case.compute.model_dump_json()
        key = (asked.workload, asked.variant, layout.dp, layout.microbatches, compute, case.rank_batch, case.steps)
        if key not in self._known:
            self._known[key] = train_alone(case, CPU)
        return self._known[key]


def run(asked: Asked, keep: list[object], references: References) -> Compared | None:
    """Train a case over all ranks; on rank 0 compare it with the reference."""
    case = asked.case()
    spread = train_parallelized(case, CPU, keep)
    if dist.get_rank():
        return None
    return compare(case, spread, references.of(asked, case), CPU)


def rank_main(rank: int, world_size: int, folder: Path, which: str, done: set[str]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    keep: list[object] = []
    references = References()
    with (folder / f"rank-{rank}.jsonl").open("w") as lines:
        asked_for = [asked for asked in cases(world_size, which) if asked.name not in done]
        for asked in asked_for if "engines" not in which else filter(Asked.valid, asked_for):
            start = time.perf_counter()
            found: dict[str, object] = {"name": asked.name}
            try:
                compared = run(asked, keep, references)
                found |= {} if compared is None else asdict(compared) | {"equal": compared.equal}
            except Exception:
                found["error"] = traceback.format_exc()
            found["seconds"] = time.perf_counter() - start
            lines.write(json.dumps(found) + "\n")
            lines.flush()
            if "error" in found:
                os._exit(1)
            dist.barrier()
        if "engines" in which:
            (folder / f"ended-{rank}").touch()
            os._exit(0)  # DeepSpeed and Horovod have threads that a clean end waits for
        if world_size == 2 and which == "normal" and rank == 0:
            lines.write(json.dumps({"name": "ranks that do not exchange"} | without_exchange()) + "\n")
        for mode in LATE_MODES if which == "waits" else ():
            found = {"name": f"waits under {mode}"} | waiting(mode, keep)
            lines.write(json.dumps(found) + "\n")
        dist.barrier()
    (folder / f"ended-{rank}").touch()


def waiting(mode: object, keep: list[object]) -> dict[str, object]:
    """Seconds of each part of a step, summed, when the other rank comes LATE_S late to every step."""
    case = Asked("gpt_neox", "nano_moe" if mode == "ep" else "nano", mode, 2).case()
    training = prepare(case.workload, new_model(case, CPU), case.layout, case.compute, CPU, case.global_batch)
    keep.append(training)
    batch = sample_batch(case, case.layout.place(dist.get_rank()).dp, 0, CPU)
    training.step(batch, NoClock())
    clock = HostClock()
    dist.barrier()
    clock.start()
    for _ in range(LATE_STEPS):
        clock.mark("load")
        if dist.get_rank() == LATE_RANK:
            time.sleep(LATE_S)
            clock.mark("late")
        training.step(batch, clock)
    return {part: sum(seconds) for part, seconds in clock.stop().parts.items()}


def without_exchange() -> dict[str, object]:
    """What the comparison says of a rank that trains on its own samples alone."""
    asked = Asked("gpt_neox", "nano", "ddp", 2)
    together = asked.case()
    alone = replace(together, layout=Layout("none"))
    compared = compare(together, train_alone(alone, CPU), train_alone(together, CPU), CPU)
    return asdict(compared) | {"equal": compared.equal}


def well_ended(findings: Path) -> set[str]:
    """The cases that a job ended without an error."""
    found = map(json.loads, findings.read_text().splitlines())
    return {finding["name"] for finding in found if "error" not in finding}


def main() -> None:
    world_size, folder, which = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    done = well_ended(Path(sys.argv[4])) if len(sys.argv) > 4 else set()
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT, 0o644)
            os.dup2(log, 2)
            try:
                rank_main(rank, world_size, folder, which, done)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    if "bf16" in which:
        for found in map(json.loads, (folder / "rank-0.jsonl").read_text().splitlines()):
            apart = [f"{found.get(name, float('nan')):9.1e}" for name in ("loss_difference", "distance")]
            print(*apart, found["name"])  # noqa: T201


if __name__ == "__main__":
    main()
