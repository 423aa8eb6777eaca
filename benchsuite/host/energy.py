"""Energy that processors count, by Linux's interface to RAPL (`Documentation/power/powercap`)."""

from collections.abc import Callable
from pathlib import Path

from benchsuite.inside.files import text_of

POWERCAP = Path("/sys/class/powercap")


def counted_j(folder: Path = POWERCAP) -> Callable[[], float | None]:
    """Begin to count the joules of all sockets; calling what is returned gives those since.

    None where they cannot be read: in most virtual machines, and by others than root.
    """
    before = _packages_uj(folder)

    def since() -> float | None:
        after = _packages_uj(folder)
        if not before or before.keys() != after.keys():
            return None
        return sum((after[name] - uj) % _range_uj(folder / name) for name, uj in before.items()) / 1e6

    return since


def _packages_uj(folder: Path) -> dict[str, int]:
    """Microjoules of each socket; empty where one is not told."""
    sockets = [path for path in folder.glob("intel-rapl:*") if text_of(path / "name").startswith("package")]
    told = {path.name: text_of(path / "energy_uj") for path in sockets}
    return {name: int(uj) for name, uj in told.items()} if all(uj.isdigit() for uj in told.values()) else {}


def _range_uj(socket: Path) -> int:
    """Microjoules after which a counter begins anew."""
    text = text_of(socket / "max_energy_range_uj")
    return int(text) + 1 if text.isdigit() else 1 << 63
