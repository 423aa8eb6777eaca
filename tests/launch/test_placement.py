"""Which agent forks which ranks."""

import socket
from dataclasses import replace
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.launch.launcher import TooFewNodes
from benchsuite.launch.link import Link
from benchsuite.launch.placement import Agent, about_nodes, cores_per_rank, shares
from tests.helpers.made import made_spec

LINK = Link(socket.socketpair()[0])


def agents(*nodes: str, cores: int = 4, devices: int = 0) -> list[Agent]:
    """Agents on nodes by name, in the order of their tasks."""
    return [
        Agent(
            LINK, node, task, f"boot-{node}", cores, tuple(range(cores)), tuple(f"{node}-{n}" for n in range(devices))
        )
        for task, node in enumerate(nodes)
    ]


def placed(world_size: int, crew: list[Agent], per_node: int | None = None, **asked: Any) -> list[tuple[Any, ...]]:
    spec = made_spec(world_size=world_size, parallelism="ddp").model_copy(update=asked)
    found = shares(spec, crew, per_node)
    return [(share.agent.node, share.rank, share.num_ranks, share.local_rank, share.device) for share in found]


def test_a_trial_takes_the_nodes_that_it_needs() -> None:
    four = agents("a", "b", "c", "d", cores=2)
    assert placed(1, four) == [("a", 0, 1, 0, 0)]
    assert placed(4, four) == [("a", 0, 2, 0, 0), ("b", 2, 2, 0, 0)]
    assert placed(4, four, ranks_per_node=1) == [(name, rank, 1, 0, 0) for rank, name in enumerate("abcd")]
    assert placed(4, four, nodes=2) == [("a", 0, 2, 0, 0), ("b", 2, 2, 0, 0)]
    assert placed(3, four, per_node=1) == [(name, rank, 1, 0, 0) for rank, name in enumerate("abc")]
    assert placed(2, four, threads_per_rank=2) == [("a", 0, 1, 0, 0), ("b", 1, 1, 0, 0)]


def test_more_ranks_than_cores_are_spread_evenly() -> None:
    assert placed(8, agents("a", "b", cores=2)) == [("a", 0, 4, 0, 0), ("b", 4, 4, 0, 0)]
    assert placed(5, agents("a", "b", cores=2)) == [("a", 0, 3, 0, 0), ("b", 3, 2, 0, 0)]


def test_tasks_that_share_a_node_take_its_ranks_in_turn() -> None:
    tasks = agents("a", "a", "b", "b")
    assert placed(4, tasks, per_node=2) == [
        ("a", 0, 1, 0, 0),
        ("a", 1, 1, 1, 1),
        ("b", 2, 1, 0, 0),
        ("b", 3, 1, 1, 1),
    ]
    assert [share[0] for share in placed(2, agents("b", "a"), ranks_per_node=1)] == ["b", "a"], "in the tasks' order"


def test_the_cores_of_a_node_are_shared_by_its_ranks() -> None:
    """By those of all its agents, which may have the same cores or their own."""
    spec = made_spec(world_size=6, parallelism="ddp")
    assert cores_per_rank(shares(spec, agents("a", "b", cores=12), 4)) == {"a": 3.0, "b": 6.0}
    assert cores_per_rank(shares(spec, agents("a", "a", "b", cores=12), 4)) == {"a": 3.0, "b": 6.0}
    first, second, third = agents("a", "a", "b", cores=12)
    apart = [first, replace(second, cpus=tuple(range(12, 24))), third]
    assert cores_per_rank(shares(spec, apart, 4)) == {"a": 6.0, "b": 6.0}


def test_devices() -> None:
    assert placed(6, agents("a", "b", devices=4), device="cuda") == [("a", 0, 4, 0, 0), ("b", 4, 2, 0, 0)]
    each_sees_all = agents("a", "a", devices=2)
    assert [share[4] for share in placed(2, each_sees_all, per_node=2, device="cuda")] == [0, 1]
    own = [replace(agent, devices=(f"{agent.task}-0", f"{agent.task}-1")) for agent in agents("a", "a")]
    assert placed(3, own, per_node=3, device="cuda") == [("a", 0, 2, 0, 0), ("a", 2, 1, 2, 0)]
    assert [share[4] for share in placed(4, each_sees_all, per_node=4)] == [0, 2]
    with pytest.raises(UserError, match="4 ranks on a > 2 CUDA devices there"):
        placed(4, each_sees_all, per_node=4, device="cuda")
    with pytest.raises(UserError, match="5 ranks on a > 4 CUDA devices there"):
        placed(5, agents("a", devices=4), device="cuda")


