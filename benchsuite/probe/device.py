"""`benchsuite probe device`: what matrix units, memory and copies of a device give, as records and as people see it.

A matrix product is the ceiling of MFU, copies are that of what loaders hand on. Each product is compared with one in
float64, so a device that computes wrongly is a failed record.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from benchsuite.analysis.device_peaks import peak_flops
from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.exit_codes import OK, SOME_FAILED
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat
from benchsuite.host.environment import environment
from benchsuite.probe.record import Measured, appended, around, farthest, report
from benchsuite.results.render.tables import Column
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.store.record import DeviceFigures
from benchsuite.results.store.store import ResultsStore
from benchsuite.trial.clock import on_device_s
from benchsuite.workloads.precision import float32_kept, set_float32
from benchsuite.workloads.spec import Precision

PRECISIONS: dict[str, tuple[Precision, ...]] = {"cuda": ("fp32", "tf32", "bf16", "fp16"), "cpu": ("fp32", "bf16")}
WIDTH = {"cuda": 8192, "cpu": 2048}
"""Rows and columns of the matrices, at most: products so large fill a device."""
LEAST_WIDTH, SHORT_PRODUCT_S = 256, 0.1
"""A CPU without instructions for 16 bits takes a minute for a large product: there matrices are halved until as many
as are timed are foreseen to take the seconds that were asked for, or one of them this."""
COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
"""Several times the largest cache."""
HOST_BYTES = 1 << 28
MIN_SAMPLE_S, MIN_SAMPLES, WARMUP_S = 0.02, 5, 0.2
MAX_ERROR = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2, "fp16": 1e-2}
"""Largest error of a product's row, relative to float64 (norms): several times what rounding of operands explains."""
MAX_SPREAD = 0.1


@dataclass(frozen=True)
class Cell:
    """What one measurement gave."""

    name: str
    unit: str
    values: list[float]
    """Samples of the measurement, in the unit."""
    of_peak: float | None = None
    """Share of the stated peak that their median reaches."""

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass
class Timer:
    """Times calls on one device: by its events, or by the host's clock where it computes synchronously."""

    device: torch.device
    seconds: float
    """Seconds for each measurement."""
    _spent_s: float = field(default=0.0, init=False)

    def samples_s(self, call: Callable[[], object]) -> list[float]:
        """Seconds of one call, each sample the mean of as many as last long enough to be timed."""
        one_s = self._warmed_s(call)
        calls = max(1, round(MIN_SAMPLE_S / one_s))
        number = max(MIN_SAMPLES, round(self.seconds / (calls * one_s)))
        return [self._time_s(call, calls) / calls for _ in range(number)]

    def _warmed_s(self, call: Callable[[], object]) -> float:
        """Call for a while, so that clocks rise and libraries choose; seconds of the last call."""
        began, last_s = time.perf_counter(), self._time_s(call, 1)
        while time.perf_counter() - began < WARMUP_S:
            last_s = self._time_s(call, 1)
        return max(last_s, 1e-7)

    def _time_s(self, call: Callable[[], object], calls: int) -> float:
        if self.device.type == "cpu":
            began = time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - began
        return on_device_s(call, calls)


def devices_of(asked: str) -> list[torch.device]:
    """The devices that are asked for: `auto` is every CUDA device, else the CPU.

    Raises:
        UserError: there is none of this name.
    """
    usable = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if asked in ("auto", "cuda") and usable:
        return [torch.device(name) for name in usable]
    if asked == "auto" or asked == "cpu":
        return [torch.device("cpu")]
    if asked not in usable:
        raise refuse("--device", asked, ("auto", "cpu", *(["cuda"] if usable else []), *usable))
    return [torch.device(asked)]


def measured(device: torch.device, seconds: float) -> list[Cell]:
    """All that is measured of a device, each for so many seconds.

    Raises:
        UserError: a product is not what it should be.
    """
    timer = Timer(device, seconds)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with float32_kept():
        cells = [_product(timer, precision) for precision in PRECISIONS[device.type]]
    return [*cells, _memory(timer), *(_copies(timer) if device.type == "cuda" else [])]


def _product(timer: Timer, precision: Precision) -> Cell:
    """Products of square matrices of random numbers."""
    device = timer.device
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    set_float32(precision)
    within_s = max(timer.seconds / MIN_SAMPLES, SHORT_PRODUCT_S)
    width = WIDTH["cuda"] if device.type == "cuda" else _fitting_width(dtype, within_s)
    one, other = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    found = torch.empty(width, width, device=device, dtype=dtype)
    samples = timer.samples_s(lambda: torch.mm(one, other, out=found))
    _check(one, other, found, precision)
    peak = peak_flops(name_of(device), precision) if device.type == "cuda" else None
    rates = [2 * width**3 / s / 1e12 for s in samples]
    return Cell(f"gemm_{precision}_tflops", "TFLOP/s", rates, median(rates) * 1e12 / peak if peak else None)


def _fitting_width(dtype: torch.dtype, within_s: float) -> int:
    """Width of matrices whose product a CPU is done with in time, by the time of a small one."""
    small, found = (torch.ones(LEAST_WIDTH, LEAST_WIDTH, dtype=dtype) for _ in range(2))
    torch.mm(small, small, out=found)
    began = time.perf_counter()
    torch.mm(small, small, out=found)
    small_s, width = time.perf_counter() - began, WIDTH["cpu"]
    while width > LEAST_WIDTH and small_s * (width / LEAST_WIDTH) ** 3 > within_s:
        width //= 2
    return width


