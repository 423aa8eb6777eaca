"""`probe comm` over shaped links: against the wire's theory, and its fits against sizes that they have not seen."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.network import COMMAND, Network, missing
from bench.tables import goal
from benchsuite.predict.theory.alpha_beta_fit import from_rows
from benchsuite.probe.comm.step_tables import Receive, Send, Table, table
from benchsuite.results.store.frames import record_frame
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore

RATE = "200mbit"
PAYLOAD = 1448 / 1514
"""Share of data in an Ethernet frame of 1500 bytes: IP and TCP (with timestamps) take 52, the link's header 14."""
BETA_S_PER_BYTE = 8 / (200e6 * PAYLOAD)
KNOWN, BETWEEN = "64KiB,128KiB,256KiB,512KiB,1MiB,2MiB,4MiB", "96KiB,192KiB,384KiB,768KiB,1536KiB,3MiB"
TABLES = ("ring", "recursive_doubling", "halving_doubling", "torus", "tree", "parameter_server")
GLOO: Mapping[int, Mapping[str, float]] = {
    2: {"all_reduce": 1, "reduce_scatter": 1, "all_gather": 0.5, "broadcast": 1},
    4: {"all_reduce": 1.5, "reduce_scatter": 1.5, "all_gather": 0.75, "broadcast": 3},
}
"""Arrays over the busiest link: a reduce_scatter costs an all_reduce, a broadcast k(k+1)/2 with k = log2 N."""
MEDIAN_GAP, MEDIAN_ERROR = 0.10, 0.10
"""Goals: of collectives against their wire; of fits at sizes between."""


@dataclass(frozen=True)
class Held:
    """A collective beside what its wire would take alone."""

    ranks: int
    op: str
    algorithm: str
    num_bytes: int
    measured_s: float
    wire_s: float

    def __str__(self) -> str:
        off = self.measured_s / self.wire_s - 1
        name = f"{self.op} {self.algorithm}, {self.ranks} ranks, {self.num_bytes / 2**20:g} MiB"
        return f"{name}: {self.measured_s * 1e3:.1f} ms, wire {self.wire_s * 1e3:.1f} ({off:+.1%})"


def probe(folder: Path, nodes: int, *options: str) -> list[TrialRecord]:
    """What `probe comm` finds on nodes with links of their own.

    Raises:
        RuntimeError: it failed on one of them; with the end of what that said.
    """
    store = folder / f"store-{nodes}-{len(os.listdir(folder))}"
    with closing(Network(nodes, RATE)) as network:
        asked = ["--world-size", str(nodes), "--ranks-per-node", "1", "--backend", "gloo", "--store", str(store)]
        network.run("comm", [*COMMAND, "probe", "comm", *asked, *options], folder, {**os.environ})
    return ResultsStore(store).records()


def measure(folder: Path, nodes: Sequence[int] = (2, 4)) -> list[Held]:
    """gloo's own collectives and the step tables' all-reduces, of 1 and 4 MiB."""
    found = []
    for ranks in nodes:
        ops = ",".join(GLOO[ranks])
        records = probe(
            folder, ranks, "--op", ops, "--sizes", "1MiB,4MiB", "--algorithm", ",".join(("backend", *TABLES))
        )
        found += [held for record in records if (held := _held(record)) is not None]
    return found


def _held(record: TrialRecord) -> Held | None:
    """None of records that have no time, or no theory here.

    Only what leaves a node is held back, so that a server takes in all arrays in the time of one: N in all, not 2(N-1).
    A tree's is that of sends one after the other. Over TCP a send is over once it is buffered, the root's two of four
    ranks then share its link, and the tree takes between four and five arrays.
    """
    spec, measured_s = record.spec, record.figures.comm_s
    ranks, size = spec["world_size"], spec["num_bytes"]
    if measured_s is None:
        return None
    if spec["algorithm"] == "backend":
        wire_s = GLOO[ranks][spec["op"]] * size * BETA_S_PER_BYTE
    elif spec["algorithm"] == "parameter_server":
        wire_s = ranks * size * BETA_S_PER_BYTE
    elif spec["op"] == "all_reduce":
        wire_s = time_s(table("all_reduce", spec["algorithm"], ranks), size, 0.0, BETA_S_PER_BYTE)
    else:
        return None
    return Held(ranks, spec["op"], spec["algorithm"], size, measured_s, wire_s)


