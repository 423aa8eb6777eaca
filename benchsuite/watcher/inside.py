"""Looks at a DataLoader's worker from inside it, where Python's frames tell what it computes."""

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import util
from pathlib import Path

from pydantic import TypeAdapter

from benchsuite.contract.rank_samples import Line, Looks
from benchsuite.host.processes import born_s
from benchsuite.storage.dataset.owned_files import read_plain, write_new
from benchsuite.watcher.looks import Looker, Tally

LOOKS = TypeAdapter(Looks)


@dataclass(frozen=True)
class LookInside:
    """What a worker calls when it starts (`worker_init_fn`): it begins to look, and then calls what the user gave."""

    folder: str
    of_user: Callable[[int], object] | None = None

    def __call__(self, worker: int) -> None:
        started_s = time.clock_gettime(time.CLOCK_BOOTTIME) - born_s(os.getpid())
        path = Path(self.folder) / f"{os.getpid()}.json"

        def write(tally: Tally) -> None:
            with suppress(OSError):  # the folder is gone: nobody wants to know any more
                write_new(path, json.dumps(asdict(tally.looks(start_s=[started_s]))))

        looker = Looker(lambda: ("readers", 0), lambda: ((), ()), write)
        looker.start()
        util.Finalize(None, write, (looker.tally,), exitpriority=100)
        if self.of_user is not None:
            self.of_user(worker)


class Inside:
    """The folder in which workers leave what they have seen of themselves."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="benchsuite-looks-")

    def told(self) -> Looks | None:
        """What the workers of all passes have left, added up; None where none has."""
        found = []
        for path in Path(self.folder).glob("*.json"):
            with suppress(OSError, ValueError):
                found.append(LOOKS.validate_json(read_plain(path)))
        return added(found) if found else None

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def added(found: Sequence[Looks]) -> Looks:
    """Looks of several processes as one."""
    lines: dict[tuple[str, str, str], tuple[int, int]] = {}
    for line in (line for looks in found for line in looks.lines):
        key = (line.phase, line.word, line.line)
        looks, steps = lines.get(key, (0, 0))
        lines[key] = (looks + line.looks, steps + line.steps)
    return Looks(
        {},
        dict(sum((Counter(each.readers) for each in found), Counter[str]())),
        {},
        dict(sum((Counter(each.files) for each in found), Counter[str]())),
        [Line(*key, *seen) for key, seen in lines.items()],
        [seconds for each in found for seconds in each.start_s],
    )
