"""Two mounts of one folder that see changes seconds late and hide deleted files that are open, as NFS clients do."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from tests.faults.conftest import PLUGIN

LATE_S = 8
"""Longer than a command takes, so that two see little of each other; tests wait for several of these."""
CLOCK = Path(__file__).parent / "clock"
PROGRAMS = ("bindfs", "faketime")


def missing() -> str | None:
    """Why there can be no late mounts here; None where there can."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed (Debian packages of the same names)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened: FUSE is needed for mounts that are late"
    return None


def shifted(offset: str) -> list[str]:
    """What starts a command whose wall clock is off by so much, such as `+7h`; its monotonic clock is right."""
    path = f"PYTHONPATH={CLOCK}{os.pathsep}{PLUGIN}"
    return ["env", path, "faketime", "--exclude-monotonic", "-f", offset]


OTHER_NODE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""What starts a command in a process namespace of its own: no claim can tell whether a process elsewhere has ended."""


class LateMounts:
    """A folder, and two mounts of it whose kernels keep what they know of names and sizes for `late_s`."""

    def __init__(self, folder: Path, late_s: int = LATE_S) -> None:
        self.late_s = late_s
        self.source, self.first, self.second = folder / "source", folder / "first", folder / "second"
        kept = ",".join(f"{what}_timeout={late_s}" for what in ("attr", "entry", "negative"))
        self._mounted: list[Path] = []
        self.source.mkdir(parents=True)
        try:
            for mount in (self.first, self.second):
                mount.mkdir()
                subprocess.run(["bindfs", "-o", kept, self.source, mount], check=True)
                self._mounted.append(mount)
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Wait until either mount sees what was changed by way of the other."""
        time.sleep(self.late_s + 1)

    def hidden(self) -> list[Path]:
        """What deleted open files have left."""
        return sorted(self.source.rglob(".fuse_hidden*"))

    def close(self) -> None:
        """Take the mounts away, also from processes that still use them."""
        for mount in self._mounted:
            subprocess.run(["umount", "--lazy", mount], check=False)
        self._mounted.clear()
