"""Collectives as tables: which chunks each rank sends to whom, receives from whom, and adds or copies, step by step.

A table is data: it can be printed, counted, and run over send/recv (`probe.comm.stepping`).
Arrays are cut into chunks of nearly one size. In a torus, rank = row * X + column.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from benchsuite.contract.errors import UserError, refuse

Range = tuple[int, int]
"""Chunks from the first up to, and without, the last."""
Shape = tuple[int, int]


@dataclass(frozen=True)
class Send:
    """Chunks to a peer: one message."""

    peer: int
    chunks: Range


@dataclass(frozen=True)
class Receive:
    """Chunks from a peer: one message, added to what the rank has or put in its place."""

    peer: int
    chunks: Range
    adds: bool = False


@dataclass(frozen=True)
class Step:
    """What a rank posts at once; it goes on when all of it is done."""

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()


@dataclass(frozen=True)
class Phase:
    """Steps with one aim, for each rank in its own order; ranks wait for one another by messages alone."""

    name: str
    steps: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Table:
    """An algorithm for a number of ranks."""

    op: str
    algorithm: str
    num_ranks: int
    num_chunks: int
    phases: tuple[Phase, ...]

    def of_rank(self, rank: int) -> tuple[Step, ...]:
        """A rank's steps, all phases one after the other."""
        return tuple(chain.from_iterable(phase.steps[rank] for phase in self.phases))

    def messages(self, num_elements: int | None = None) -> list[int]:
        """Messages that each rank sends; of arrays so small that chunks are empty, without those that would be."""
        bounds = self.bounds(self.num_chunks if num_elements is None else num_elements)
        return [sum(size > 0 for size in self._sizes(rank, bounds)) for rank in range(self.num_ranks)]

    def sent_elements(self, num_elements: int) -> list[int]:
        """Elements that each rank sends."""
        bounds = self.bounds(num_elements)
        return [sum(self._sizes(rank, bounds)) for rank in range(self.num_ranks)]

    def num_steps(self) -> int:
        """Steps of the rank that has most."""
        return max(len(self.of_rank(rank)) for rank in range(self.num_ranks))

    def peak_messages(self) -> int:
        """Most messages that a rank sends, or receives, in one step."""
        steps = [step for rank in range(self.num_ranks) for step in self.of_rank(rank)]
        return max((max(len(step.sends), len(step.receives)) for step in steps), default=0)

    def bounds(self, num_elements: int) -> list[int]:
        """Where chunks begin, and the end: the first ones have one element more where they cannot all be alike."""
        each, more = divmod(num_elements, self.num_chunks)
        return [each * chunk + min(chunk, more) for chunk in range(self.num_chunks + 1)]

    def _sizes(self, rank: int, bounds: Sequence[int]) -> list[int]:
        sends = [send.chunks for step in self.of_rank(rank) for send in step.sends]
        return [bounds[end] - bounds[start] for start, end in sends]


def torus_shape(num_ranks: int) -> Shape:
    """(X, Y) of the squarest torus that has so many ranks: X in a row, and the larger."""
    side = next(side for side in range(int(num_ranks**0.5), 0, -1) if num_ranks % side == 0)
    return num_ranks // side, side


def table(op: str, algorithm: str, num_ranks: int) -> Table:
    """The table of an algorithm.

    Args:
        op: what is computed, as torch.distributed calls it.
        algorithm: by what steps.
        num_ranks: 1 or more; one rank has nothing to send.

    Raises:
        UserError: there is no such table.
    """
    if num_ranks < 1:
        raise UserError(f"num_ranks {num_ranks}: allowed: 1 and above")
    if op not in STEP_TABLES:
        raise refuse("op of a step table", op, STEP_TABLES)
    if algorithm not in STEP_TABLES[op]:
        raise refuse(f"algorithm of {op}", algorithm, STEP_TABLES[op])
    num_chunks, phases = STEP_TABLES[op][algorithm](num_ranks)
    return Table(op, algorithm, num_ranks, num_chunks, tuple(phases if num_ranks > 1 else ()))


Made = tuple[int, list[Phase]]
Steps = list[list[Step]]


def _phase(name: str, steps: Sequence[Sequence[Step]]) -> Phase:
    return Phase(name, tuple(map(tuple, steps)))


