"""From a mode's name or degrees to a layout of ranks, with the arithmetic where there is none (no torch)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchsuite.workloads.spec import ComputeSpec, ContextAttention, Parallelism, Schedule

NAMED_DEGREES: Mapping[str, Mapping[str, int]] = {
    "none": {},
    "data_parallel": {},
    "ddp": {"zero": 0},
    "zero1": {"zero": 1},
    "zero2": {"zero": 2},
    "fsdp": {"zero": 3},
    "hsdp": {"zero": 3},
}
"""Names of data parallelism; `tp`, `pp`, `cp` and `ep` take every rank. `hsdp` has replicas besides."""
HSDP_REPLICAS = 2
"""Replicas of `hsdp` on one node, and on nodes that have one rank each or not all the same number."""
COMPOSED = ("tp_pp", "3d")
PART_OF: Mapping[str, str] = {"schedule": "pp", "microbatches": "pp", "cp_attention": "cp"}
"""What means something only where a degree is above one."""
USUAL: Mapping[str, Any] = {"zero": 0, "engine": "torch", "max_staleness": None, "microbatches": None}
"""Values of degrees that go without saying; of others 1."""
SERVING = "parameter_server"
ONE_RANK = ("none", "data_parallel")
STAGES_PER_RANK: Mapping[Schedule, int] = {"interleaved": 2, "zero_bubble": 2}
"""Pipeline stages that a rank holds; 1 for others."""


class LayoutError(ValueError):
    """Why ranks cannot be laid out as asked, with the arithmetic."""


@dataclass(frozen=True)
class Place:
    """Where a rank stands in its layout."""

    tp: int
    dp: int
    pp: int
    cp: int = 0


@dataclass(frozen=True)
class Layout:
    """How ranks are laid out. They count innermost first: tp, cp, dp, pp."""

    name: str
    dp: int = 1
    dp_replicate: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    schedule: Schedule = "1f1b"
    microbatches: int = 1
    sequence_parallel: bool = False
    loss_parallel: bool = False
    engine: str = "torch"
    num_servers: int = 0
    """Processes of a parameter server besides the ranks."""
    max_staleness: int | None = None
    cp: int = 1
    cp_attention: ContextAttention = "ring"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.replicas * self.tp * self.pp

    @property
    def replicas(self) -> int:
        """Ranks with the same weights, or shards of them, each with samples or parts of sequences of its own."""
        return self.dp * self.cp

    @property
    def weight_parts(self) -> int:
        """Parts into which the weights are cut, about: experts counted as if they were all of them."""
        sharded = self.zero > 1 and self.engine == "torch"
        return self.tp * self.pp * self.ep * (self.replicas // self.dp_replicate if sharded else 1)

    @property
    def stages_per_rank(self) -> int:
        """Pipeline stages that a rank holds."""
        return STAGES_PER_RANK.get(self.schedule, 1) if self.pp > 1 else 1

    @property
    def needs_group(self) -> bool:
        """Whether its ranks exchange anything, or would with more of them."""
        return self.world_size > 1 or self.zero > 0 or self.name == "ddp" or self.engine != "torch"

    def place(self, rank: int) -> Place:
        """Where a rank stands."""
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return Place(tp, dp, pp, cp)


def hsdp_replicas(ranks: int, ranks_per_node: int) -> int:
    """How many replicas `hsdp` has: one a node, so that weights are gathered within nodes."""
    one_each = 1 < ranks_per_node < ranks and ranks % ranks_per_node == 0
    return ranks // ranks_per_node if one_each else HSDP_REPLICAS


def layout_of(parallelism: str | Parallelism, world_size: int | None, ranks_per_node: int | None = None) -> Layout:
    """The layout of a mode on so many ranks (default: the product of the degrees, 1 for names).

    A node has `ranks_per_node` of them; default: all.

    Raises:
        LayoutError: the degrees do not fit the number of ranks.
    """
    if isinstance(parallelism, Parallelism):
        return _of_degrees(parallelism, world_size)
    ranks = world_size or 1
    if parallelism in COMPOSED:
        raise LayoutError(f"parallelism {parallelism} needs its degrees, such as {{tp: 2, pp: 2}}")
    if parallelism in ONE_RANK and ranks != 1:
        raise LayoutError(f"parallelism {parallelism} has 1 rank, world_size is {ranks}: give ddp, or another mode")
    degrees: Mapping[str, int] = NAMED_DEGREES.get(parallelism) or {parallelism: ranks}
    if parallelism in (*ONE_RANK, "ddp"):
        return Layout(parallelism, dp=ranks)
    if parallelism == "hsdp":
        degrees = {**degrees, "dp_replicate": hsdp_replicas(ranks, ranks_per_node or ranks)}
    return _of_degrees(Parallelism(**degrees), ranks, parallelism)  # type: ignore[arg-type]


def _of_degrees(asked: Parallelism, world_size: int | None, name: str | None = None) -> Layout:
    if asked.cp == 1 and asked.cp_attention != "ring":
        raise LayoutError(f"cp_attention {asked.cp_attention} is of ranks that share sequences, cp is 1")
    if asked.engine != SERVING and (asked.num_servers is not None or asked.max_staleness is not None):
        raise LayoutError(f"num_servers and max_staleness are of engine {SERVING}, engine is {asked.engine}")
    if asked.pp == 1 and (asked.microbatches or asked.schedule != "1f1b"):
        raise LayoutError("schedule and microbatches need a pipeline, pp is 1")
    inner = asked.tp * asked.cp * asked.pp
    ranks = world_size or inner * (asked.dp or 1)
    dp = asked.dp or max(1, ranks // inner)
    if dp * inner != ranks:
        context = f" x cp {asked.cp}" if asked.cp > 1 else ""
        degrees = f"dp {dp} x tp {asked.tp}{context} x pp {asked.pp}"
        raise LayoutError(f"{degrees} = {dp * inner} ranks, world_size is {ranks}")
    for degree, value in (("dp_replicate", asked.dp_replicate), ("ep", asked.ep)):
        if dp % value:
            raise LayoutError(f"{degree} {value} does not divide dp {dp}")
    microbatches = asked.microbatches or (1 if asked.schedule == "naive" else asked.pp)
    servers = (asked.num_servers or 1) if asked.engine == SERVING else 0
    found = {"dp": dp, "microbatches": microbatches if asked.pp > 1 else 1, "num_servers": servers}
    given = asked.model_dump()
    return Layout(name or degree_words({**given, "dp": dp}), **(given | found))


def degree_words(given: Mapping[str, Any]) -> str:
    """Degrees in words, such as `dp 2 tp 4 zero 3`; `none` where nothing is set that does not go without saying.

    Reports have the same words of records, by `degrees` of `results/render/naming.py`.
    """
    words = []
    for name, value in given.items():
        without_effect = name in PART_OF and int(given.get(PART_OF[name]) or 1) == 1
        if value is True:
            words.append(name)
        elif not (value is None or value is False or value == USUAL.get(name, 1) or without_effect):
            words.append(str(value) if name == "engine" else f"{name} {value}")
    return " ".join(words) or "none"


def reshards(layout: Layout, compute: ComputeSpec) -> bool:
    """Whether blocks of fully sharded weights are dropped after forward, and gathered anew for backward.

    Where nothing is asked, stage 3 does so; not in a pipeline, which would gather them for every microbatch.
    """
    if compute.reshard_after_forward is not None:
        return compute.reshard_after_forward
    return layout.zero == 3 and layout.pp == 1


def rank_map(layout: Layout, ranks_per_node: int) -> list[list[str]]:
    """What each rank is, a row per node: such as `tp1 dp0 pp3`, without degrees of 1."""
    degrees = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
    rows = []
    for start in range(0, layout.world_size, ranks_per_node):
        ranks = range(start, min(start + ranks_per_node, layout.world_size))
        rows.append([_words(layout.place(rank), degrees) for rank in ranks])
    return rows


def _words(place: Place, degrees: Mapping[str, int]) -> str:
    return " ".join(f"{name}{getattr(place, name)}" for name, size in degrees.items() if size > 1) or "all"
