"""`report --table`: every figure in columns, those of devices among them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.results.report.devices_reported import devices_store

Run = Callable[..., tuple[int, str, str]]
DEVICES = (
    "energy J",
    "J per 1,000 samples",
    "GPU busy %",
    "power-capped %",
    "too hot %",
    "NVLink GB/s",
    "reserved GB",
    "on the device GB",
    "peak of the card's GB",
)


def test_every_figure_stands_in_it_and_the_default_table_stays(run_cli: Run, tmp_path: Path) -> None:
    devices_store(tmp_path)
    code, out, _ = run_cli("report", "--store", tmp_path, "--table")
    assert code == 0
    (heading,) = [line for line in out.splitlines() if line.startswith(" point")]
    assert all(name in heading for name in (*DEVICES, "peak_memory_bytes")), heading
    (row,) = [line for line in out.splitlines() if line.startswith(" gpus-2")]
    assert all(f" {value} " in row for value in ("5000", "625", "75", "12", "3", "81.0", "52.0", "56.0 of 80"))
    assert "held back, the worst device" in run_cli("report", "--store", tmp_path, "--table", "--why")[1]
    plain = run_cli("report", "--store", tmp_path)[1]
    assert not any(name in plain for name in DEVICES) and "--table" in plain


@pytest.mark.parametrize(
    ("more", "named"), [(("--html", "x.html"), "--html"), (("--format", "csv"), "--format csv")], ids=["html", "csv"]
)
def test_beside_what_prints_no_table_it_is_refused(
    run_cli: Run, tmp_path: Path, more: tuple[str, ...], named: str
) -> None:
    devices_store(tmp_path)
    code, _, err = run_cli("report", "--store", tmp_path, "--table", *more)
    assert code == 2
    assert err.startswith(f"error: report: --table with {named}; allowed: --table alone") and err.count("\n") == 1
