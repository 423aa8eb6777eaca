"""(s) The known picture: utilization against accelerators, from a throttled shared disk and from node-local copies.

`benchsuite/sweeps/staging.yaml` on one machine, everything scaled down: volumes of 1.5 MB in place of 146, steps of
64 ms in place of 636, a disk that gives 250 MB/s, and /dev/shm for a local NVMe. Needs root.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.throttle import CannotThrottle, throttled
from benchsuite.cli.sweep import run_file
from benchsuite.cli.sweep_options import SweepOptions
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.workloads.facts import FACTS

NAMES: Mapping[str, str] = {"none": "shared disk", "copy": "node-local copy"}
COLOURS: Mapping[tuple[str, str], str] = {
    ("unet3d", "none"): "#c0392b",
    ("unet3d", "copy"): "#2471a3",
    ("bert", "none"): "#b9770e",
    ("bert", "copy"): "#1e8449",
}


@dataclass(frozen=True)
class Scale:
    """How large the picture is drawn."""

    disk_bytes_per_s: int = 250_000_000
    ranks: tuple[int, ...] = (1, 2, 4)
    step: str = "emulated:64ms"
    batches: Mapping[str, int] = field(default_factory=lambda: {"unet3d": 7, "bert": 32})
    num_samples: Mapping[str, int] = field(default_factory=lambda: {"unet3d": 1120, "bert": 5120})
    measure: Mapping[str, object] = field(default_factory=lambda: {"repeats": 2, "steps": 24})


@dataclass(frozen=True)
class Line:
    """Median utilization at each number of accelerators."""

    workload: str
    staging: str
    ranks: tuple[int, ...]
    au: tuple[float, ...]
    bottleneck: str
    """What limits at the largest number."""
    stage_s: float | None


def measure(folder: Path, local: Path = Path("/dev/shm/benchsuite-bench"), scale: Scale | None = None) -> list[Line]:
    """Run the sweep for both workloads."""
    store, scale = folder / "store", scale or Scale()
    for workload, samples in scale.num_samples.items():
        kind, params = FACTS[workload].kind, FACTS[workload].variants["tiny"].sample
        root = folder / workload
        generate_dataset(root / "files", Wanted(workload, "tiny", "files", kind=kind, params=params), samples)
        overrides = {
            "workload": workload,
            "variant": "tiny",
            "device": scale.step,
            "data.root": root,
            "data.num_workers": 2,
            "data.staging_dir": local,
            "batch_size": scale.batches[workload],
            "world_size": list(scale.ranks),
            **{f"measure.{name}": value for name, value in scale.measure.items()},
        }
        with throttled(root, scale.disk_bytes_per_s):
            given = [f"{key}={value}" for key, value in overrides.items()]
            code = run_file(Path("staging.yaml"), SweepOptions(workload, store, given))
        if code:
            raise RuntimeError(f"the sweep of {workload} ended with {code}")
    shutil.rmtree(local, ignore_errors=True)
    rows = ResultsStore(store).frame(by="point").to_dict("records")
    return [_line(rows, workload, staging, scale.ranks) for workload in scale.num_samples for staging in NAMES]


def _line(rows: list[dict[Any, Any]], workload: str, staging: str, ranks: tuple[int, ...]) -> Line:
    mine = sorted(
        (row for row in rows if (row["spec.workload"], row["spec.data.staging"]) == (workload, staging)),
        key=lambda row: row["spec.world_size"],
    )
    assert tuple(row["spec.world_size"] for row in mine) == ranks, f"{workload} {staging}: points are missing"
    stage_s = mine[-1]["stage_s"] if staging == "copy" else None
    return Line(workload, staging, ranks, tuple(row["au"] for row in mine), str(mine[-1]["bottleneck"]), stage_s)


def table(lines: list[Line]) -> str:
    """Markdown."""
    head = ["workload", "read from", *(f"AU at {ranks}" for ranks in lines[0].ranks), "verdict at most"]
    rows = [head, ["---"] * len(head)]
    for line in lines:
        rows.append([line.workload, NAMES[line.staging], *(f"{au:.2f}" for au in line.au), line.bottleneck])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def figure(lines: list[Line]) -> str:
    """Draw the table as SVG: utilization against accelerators, 0 to 1."""
    width, height, left, top = 560, 300, 50, 20
    across = {ranks: left + 60 + number * 150 for number, ranks in enumerate(lines[0].ranks)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10, height, top)
        parts.append(f'<line x1="{left}" x2="{width - 150}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tenth / 10:.1f}</text>')
    for ranks, x in across.items():
        parts.append(f'<text x="{x}" y="{height - 18}" text-anchor="middle">{ranks}</text>')
    parts.append(f'<text x="{left + 200}" y="{height - 2}" text-anchor="middle">accelerators (emulated)</text>')
    for line in lines:
        colour, name = COLOURS[line.workload, line.staging], f"{line.workload}, {NAMES[line.staging]}"
        points = [(across[ranks], _y(au, height, top)) for ranks, au in zip(line.ranks, line.au, strict=True)]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
            + " ".join(f"{x},{y:.1f}" for x, y in points)
            + '"/>'
        )
        parts += [f'<circle cx="{x}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(f'<text x="{width - 145}" y="{40 + 20 * lines.index(line)}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _y(au: float, height: int, top: int) -> float:
    return top + (height - 60) * (1.05 - min(au, 1.05)) / 1.05


def show(folder: Path) -> None:
    """Print the table, and draw it as docs/staging.svg."""
    print("(s) utilization of emulated accelerators fed by a throttled shared disk and by node-local copies")
    try:
        lines = measure(folder)
    except CannotThrottle as error:
        print(f"    not run: {error}")
        return
    print(table(lines))
    Path("docs/staging.svg").write_text(figure(lines))
