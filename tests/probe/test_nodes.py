"""`probe nodes`: agents of several made-up nodes on this machine, who meets whom, and what is done with the answer."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.errors import UserError
from benchsuite.launch.agents import AgentConfig, AgentLauncher
from benchsuite.probe import node_rank, nodes, ranks
from benchsuite.probe.node_rank import meetings
from benchsuite.results.compare.slow_nodes import Accused
from benchsuite.results.store.store import ResultsStore

STARTER = """#!/bin/bash
for node in a b c; do SLURMD_NODENAME=$node "$@" & done
wait
"""
"""Starts an agent on each of three nodes, which are this machine by three names."""
MEASURED = ("gemm_fp32_tflops", "gemm_bf16_tflops", "memory_bytes_per_s", "storage_bytes_per_s", "pair_bytes_per_s")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def three_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = tmp_path / "starter"
    starter.write_text(STARTER)
    starter.chmod(0o755)
    made = AgentLauncher(AgentConfig("three", 3, (str(starter),), num_nodes=3))
    monkeypatch.setattr(ranks, "load_launcher", lambda _name: made)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 8, 13])
def test_every_two_nodes_meet_once_and_none_two_at_a_time(number: int) -> None:
    rounds = meetings(number)
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(number), 2))
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) <= number


@pytest.mark.full  # two nodes are measured so in the clusters' tests, by the same words
@pytest.mark.usefixtures("three_nodes")
def test_three_nodes_are_measured_side_by_side(run_cli: Run, tmp_path: Path) -> None:
    store, bad = tmp_path / "store", tmp_path / "bad"
    (tmp_path / "site.yaml").write_text("memory_bytes_per_s: 1e15\n")
    code, out, err = run_cli(
        *("probe", "nodes", "--path", tmp_path, "--size", "16MB", "--seconds", "0.05", "--store", store),
        *("--thresholds", tmp_path / "site.yaml", "--exclude-list", bad),
    )
    assert code == 10, err
    assert "-> a: slow memory: " in out and "the site's threshold is 1e+06" in out
    assert bad.read_text() == "a\nb\nc\n"
    assert f"3 nodes for sbatch --exclude={bad}" in err
    records = sorted(ResultsStore(store).records(), key=lambda record: record.label)
    assert [(record.kind, record.status, record.spec["node"]) for record in records] == [
        ("node", "ok", name) for name in "abc"
    ]
    for record in records:
        figures = record.figures.model_dump()
        names = (
            "gemm_fp32_tflops",
            "gemm_bf16_tflops",
            "memory_bytes_per_s",
            "storage_bytes_per_s",
            "pair_bytes_per_s",
        )
        assert all(figures[name] > 0 for name in names) and figures["h2d_bytes_per_s"] is None
        samples = ResultsStore(store).samples(record)
        assert samples is not None and sorted(samples["pairs"]) == [name for name in "abc" if name != record.label]
        assert [len(found) for found in samples["values"]["storage_bytes_per_s"]] == [node_rank.ROUNDS]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["bad", "site.yaml", "starter", "store"], "what nodes wrote to be read is gone"
    code, out, _ = run_cli("results", "show", "--kind", "node", "--store", store)
    assert code == 0 and "pairs GB/s" in out


def screen_of(*found: list[dict[str, Any]]) -> nodes.Screen:
    """Two ranks on each node."""
    return nodes.Screen(["x", "x", "y", "y"], found)


def value(name: str, number: float, other: int | None = None) -> dict[str, Any]:
    return {"name": name, "value": number, "other": other, "reason": None}


def test_a_device_is_named_and_its_node_left_out(tmp_path: Path) -> None:
    cells = [[value("h2d_bytes_per_s", rate)] for rate in (50e9, 50e9, 50e9, 20e9)]
    screen = screen_of(*cells)
    (accused,) = nodes.too_low(screen.rows(), {"h2d_bytes_per_s": 40e9})
    assert str(accused) == "y device 1: slow copies to the device: 20 GB/s, the site's threshold is 40"
    nodes.leave_out([accused, Accused("y", "slow storage")], tmp_path / "list")
    assert (tmp_path / "list").read_text() == "y\n"


def test_pairs_are_of_nodes_and_what_computes_wrongly_is_accused() -> None:
    wrong = {"name": "wrong", "value": 0.0, "other": None, "reason": "cuda:0 computes wrongly: off by 0.5"}
    screen = screen_of([value("pair_bytes_per_s", 3e9, 2)], [value("pair_bytes_per_s", 5e9, 3), wrong], [], [])
    assert screen.pairs() == {("x", "y"): 3e9}, "the slowest of a node's links"
    assert [row["pair_bytes_per_s"] for row in screen.rows()] == [3e9, 3e9]
    assert [str(each) for each in screen.wrong()] == ["x: cuda:0 computes wrongly: off by 0.5"]
    begun, links = Measuring("node", {}, "", "default", {}), [Accused("x - y", "slow link: 3 GB/s")]
    first, second = (record for record, _ in nodes._records(screen, begun, screen.wrong(), links))
    assert (first.status, first.reason, second.status) == ("failed", "cuda:0 computes wrongly: off by 0.5", "ok")
    assert first.caveats == ["slow_node", "slow_link"] and second.caveats == ["slow_link"]


def test_a_node_with_fewer_devices_is_accused_and_none_is_measured_beside_one_without() -> None:
    assert nodes.lacking({"x": 0, "y": 0}) == ([], False)
    (accused,), without = nodes.lacking({"x": 8, "y": 7})
    assert str(accused) == "y: 7 CUDA devices that can be used, other nodes have 8" and not without
    assert nodes.lacking({"x": 8, "y": 0})[1]


def test_thresholds_that_nothing_can_meet_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("memory_bytes: 1\nh2d_bytes_per_s: fast\nd2h_bytes_per_s: -1\ngemm_bf16_tflops: 600\n")
    with pytest.raises(UserError) as refused:
        nodes.thresholds_of(file)
    first, *others = str(refused.value).splitlines()
    assert "unknown key 'memory_bytes'; nearest: memory_bytes_per_s" in first
    assert [line.partition(": ")[2].partition(" is ")[0] for line in others] == ["h2d_bytes_per_s", "d2h_bytes_per_s"]


@pytest.mark.full
def test_json_has_a_record_of_each_node(run_cli: Run) -> None:
    code, out, err = run_cli("probe", "nodes", "--seconds", "0", "--launcher", "local", "--format", "json")
    assert code == 0, err
    (found,) = json.loads(out)
    assert found["kind"] == "node" and found["figures"]["storage_bytes_per_s"] is None
