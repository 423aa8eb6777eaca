"""Hosts behind a slow-down: trials on several nodes, and points that always run on the same host."""

from collections.abc import Mapping
from typing import Any

from benchsuite.results.compare.metrics import chosen
from benchsuite.results.compare.nights import Night, nights_of, point_key
from benchsuite.results.gate.cause import Cause, cause_of, hosts_of
from benchsuite.results.store.record import TrialRecord
from tests.results.nightly import trial

(RATE,) = chosen(["samples_per_s"])
OLD, NEW = "2.15.4", "2.15.5"


def on(hosts: Mapping[str, str]) -> dict[str, Any]:
    """The environment of a trial on several hosts, by their version of the Lustre client; the first one's facts."""
    first, *_ = hosts
    nodes = [{"node": host, "ranks": [n, n], "cores": 2, "foreign_cpu_cores": 0.0} for n, host in enumerate(hosts)]
    for node, (host, client) in zip(nodes, hosts.items(), strict=True):
        facts = {"host": host, "lustre_client": client}
        node["facts"] = {
            name: fact for name, fact in facts.items() if fact != {"host": first, "lustre_client": hosts[first]}[name]
        }
    return {"host": first, "cores": 2, "devices": [], "lustre_client": hosts[first], "nodes": nodes}


def night(number: int, *points: tuple[float, dict[str, Any]]) -> list[TrialRecord]:
    """A trial of each point, with how much slower it is and where it ran."""
    return [trial(number, point, 0, slower, env=env) for point, (slower, env) in enumerate(points)]


def found(before: list[TrialRecord], after: list[TrialRecord], point: int = 0) -> Cause:
    nights: list[list[Night]] = [nights_of(records) for records in (before, after)]
    return cause_of(*nights, point_key(next(one for one in after if one.point_id == f"p{point}")), RATE)


def changes(cause: Cause) -> list[tuple[str, Any, Any, list[str]]]:
    return [(one.fact, one.before, one.after, [*one.hosts]) for one in cause.changed]


def test_the_facts_of_every_node_are_told() -> None:
    (record,) = night(0, (0.0, on({"n1": OLD, "n2": NEW})))
    assert {host: facts["lustre_client"] for host, facts in hosts_of(record).items()} == {"n1": OLD, "n2": NEW}
    assert [*hosts_of(trial(0, 0, 0, 0.0, env={"host": "n1", "nodes": [{"node": "n1"}, {"node": "n2"}]}))] == ["n1"]
    assert [*hosts_of(trial(0, 0, 0, 0.0, env={}))] == ["unknown"]


def test_of_a_trial_on_two_nodes_the_one_that_changed_is_named() -> None:
    before = [one for n in range(3) for one in night(n, (0.0, on({"n1": OLD, "n2": OLD})))]
    after = night(3, (0.2, on({"n1": OLD, "n2": NEW})))
    cause = found(before, after)
    assert changes(cause) == [("lustre_client", OLD, NEW, ["n2"])]
    assert cause.hosts == [], "both ran together: neither is known to be the slow one"


def test_on_all_nodes_none_is_named() -> None:
    before = night(0, (0.0, on({"n1": OLD, "n2": OLD})))
    assert changes(found(before, night(1, (0.2, on({"n1": NEW, "n2": NEW}))))) == [("lustre_client", OLD, NEW, [])]


def test_nodes_that_are_slow_in_every_pair_are_named() -> None:
    """Six pairs of four nodes, of which two have a new client: pairs without either are as before."""
    names = ("0416", "0417", "0433", "0434")
    pairs = [(one, other) for n, one in enumerate(names) for other in names[n + 1 :]]
    before, after = [], []
    for n, pair in enumerate(pairs):
        before += night(n, (0.0, on(dict.fromkeys(pair, OLD))))
        clients = {name: NEW if name in ("0417", "0433") else OLD for name in pair}
        after += night(10 + n, (0.1 * [*clients.values()].count(NEW), on(clients)))
    cause = found(before, after)
    assert changes(cause) == [("lustre_client", OLD, NEW, ["0417", "0433"])]


def test_a_point_that_always_runs_on_the_changed_host_says_only_there() -> None:
    before = night(0, (0.0, on({"n1": OLD})), (0.0, on({"n2": OLD})))
    after = night(1, (0.2, on({"n1": NEW})), (0.0, on({"n2": OLD})))
    assert changes(found(before, after)) == [("lustre_client", OLD, NEW, ["n1"])]


def test_what_changed_on_the_hosts_of_other_points_too_is_not_only_there() -> None:
    before = night(0, (0.0, on({"n1": OLD})), (0.0, on({"n2": OLD})))
    after = night(1, (0.2, on({"n1": NEW})), (0.0, on({"n2": NEW})))
    assert changes(found(before, after)) == [("lustre_client", OLD, NEW, [])]
