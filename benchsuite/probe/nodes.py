"""`benchsuite probe nodes`: all nodes of an allocation side by side, and which of them, or which link, is slow.

Nodes are compared with each other, and with what a site's file of thresholds says that each must give.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.console import console, progress_bar
from benchsuite.contract.errors import UserError, refuse_key, several, shown
from benchsuite.contract.exit_codes import OK, REGRESSION, SOME_FAILED
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat, echo
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.contract.yaml_file import read_yaml
from benchsuite.grid.expand import resolve
from benchsuite.grid.point import Point
from benchsuite.grid.validity import why_invalid
from benchsuite.host.environment import environment
from benchsuite.host.machine import Machine
from benchsuite.launch.launcher import Launcher, machine_of
from benchsuite.launch.work_folder import shared_folder
from benchsuite.probe.node_rank import PAIR, WRONG, Screening
from benchsuite.probe.ranks import agents_for, found_by, leave_request
from benchsuite.probe.record import Measured, appended, report, why_failed
from benchsuite.results.compare.slow_nodes import MIN_NODES, NODE, PROBED, Accused, outliers, slow_links
from benchsuite.results.render.tables import rows
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.render.words import counted, typed
from benchsuite.results.report.probes import NODE_COLUMNS
from benchsuite.results.store.frames import record_frame
from benchsuite.results.store.record import NodeFigures, Status
from benchsuite.results.store.replacing import write_whole

TASK = "benchsuite.probe.node_rank:run_rank"
THRESHOLDS = tuple(column for measure in PROBED for column in measure.columns)
"""What a file of thresholds may name: the least that a node must give, in TFLOP/s or bytes/s."""
FEW_NODES = 8


@dataclass(frozen=True)
class Asked:
    """What the options of `probe nodes` ask for."""

    seconds: float
    path: Path | None
    size_bytes: int
    thresholds: Mapping[str, float]
    exclude_list: Path | None
    timeout_s: float


@dataclass(frozen=True)
class Screen:
    """What was measured: values by name of each rank, in order, and the names of their nodes."""

    nodes: Sequence[str]
    """The node of each rank."""
    found: Sequence[Sequence[Mapping[str, Any]]]
    """What each rank has left, as `node_rank.Found`."""

    def values(self, node: str, name: str) -> list[list[float]]:
        """The samples of each rank of a node that has some."""
        mine = (found for of, found in zip(self.nodes, self.found, strict=True) if of == node)
        samples = ([one["value"] for one in found if one["name"] == name] for found in mine)
        return [one for one in samples if one]

    def pairs(self) -> dict[tuple[str, str], float]:
        """Rates between two nodes: of their ranks that met, the slowest pair's, which a job waits for."""
        rates: dict[tuple[str, str], list[float]] = {}
        for of, found in zip(self.nodes, self.found, strict=True):
            for one in found:
                if one["name"] == PAIR:
                    rates.setdefault((of, self.nodes[one["other"]]), []).append(one["value"])
        return {link: min(found) for link, found in rates.items()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each sample: of a device, where a node has several, by the name of both."""
        crowded = len(set(self.nodes)) < len(self.nodes)
        rows = []
        for rank, (node, found) in enumerate(zip(self.nodes, self.found, strict=True)):
            device = f"{node} device {rank - self.nodes.index(node)}" if crowded else node
            for one in found:
                if one["name"] in THRESHOLDS and one["other"] is None:
                    rows.append(
                        {NODE: node if one["name"].startswith("storage") else device, one["name"]: one["value"]}
                    )
        pairs = self.pairs().items()
        return rows + [{NODE: node, PAIR: rate} for link, rate in pairs for node in link]

    def wrong(self) -> list[Accused]:
        """Nodes with a device that computes wrongly."""
        told = {
            node: one["reason"]
            for node, found in zip(self.nodes, self.found, strict=True)
            for one in found
            if one["name"] == WRONG
        }
        return [Accused(node, reason) for node, reason in told.items()]


def thresholds_of(file: Path | None) -> dict[str, float]:
    """What a site's file says that each node must give at least.

    Raises:
        UserError: it names something else, or no number.
    """
    given = read_yaml(file) if file is not None else {}
    wrong = [refuse_key(key, list(THRESHOLDS), f" in {file}") for key in given if key not in THRESHOLDS]
    found = {key: _number(value) for key, value in given.items() if key in THRESHOLDS}
    wrong += [
        f"{file}: {key} is {shown(given[key])}: allowed: a number above 0, in TFLOP/s or bytes/s"
        for key, value in found.items()
        if not 0 < value < math.inf
    ]
    if error := several(wrong):
        raise error
    return found


def _number(value: object) -> float:
    """A number, also as YAML 1.1 takes for text: 40e9. Of anything else one that no threshold can be."""
    try:
        return math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        return math.nan


def verb(asked: Asked, launcher: str, store: Path | None, session: str, format: PlainFormat) -> int:
    """Measure the nodes, say which are slow, and write those that Slurm is to leave out; the exit code.

    Raises:
        UserError: this cannot run here.
    """
    check_session(session)
    with agents_for(TASK, launcher, store) as chosen:
        accused, without = lacking(chosen.devices_by_node())
        if without:
            return _cannot_compare(accused, asked)
        about, outcome = measured(asked, point_of(asked, machine_of(chosen)), chosen, store, session)
    if isinstance(outcome, str):
        report(
            [*appended([(about.record("failed", reason=outcome), None)], store)], store, format, lambda: echo(outcome)
        )
        return SOME_FAILED
    accused += [*outcome.wrong(), *outliers(outcome.rows(), PROBED), *too_low(outcome.rows(), asked.thresholds)]
    links = slow_links({link: [rate] for link, rate in outcome.pairs().items()})
    kept = [*appended(_records(outcome, about, accused, links), store)]
    report(kept, store, format, lambda: show(kept, accused, links))
    if asked.exclude_list is not None:
        leave_out(accused, asked.exclude_list)
    return REGRESSION if accused or links else OK


def lacking(devices: Mapping[str, int]) -> tuple[list[Accused], bool]:
    """Nodes with fewer devices than others have; and whether one has none, beside which others cannot be measured."""
    most = max(devices.values())
    found = [
        Accused(node, f"{counted(number, 'CUDA device')} that can be used, other nodes have {most}")
        for node, number in devices.items()
        if number < most
    ]
    return found, most > 0 and min(devices.values()) == 0


def _cannot_compare(accused: Sequence[Accused], asked: Asked) -> int:
    for each in accused:
        echo(f"-> {each}")
    echo("nothing was measured: leave these nodes out and screen the others", err=True)
    if asked.exclude_list is not None:
        leave_out(accused, asked.exclude_list)
    return REGRESSION


def point_of(asked: Asked, machine: Machine) -> Point:
    """A rank for each device of each node, or one for all cores of each.

    Raises:
        UserError: they cannot run here, with the arithmetic.
    """
    each = max(1, machine.cuda_devices)
    values = {
        "workload": "gpt_neox",
        "variant": "tiny",
        "data": {"source": "synthetic"},
        "device": "cuda" if machine.cuda_devices else "cpu",
        "parallelism": "ddp" if each * machine.nodes > 1 else "none",
        "world_size": each * machine.nodes,
        "ranks_per_node": each,
        "batch_size": 1,
        "measure": {"timeout_s": asked.timeout_s},
    }
    point = resolve(parse_trial(values), machine, each * machine.nodes, {})
    reason = why_invalid(point, machine)
    if reason:
        raise UserError(f"probe nodes cannot run: {reason}")
    return point


def measured(
    asked: Asked, point: Point, launcher: Launcher, store: Path | None, session: str
) -> tuple[Measuring, Screen | str]:
    """What all nodes gave, or why the ranks did not come to an end."""
    spec = point.spec
    path = str(asked.path.absolute()) if asked.path else None
    request = Screening(asked.seconds, spec.ranks_per_node or 1, path, asked.size_bytes)
    begun = Measuring(
        "node", {"seconds": asked.seconds, "path": path, "device": spec.device}, "", session, environment()
    )
    with shared_folder(store, launcher, "nodes") as folder:
        leave_request(request, folder)
        with progress_bar(f"measuring {counted(spec.ranks, 'rank')}") as bar:
            outcome = launcher.run(spec, None, folder, lambda progress: bar(progress.step, progress.total))
        found = [found_by(folder, rank) for rank in range(spec.ranks)]
        why = why_failed(outcome, spec.ranks, folder)
    if why is not None:
        return begun, why[1]
    names = {rank: node["node"] for node in outcome.nodes for rank in range(node["ranks"][0], node["ranks"][1] + 1)}
    return begun, Screen([names[rank] for rank in range(spec.ranks)], found)


def _records(
    screen: Screen, begun: Measuring, accused: Sequence[Accused], links: Sequence[Accused]
) -> Iterator[Measured]:
    """A record of each node: the medians of its slowest device, of its storage and of its pairs, and what is wrong."""
    pairs, wrong = screen.pairs(), {each.who: each.words for each in screen.wrong()}
    for node in dict.fromkeys(screen.nodes):
        given = {name: values for name in THRESHOLDS if name != PAIR and (values := screen.values(node, name))}
        figures = {name: min(map(median, values)) for name, values in given.items()}
        met = {link[0] if link[1] == node else link[1]: rate for link, rate in pairs.items() if node in link}
        if met:
            figures[PAIR] = median(met.values())
        samples = {
            "values": given,
            "pairs": met,
        }
        told = [f"slow_node: {each}" for each in accused if node_of(each) == node]
        told += [f"slow_link: {each}" for each in links if node in each.who.split(" - ")]
        measuring = replace(begun, spec={**begun.spec, "node": node}, label=node)
        status: Status = "failed" if node in wrong else "ok"
        yield measuring.record(status, reason=wrong.get(node), details=told, figures=NodeFigures(**figures)), samples


def node_of(accused: Accused) -> str:
    """The node that is accused, or whose device is."""
    return accused.who.partition(" ")[0]


def too_low(rows: Sequence[Mapping[str, Any]], thresholds: Mapping[str, float]) -> list[Accused]:
    """Nodes, or devices of them, whose median lies below what the site's file says."""
    found = []
    for measure in PROBED:
        (name,) = measure.columns
        values: dict[str, list[float]] = {}
        for row in rows:
            if name in row:
                values.setdefault(row[NODE], []).append(row[name])
        found += [
            Accused(
                who,
                f"{measure.name}: {median(samples) * measure.scale:.3g} {measure.unit}, the site's threshold is "
                f"{thresholds[name] * measure.scale:.3g}",
            )
            for who, samples in values.items()
            if name in thresholds and median(samples) < thresholds[name]
        ]
    return found


def leave_out(accused: Sequence[Accused], file: Path) -> None:
    """Write the nodes that are accused as Slurm takes them: `sbatch --exclude=./FILE`. No node gives an empty file."""
    nodes = sorted(set(map(node_of, accused)))
    write_whole(file, "".join(f"{node}\n" for node in nodes))
    echo(
        f"written: {file}: {counted(len(nodes), 'node')} for {typed('sbatch', f'--exclude={file.absolute()}')}",
        err=True,
    )


def show(kept: Sequence[Measured], accused: Sequence[Accused], links: Sequence[Accused]) -> None:
    """Print the answer, then a row for each node."""
    out = console()
    for line in [*accused, *links]:
        out.print(f"-> {line}", markup=False)
    if not accused and not links:
        few = f"; to compare them takes {MIN_NODES}" if len(kept) < MIN_NODES else ""
        few = few or ("; of so few only large differences would be named" if len(kept) < FEW_NODES else "")
        out.print(f"-> {counted(len(kept), 'node')}, none is slow{few}", markup=False)
    out.print(fitting_table(rows(record_frame([record for record, _ in kept], "node")), NODE_COLUMNS, out))