def _check(one: torch.Tensor, other: torch.Tensor, found: torch.Tensor, precision: str) -> None:
    """Compare a row with the same in float64, on the CPU."""
    row = len(found) // 3
    wanted = one[row].cpu().double() @ other.cpu().double()
    error = float((found[row].cpu().double() - wanted).norm() / wanted.norm())
    if not error < MAX_ERROR[precision]:
        raise UserError(
            f"{one.device} computes wrongly: a row of a {precision} product is off by {error:.1e} of itself"
        )


def _memory(timer: Timer) -> Cell:
    """A copy within the device's memory; bytes read and written count."""
    size = COPIED_BYTES[timer.device.type]
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    samples = timer.samples_s(lambda: target.copy_(source))
    return Cell("memory_bytes_per_s", "GB/s", [2 * size / s / 1e9 for s in samples])


def _copies(timer: Timer) -> list[Cell]:
    """Copies of page-locked memory to the device and back, one way at a time."""
    host = torch.randint(0, 255, (HOST_BYTES,), dtype=torch.uint8).pin_memory()
    there = torch.empty(HOST_BYTES, dtype=torch.uint8, device=timer.device)
    ways = {
        "h2d_bytes_per_s": lambda: there.copy_(host, non_blocking=True),
        "d2h_bytes_per_s": lambda: host.copy_(there, non_blocking=True),
    }
    return [Cell(name, "GB/s", [HOST_BYTES / s / 1e9 for s in timer.samples_s(way)]) for name, way in ways.items()]


def name_of(device: torch.device) -> str:
    """What the driver calls a device; of a CPU its model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(environment()["cpu"])


def figures(cells: Sequence[Cell]) -> DeviceFigures:
    """Medians, rates in bytes."""
    return DeviceFigures(**{cell.name: cell.median * (1e9 if cell.unit == "GB/s" else 1) for cell in cells})


def caveats(cells: Sequence[Cell]) -> list[str]:
    """Why figures must not be trusted blindly: a name, a colon, the arithmetic."""
    apart = {cell.name: farthest(cell.values) / cell.median for cell in cells}
    worst = max(apart, key=lambda name: apart[name])
    if apart[worst] <= MAX_SPREAD:
        return []
    return [f"not_steady: a sample of {worst} lies {apart[worst]:.0%} from their median"]


def verb(asked: str, seconds: float, store: Path | None, session: str, format: PlainFormat) -> int:
    """Measure devices one after another and print what they gave; the exit code."""
    check_session(session)
    if store is not None:
        ResultsStore(store).check_writable()
    found = [*appended([_record_of(device, seconds, session) for device in devices_of(asked)], store)]
    report(found, store, format, lambda: show(found))
    return OK if all(record.status == "ok" for record, _ in found) else SOME_FAILED


def _record_of(device: torch.device, seconds: float, session: str) -> Measured:
    """Measure a device; one that computes wrongly is a failed record."""
    name = name_of(device)
    spec = {"device": str(device), "device_name": name, "seconds": seconds, "threads": torch.get_num_threads()}
    begun = Measuring("device", spec, f"{device} {name}", session, environment())
    try:
        cells = measured(device, seconds)
    except UserError as error:
        return begun.record("failed", reason=str(error)), None
    samples = {"cells": [vars(cell) for cell in cells]}
    return begun.record("ok", details=caveats(cells), figures=figures(cells)), samples


def show(found: Sequence[Measured]) -> None:
    """A sentence for each device, and a table of what was measured."""
    out = console()
    for record, samples in found:
        cells = [Cell(**cell) for cell in samples["cells"]] if samples else []
        out.print(f"-> {record.label}: {record.reason or sentence(cells)}", markup=False)
        if cells:
            out.print(fitting_table([vars(cell) for cell in cells], COLUMNS, out))
        for detail in record.caveat_details:
            out.print(f"  {detail}", markup=False)


def sentence(cells: Sequence[Cell]) -> str:
    """The fastest product, memory and copies."""
    best = max((cell for cell in cells if cell.name.startswith("gemm")), key=lambda cell: cell.median)
    share = f", {best.of_peak:.0%} of its stated peak" if best.of_peak else ""
    rates = [f"{NAMES.get(cell.name, cell.name)} {cell.median:,.1f} GB/s" for cell in cells if cell.unit == "GB/s"]
    return f"{best.median:,.{_digits(best.median)}f} TFLOP/s in {best.name.split('_')[1]}{share}; {', '.join(rates)}"


def _digits(value: float) -> int:
    """Behind the point, so that three tell."""
    return max(0, 2 - math.floor(math.log10(value)))


NAMES = {
    "memory_bytes_per_s": "memory",
    "h2d_bytes_per_s": "host to device",
    "d2h_bytes_per_s": "device to host",
    **{f"gemm_{name}_tflops": f"matrix product {name}" for name in MAX_ERROR},
}
COLUMNS: tuple[Column, ...] = (
    Column("", lambda cell: NAMES[cell["name"]], right=False),
    Column("median ± farthest", lambda cell: around(cell["values"], _digits(median(cell["values"])))),
    Column("unit", lambda cell: str(cell["unit"]), right=False),
    Column("of stated peak", lambda cell: "" if cell["of_peak"] is None else f"{cell['of_peak']:.0%}"),
    Column("samples", lambda cell: str(len(cell["values"]))),
)
