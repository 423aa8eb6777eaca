"""Which ranks of a trial an agent forks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.launch.launcher import TooFewNodes
from benchsuite.launch.link import Link
from benchsuite.results.render.words import counted

NONE_LOST: Mapping[str, str] = {}


@dataclass(frozen=True)
class Agent:
    """A process on a node that forks ranks there, as its launcher sees it."""

    link: Link
    node: str
    task: int = 0
    boot_id: str = ""
    cores: int = 1
    cpus: tuple[int, ...] = ()
    """Cores that it may use, by number."""
    devices: tuple[str, ...] = ()
    """CUDA devices that it may use, each by a name that is its own."""
    address: str | None = None
    """Address of its node, for the ranks of others."""
    networks: Mapping[str, str] = field(default_factory=dict)
    """Networks of its node, by its address in each."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts of its host, where that may be another than the sweep's."""


@dataclass(frozen=True)
class Share:
    """Consecutive ranks of a trial, forked by one agent."""

    agent: Agent
    rank: int
    num_ranks: int
    local_rank: int
    """Local rank of the first, among those of its node."""
    device: int
    """Device of the first, among the devices that the agent may use."""

    def devices(self, spec: TrialSpec) -> list[str]:
        """The CUDA devices that its ranks compute on, by name; the one rank of data_parallel has all of its agent."""
        last = None if spec.parallelism == "data_parallel" else self.device + self.num_ranks
        return list(self.agent.devices[self.device : last]) if spec.device == "cuda" else []


def shares(
    spec: TrialSpec, agents: Sequence[Agent], per_node: int | None = None, lost: Mapping[str, str] = NONE_LOST
) -> list[Share]:
    """Ranks laid out node by node, each node's over its agents; as few nodes as `ranks_per_node` lets.

    Where a trial does not say, a node takes `per_node` ranks, else one for each device, or as many as its cores have
    threads for; where that is too few for the nodes there are, all of them take the same more. Nodes that are `lost`,
    with when, count there too: a trial is not crowded onto those that are left.

    Raises:
        TooFewNodes: it needs nodes that are lost.
        UserError: more nodes or devices than there are.
    """
    nodes: dict[str, list[Agent]] = {}
    for agent in sorted(agents, key=lambda agent: agent.task):
        nodes.setdefault(agent.node, []).append(agent)
    if spec.node is not None:
        if spec.node in lost:
            raise TooFewNodes(f"needs node {spec.node}, which was lost at {lost[spec.node]}")
        if spec.node not in nodes:
            raise refuse("node", spec.node, list(nodes))
        nodes = {spec.node: nodes[spec.node]}
    most = ranks_per_node(spec, next(iter(nodes.values())), per_node, 1 if spec.node else len(nodes) + len(lost))
    wanted = math.ceil(spec.ranks / most)
    if spec.node is None and len(nodes) < wanted <= len(nodes) + len(lost):
        left = f"{len(nodes)} {'is' if len(nodes) == 1 else 'are'} left of {len(nodes) + len(lost)}"
        gone = ", ".join(f"{name} was lost at {when}" for name, when in lost.items())
        raise TooFewNodes(f"needs {counted(wanted, 'node')}; {left} ({gone})")
    if wanted > len(nodes):
        raise UserError(f"{spec.ranks} ranks, {most} a node, need {wanted} nodes; there are {len(nodes)}")
    found: list[Share] = []
    for number, (name, mine) in enumerate(list(nodes.items())[:wanted]):
        ranks = range(number * most, min(spec.ranks, (number + 1) * most))
        dealt = _dealt(ranks, mine)
        if spec.device == "cuda":
            _check_devices(name, len(ranks), dealt)
        found += dealt
    return found


def _check_devices(node: str, num_ranks: int, dealt: Sequence["Share"]) -> None:
    """Refuse a rank without a device of its own, as far as its agent may see."""
    for share in dealt:
        if share.device + share.num_ranks > len(share.agent.devices):
            devices = len({name for each in dealt for name in each.agent.devices})
            raise UserError(f"{num_ranks} ranks on {node} > {devices} CUDA devices there")


