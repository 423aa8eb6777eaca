"""Joules of sockets from a made-up powercap tree."""

from pathlib import Path

import pytest

from benchsuite.host.energy import counted_j


def socket(folder: Path, number: int, uj: int, name: str | None = None) -> Path:
    path = folder / f"intel-rapl:{number}"
    path.mkdir(exist_ok=True)
    (path / "name").write_text(f"{name or f'package-{number}'}\n")
    (path / "energy_uj").write_text(f"{uj}\n")
    (path / "max_energy_range_uj").write_text("999999999\n")
    return path


def test_all_sockets_count_and_their_parts_do_not(tmp_path: Path) -> None:
    socket(tmp_path, 0, 5_000_000)
    socket(tmp_path, 1, 7_000_000)
    socket(tmp_path, 2, 1, "psys")
    since = counted_j(tmp_path)
    socket(tmp_path, 0, 6_500_000)
    socket(tmp_path, 1, 9_000_000)
    socket(tmp_path, 2, 900_000_000, "psys")
    assert since() == pytest.approx(3.5)


def test_a_counter_that_began_anew(tmp_path: Path) -> None:
    socket(tmp_path, 0, 999_000_000)
    since = counted_j(tmp_path)
    socket(tmp_path, 0, 1_000_000)
    assert since() == pytest.approx(2.0)


def test_nothing_is_told_where_it_cannot_be_read(tmp_path: Path) -> None:
    assert counted_j(tmp_path)() is None
    (socket(tmp_path, 0, 1) / "energy_uj").unlink()
    assert counted_j(tmp_path)() is None