def _exchange(peer: int, sent: Range, received: Range, adds: bool) -> Step:
    return Step((Send(peer, sent),), (Receive(peer, received, adds),))


def _ring(steps: Steps, members: Sequence[int], units: Sequence[Range], adds: bool) -> None:
    """Pass units on along a ring: added up until member i has all of unit i, or copied from it to all others."""
    num = len(members)
    for place, rank in enumerate(members):
        to, source = members[(place + 1) % num], members[(place - 1) % num]
        for step in range(num - 1):
            first = place - step - adds
            sent, received = units[first % num], units[(first - 1) % num]
            steps[rank].append(Step((Send(to, sent),), (Receive(source, received, adds),)))


def _single(num: int) -> list[Range]:
    return [(chunk, chunk + 1) for chunk in range(num)]


def _ring_phase(name: str, num_ranks: int, adds: bool) -> Phase:
    steps: Steps = [[] for _ in range(num_ranks)]
    _ring(steps, range(num_ranks), _single(num_ranks), adds)
    return _phase(name, steps)


def _ring_all_reduce(num_ranks: int) -> Made:
    """Patarasuk and Yuan 2009: 2(N-1) steps of D/N."""
    phases = (("reduce_scatter", True), ("all_gather", False))
    return num_ranks, [_ring_phase(name, num_ranks, adds) for name, adds in phases]


def _torus(num_ranks: int) -> Made:
    """X in a row, Y rows: reduce_scatter along rows, all_reduce of D/X along columns, all_gather along rows."""
    in_row, num_rows = torus_shape(num_ranks)
    rows = [[row * in_row + column for column in range(in_row)] for row in range(num_rows)]
    columns = [[row * in_row + column for row in range(num_rows)] for column in range(in_row)]
    wide = [(column * num_rows, (column + 1) * num_rows) for column in range(in_row)]
    narrow = [
        [(column * num_rows + row, column * num_rows + row + 1) for row in range(num_rows)] for column in range(in_row)
    ]
    phases = []
    for name, along_rows, adds in (
        ("row reduce_scatter", True, True),
        ("column reduce_scatter", False, True),
        ("column all_gather", False, False),
        ("row all_gather", True, False),
    ):
        steps: Steps = [[] for _ in range(num_ranks)]
        for index, members in enumerate(rows if along_rows else columns):
            _ring(steps, members, wide if along_rows else narrow[index], adds)
        phases.append(_phase(name, steps))
    return num_ranks, phases


def _folding(num_ranks: int, num_chunks: int) -> tuple[int, Phase, Phase]:
    """The power of two p within N; ranks from p on give their array to rank - p before, and get the result after."""
    power = 1 << (num_ranks.bit_length() - 1)
    whole = (0, num_chunks)
    before: Steps = [[] for _ in range(num_ranks)]
    after: Steps = [[] for _ in range(num_ranks)]
    for guest in range(power, num_ranks):
        host = guest - power
        before[guest].append(Step(sends=(Send(host, whole),)))
        before[host].append(Step(receives=(Receive(guest, whole, adds=True),)))
        after[host].append(Step(sends=(Send(guest, whole),)))
        after[guest].append(Step(receives=(Receive(host, whole),)))
    return power, _phase("fold", before), _phase("unfold", after)


def _recursive_doubling(num_ranks: int) -> Made:
    """Whole arrays exchanged over distances 1, 2, 4, ... (Thakur, Rabenseifner, Gropp 2005)."""
    power, fold, unfold = _folding(num_ranks, 1)
    distances = [1 << bit for bit in range(power.bit_length() - 1)]
    steps = [
        [_exchange(rank ^ distance, (0, 1), (0, 1), adds=True) for distance in distances] if rank < power else []
        for rank in range(num_ranks)
    ]
    return 1, [fold, _phase("doubling", steps), unfold]