def time_s(
    table: Table, num_bytes: float, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float = 0.0
) -> float:
    """Seconds that it takes where a message costs alpha, a byte on a rank's link beta, and one added up gamma.

    Messages wait for both ends, and pass each rank's two ports, one in and one out, one after the other.
    """
    replay = _Replay(table)
    while any(replay.is_busy(rank) for rank in range(table.num_ranks)):
        for rank in filter(replay.is_busy, range(table.num_ranks)):
            for send, receive in replay.ready(rank):
                size = (send.chunks[1] - send.chunks[0]) / table.num_chunks * num_bytes
                passes = alpha_s + size * beta_s_per_byte
                replay.pass_on(rank, send.peer, passes, size * gamma_s_per_byte * receive.adds)
        for rank in filter(replay.is_busy, range(table.num_ranks)):
            replay.step_on(rank)
    return max(replay.begun)


class _Replay:
    """Where each rank of a table stands, and since when."""

    def __init__(self, of: Table) -> None:
        self.steps = [of.of_rank(rank) for rank in range(of.num_ranks)]
        self.at = [0] * of.num_ranks
        self.begun, self.out, self.into = ([0.0] * of.num_ranks for _ in range(3))
        self.sent, self.received = ([set[int]() for _ in range(of.num_ranks)] for _ in range(2))

    def is_busy(self, rank: int) -> bool:
        return self.at[rank] < len(self.steps[rank])

    def ready(self, rank: int) -> Iterator[tuple[Send, Receive]]:
        """Messages of a rank's step that have not passed and that their receiver waits for."""
        for send in self.steps[rank][self.at[rank]].sends:
            if send.peer not in self.sent[rank] and self.is_busy(send.peer) and rank not in self.received[send.peer]:
                for receive in self.steps[send.peer][self.at[send.peer]].receives:
                    if receive.peer == rank:
                        yield send, receive

    def pass_on(self, rank: int, peer: int, passes_s: float, adds_s: float) -> None:
        """One message, from the moment on that both ends and both ports are free."""
        end = max(self.out[rank], self.into[peer], self.begun[rank], self.begun[peer]) + passes_s
        self.out[rank], self.into[peer] = end, end + adds_s
        self.sent[rank].add(peer)
        self.received[peer].add(rank)

    def step_on(self, rank: int) -> None:
        """Begin the next step where all messages of this one have passed."""
        step = self.steps[rank][self.at[rank]]
        if len(self.sent[rank]) == len(step.sends) and len(self.received[rank]) == len(step.receives):
            self.begun[rank] = max(self.begun[rank], self.out[rank], self.into[rank])
            self.at[rank], self.sent[rank], self.received[rank] = self.at[rank] + 1, set(), set()


def fitted(folder: Path, nodes: int = 4) -> list[float]:
    """Errors of fits at sizes between those fitted, |predicted / measured - 1|."""
    ops = ("--op", ",".join(GLOO[nodes]))
    known, between = probe(folder, nodes, *ops, "--sizes", KNOWN), probe(folder, nodes, *ops, "--sizes", BETWEEN)
    fits = {key.op: fit for key, fit in from_rows(record_frame(known)).items()}
    timed = [(record.spec, record.figures.comm_s) for record in between]
    return [
        abs(float(fits[spec["op"]].time_s(spec["num_bytes"])) / seconds - 1)
        for spec, seconds in timed
        if seconds is not None
    ]


def show_gaps(rows: Sequence[Held]) -> None:
    """How far gloo's own collectives and the step tables' all-reduces are from their wire, each with its goal."""
    for name, algorithm in (("gloo's own", "backend"), *zip(TABLES, TABLES, strict=True)):
        gaps = [abs(row.measured_s / row.wire_s - 1) for row in rows if row.algorithm == algorithm]
        if gaps:
            print(f"    {name} against its wire: median {np.median(gaps):.1%}, worst {max(gaps):.1%}")
            print(goal(float(np.median(gaps)) <= MEDIAN_GAP, f"{name}: median <= {MEDIAN_GAP:.0%}"))


def show(folder: Path) -> None:
    """Print collectives beside their wire, and errors of fits."""
    reason = missing()
    if reason:
        print(f"(c) collectives over shaped links: not run: {reason}")
        return
    rows = measure(folder)
    for row in rows:
        print(f"    {row}")
    show_gaps(rows)
    errors = fitted(folder)
    error = float(np.median(errors))
    print(f"    fits at {len(errors)} sizes between: median error {error:.1%}")
    print(goal(error <= MEDIAN_ERROR, f"median error of fits <= {MEDIAN_ERROR:.0%}"))
