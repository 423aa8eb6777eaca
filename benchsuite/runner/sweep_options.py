"""How a sweep is to be run, besides what its file says."""

from dataclasses import dataclass
from pathlib import Path

from benchsuite.contract.trial_spec import ProfileName
from benchsuite.runner.claims import LEASE_S


@dataclass(frozen=True)
class SweepOptions:
    """What the command line of `benchsuite sweep` asks for."""

    launcher: str = "auto"
    retry: str = ""
    profile: ProfileName | None = None
    until: str | None = None
    lease_s: float = LEASE_S
    order_seed: int | None = None
    lanes: int = 1

    def words(self, file: Path, session: str, store: Path, overrides: list[str]) -> list[str]:
        """The arguments that ask for the same in one lane."""
        asked = {
            "--launcher": self.launcher,
            "--retry": self.retry or None,
            "--profile": self.profile,
            "--until": self.until,
            "--lease": self.lease_s,
            "--order-seed": self.order_seed,
        }
        given = [word for name, value in asked.items() if value is not None for word in (name, str(value))]
        chosen = [word for text in overrides for word in ("-o", text)]
        return ["sweep", str(file), "--session", session, "--store", str(store), *given, *chosen]
