"""Layers of configuration in files of a test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.contract.errors import UserError
from benchsuite.grid.expand import expand, load_sweep
from tests.helpers.grids import TWO_CORES

TINY: dict[str, Any] = {"workload": "resnet50", "variant": "tiny", "batch_size": 4, "data": {"source": "synthetic"}}


class Files:
    """A site's, a user's and a sweep's file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.names = {"site": "BENCHSUITE_SITE", "user": "BENCHSUITE_USER_CONFIG"}
        for variable in self.names.values():
            monkeypatch.setenv(variable, "")

    def write(self, which: str, **value: Any) -> Path:
        path = self.folder / f"{which}.yaml"
        path.write_text(yaml.safe_dump(value))
        if which in self.names:
            self.monkeypatch.setenv(self.names[which], str(path))
        return path

    def sweep(self, *overrides: str, base: dict[str, Any] | None = None, **more: Any) -> Any:
        return load_sweep(self.write("mine", base=TINY if base is None else base, **more), list(overrides))

    def spec(self, *overrides: str, base: dict[str, Any] | None = None, **more: Any) -> Any:
        """The only point."""
        plan = expand(self.sweep(*overrides, base=base, **more), TWO_CORES)
        assert plan.skipped == []
        (point,) = plan.points
        return point.spec

    def refused(self, *overrides: str, **sweep: Any) -> str:
        with pytest.raises(UserError) as caught:
            expand(self.sweep(*overrides, **sweep), TWO_CORES)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture(autouse=True)
def without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCHSUITE_STORE", raising=False)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    yield Files(tmp_path, monkeypatch)