def test_a_trial_is_not_crowded_onto_the_nodes_that_are_left() -> None:
    """Four ranks of two threads are two a node of four cores, as they were planned, however many nodes are lost."""
    left, lost = agents("a"), {"b": "12:03"}
    two, four = (made_spec(world_size=ranks, parallelism="ddp", threads_per_rank=2) for ranks in (2, 4))
    assert [share.num_ranks for share in shares(two, left, None, lost)] == [2]
    with pytest.raises(TooFewNodes, match=r"^needs 2 nodes; 1 is left of 2 \(b was lost at 12:03\)$"):
        shares(four, left, None, lost)
    many = made_spec(world_size=9, parallelism="ddp", threads_per_rank=2)
    with pytest.raises(TooFewNodes, match="needs 2 nodes; 1 is left"):
        shares(many, left, None, lost)
    on_lost, elsewhere = (two.model_copy(update={"node": node}) for node in "bc")
    with pytest.raises(TooFewNodes, match="needs node b, which was lost at 12:03"):
        shares(on_lost, left, None, lost)
    with pytest.raises(UserError, match="node 'c'"):
        shares(elsewhere, left, None, lost)
    never = two.model_copy(update={"ranks_per_node": 1, "world_size": 3})
    with pytest.raises(UserError, match="3 ranks, 1 a node, need 3 nodes; there are 1"):
        shares(never, left, None, lost)


def test_what_a_record_says_of_nodes() -> None:
    crew = agents("a", "b")
    found = shares(made_spec(world_size=4, parallelism="ddp").model_copy(update={"nodes": 2}), crew)
    told = about_nodes(found, [{"busy_cores": 2.5, "own_cores": 2.0}, {"busy_cores": 1.0, "own_cores": 1.25}], {})
    assert told == [
        {"node": "a", "ranks": [0, 1], "cores": 4, "foreign_cpu_cores": 0.5},
        {"node": "b", "ranks": [2, 3], "cores": 4, "foreign_cpu_cores": 0.0},
    ]


def test_tasks_of_one_node_are_no_foreigners_to_each_other() -> None:
    crew = agents("a", "a")
    spec = made_spec(world_size=2, parallelism="ddp")
    seen = {"busy_cores": 2.25, "own_cores": 1.0}
    (told,) = about_nodes(shares(spec, crew, 2), [seen, seen], {})
    assert told == {"node": "a", "ranks": [0, 1], "cores": 4, "foreign_cpu_cores": 0.25}
    bound = [Agent(LINK, "a", task, "boot", 1, (task,)) for task in (0, 1)]
    (told,) = about_nodes(shares(spec, bound, 2), [{"busy_cores": 1.0, "own_cores": 0.875}] * 2, {})
    assert (told["cores"], told["foreign_cpu_cores"]) == (2, 0.25)


def test_a_trial_that_names_its_node() -> None:
    three = agents("a", "b", "c", cores=1)
    assert placed(1, three, node="b") == [("b", 0, 1, 0, 0)]
    assert placed(2, three, node="c") == [("c", 0, 2, 0, 0)]
    with pytest.raises(UserError, match=r"node 'd' .*allowed: a, b, c"):
        placed(1, three, node="d")


def test_a_record_keeps_what_differs_between_its_nodes() -> None:
    env = {"host": "a", "lustre_client": "2.15.4", "cores": 8, "site": {"bios": "1.7"}}
    facts = {"a": {**env, "cores": 4}, "b": {**env, "host": "b", "lustre_client": "2.15.5"}, "c": {}}
    crew = [replace(agent, facts=facts[agent.node]) for agent in agents("a", "b", "c")]
    found = shares(made_spec(world_size=3, parallelism="ddp").model_copy(update={"nodes": 3}), crew)
    told = about_nodes(found, [{"busy_cores": 0.0, "own_cores": 0.0}] * 3, env)
    assert [(node["node"], node["cores"], node.get("facts")) for node in told] == [
        ("a", 4, {}),
        ("b", 4, {"host": "b", "lustre_client": "2.15.5"}),
        ("c", 4, None),
    ], "an agent that told nothing is not one that is alike"