def ranks_per_node(spec: TrialSpec, node: Sequence[Agent], per_node: int | None, num_nodes: int) -> int:
    """Return how many ranks of a trial a node takes at most."""
    if spec.ranks_per_node is not None:
        return spec.ranks_per_node
    if spec.nodes is not None:
        return math.ceil(spec.ranks / spec.nodes)
    cores = sum(agent.cores for agent in node) // max(1, spec.threads_per_rank or 1)
    devices = len({name for agent in node for name in agent.devices})
    room = per_node or (devices if spec.device == "cuda" else cores)
    return max(1, room, math.ceil(spec.ranks / num_nodes))


def _dealt(ranks: range, agents: Sequence[Agent]) -> list[Share]:
    """A node's ranks over its agents, evenly; agents with the same devices share them in the order of ranks."""
    shared = len({agent.devices for agent in agents}) == 1
    each, more = divmod(len(ranks), len(agents))
    found, begin = [], 0
    for number, agent in enumerate(agents):
        mine = ranks[begin : begin + each + (number < more)]
        if mine:
            found.append(Share(agent, mine[0], len(mine), begin, begin if shared else 0))
        begin += len(mine)
    return found


def agent_of(link: Link, hello: Mapping[str, Any], address: str | None) -> Agent:
    """An agent by what it said of itself."""
    known = {name: hello[name] for name in ("node", "task", "boot_id", "cores", "networks", "facts") if name in hello}
    return Agent(link, address=address, cpus=tuple(hello["cpus"]), devices=tuple(hello["devices"]), **known)


def about_nodes(
    places: Sequence[Share], replies: Sequence[Mapping[str, Any]], env: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What a record says of each node: name, first and last rank, cores, those that others kept busy, its state.

    Beside it those facts of its host that differ from `env`, the record's own; none where its agents told none, since
    it is then not known what differs.
    """
    nodes: dict[str, list[tuple[Share, Mapping[str, Any]]]] = {}
    for place, reply in zip(places, replies, strict=True):
        nodes.setdefault(place.agent.node, []).append((place, reply))
    return [
        {
            "node": name,
            "ranks": [mine[0][0].rank, mine[-1][0].rank + mine[-1][0].num_ranks - 1],
            "cores": cores_of([place.agent for place, _ in mine]),
            "foreign_cpu_cores": _foreign_cores(mine),
        }
        | ({"moment": mine[0][1]["moment"]} if mine[0][1].get("moment") else {})
        | ({"facts": _differing(mine[0][0].agent.facts, env)} if mine[0][0].agent.facts else {})
        for name, mine in nodes.items()
    ]


def _differing(facts: Mapping[str, Any], env: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a host that are not the record's own; cores are told beside them, of all agents of a node."""
    return {name: fact for name, fact in facts.items() if name != "cores" and fact != env.get(name)}


def cores_of(agents: Sequence[Agent]) -> int:
    """Cores that a node's agents may use together, those that several may use once."""
    return min(len({cpu for agent in agents for cpu in agent.cpus}), sum(agent.cores for agent in agents))


def cores_per_rank(places: Sequence[Share]) -> dict[str, float]:
    """Cores of each node over the ranks that it takes."""
    nodes = dict.fromkeys(place.agent.node for place in places)
    own = {name: [place for place in places if place.agent.node == name] for name in nodes}
    return {
        name: cores_of([place.agent for place in mine]) / sum(place.num_ranks for place in mine)
        for name, mine in own.items()
    }


def _foreign_cores(mine: Sequence[tuple[Share, Mapping[str, Any]]]) -> float:
    """Cores of a node that were busy and not with its agents' ranks."""
    busy: dict[tuple[int, ...], float] = {}
    for place, reply in mine:
        busy[place.agent.cpus] = max(busy.get(place.agent.cpus, 0.0), reply["busy_cores"])
    own = sum(float(reply["own_cores"]) for _, reply in mine)
    return max(0.0, sum(busy.values()) - own)