def _halving_doubling(num_ranks: int) -> Made:
    """Rabenseifner 2004: halves over distances p/2, ..., 1 reduced, then gathered the same way back."""
    num_chunks = 1 << (num_ranks.bit_length() - 1)
    power, fold, unfold = _folding(num_ranks, num_chunks)
    halving: Steps = [[] for _ in range(num_ranks)]
    doubling: Steps = [[] for _ in range(num_ranks)]
    for rank in range(power):
        low, high = 0, power
        while high - low > 1:
            middle, distance = (low + high) // 2, (high - low) // 2
            mine, other = ((low, middle), (middle, high)) if rank < middle else ((middle, high), (low, middle))
            halving[rank].append(_exchange(rank ^ distance, other, mine, adds=True))
            doubling[rank].insert(0, _exchange(rank ^ distance, mine, other, adds=False))
            low, high = mine
    return num_chunks, [fold, _phase("halving", halving), _phase("doubling", doubling), unfold]


def _tree_phases(num_ranks: int) -> tuple[Phase, Phase]:
    """Up and down the binomial tree of rank 0: rank r's children are r + 2^k for 2^k below r's lowest set bit."""
    whole = (0, 1)
    up: Steps = [[] for _ in range(num_ranks)]
    down: Steps = [[] for _ in range(num_ranks)]
    for bit in range((num_ranks - 1).bit_length()):
        distance = 1 << bit
        for parent in range(0, num_ranks - distance, 2 * distance):
            child = parent + distance
            up[child].append(Step(sends=(Send(parent, whole),)))
            up[parent].append(Step(receives=(Receive(child, whole, adds=True),)))
            down[parent].insert(0, Step(sends=(Send(child, whole),)))
            down[child].insert(0, Step(receives=(Receive(parent, whole),)))
    return _phase("reduce", up), _phase("broadcast", down)


def _parameter_server(num_ranks: int, sharded: bool = False) -> Made:
    """All arrays to their server and the sum back: rank 0, or for each chunk a rank of its own."""
    servers = {rank: (rank, rank + 1) for rank in range(num_ranks)} if sharded else {0: (0, 1)}
    push: Steps = []
    pull: Steps = []
    for rank in range(num_ranks):
        others = [peer for peer in range(num_ranks) if peer != rank]
        to_servers = [(peer, servers[peer]) for peer in others if peer in servers]
        served = [(peer, servers[rank]) for peer in others] if rank in servers else []
        sums = tuple(Receive(peer, chunks, adds=True) for peer, chunks in served)
        push.append([Step(tuple(Send(*one) for one in to_servers), sums)])
        pull.append([Step(tuple(Send(*one) for one in served), tuple(Receive(*one) for one in to_servers))])
    return len(servers), [_phase("push", push), _phase("pull", pull)]


def _all_to_all(num_ranks: int) -> Made:
    """Every rank sends its whole array to all others, the next one first, and adds up what it gets: one step."""
    whole = (0, 1)
    steps = []
    for rank in range(num_ranks):
        sends = tuple(Send((rank + distance) % num_ranks, whole) for distance in range(1, num_ranks))
        sums = tuple(Receive((rank - distance) % num_ranks, whole, adds=True) for distance in range(1, num_ranks))
        steps.append([Step(sends, sums)])
    return 1, [_phase("exchange", steps)]


STEP_TABLES: Mapping[str, Mapping[str, Callable[[int], Made]]] = {
    "all_reduce": {
        "ring": _ring_all_reduce,
        "recursive_doubling": _recursive_doubling,
        "halving_doubling": _halving_doubling,
        "torus": _torus,
        "tree": lambda num_ranks: (1, list(_tree_phases(num_ranks))),
        "parameter_server": _parameter_server,
        "parameter_server_sharded": partial(_parameter_server, sharded=True),
        "all_to_all": _all_to_all,
    },
    "reduce_scatter": {"ring": lambda num_ranks: (num_ranks, [_ring_phase("reduce_scatter", num_ranks, adds=True)])},
    "all_gather": {"ring": lambda num_ranks: (num_ranks, [_ring_phase("all_gather", num_ranks, adds=False)])},
    "broadcast": {"binomial": lambda num_ranks: (1, [_tree_phases(num_ranks)[1]])},
    "reduce": {"binomial": lambda num_ranks: (1, [_tree_phases(num_ranks)[0]])},
}
"""Makers of step tables by op and algorithm.

Rank r of reduce_scatter and all_gather owns chunk r; the root of the others is rank 0.
"""
ALGORITHMS = tuple(dict.fromkeys(name for found in STEP_TABLES.values() for name in found))
