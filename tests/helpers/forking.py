"""Command lines as processes of their own, forked from one that has done their imports: most of each is importing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PARENT = """
import gc, json, os, sys
import pandas, torch._dynamo
import benchsuite.results.report.markdown, benchsuite.workloads.workload
from benchsuite.cli import report, sweep
from benchsuite.cli.app import main

gc.freeze()  # else each would go through all that is imported as it ends
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        print(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]), flush=True)
        continue
    if child := os.fork():
        print(child, flush=True)
        continue
    os.setsid()
    for descriptor, path, how in ((0, os.devnull, 0), (1, asked["out"], os.O_WRONLY), (2, asked["err"], os.O_WRONLY)):
        os.dup2(os.open(path, how | os.O_CREAT, 0o644), descriptor)
    os.environ.clear()
    os.environ |= asked["env"]
    os.chdir(asked["cwd"])
    sys.path[:0] = [path for path in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv[1:] = asked["words"]
    main()
    break
"""


class Forked:
    """One of them, in a session of its own: `communicate` before the test ends, or it is killed."""

    def __init__(self, parent: "Parent", pid: int, out: Path, err: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent, self._out, self._err = parent, out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self) -> tuple[str, str]:
        """Wait for its end: what it wrote."""
        if self.returncode is None:
            self.returncode = self._parent.ask(self.pid)
        return self._out.read_text(), self._err.read_text()


class Parent:
    """The process that forks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process, self._made = process, list[Forked]()

    def ask(self, what: object) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(what)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, words: list[str], env: Mapping[str, str], folder: Path) -> Forked:
        """A command line in a folder, where its output is kept."""
        out, err = (folder / f"{name}-{len(self._made)}" for name in ("stdout", "stderr"))
        pid = self.ask({"words": words, "env": dict(env), "cwd": str(folder), "out": str(out), "err": str(err)})
        self._made.append(Forked(self, pid, out, err))
        return self._made[-1]

    def end(self) -> None:
        for made in self._made:
            if made.returncode is None:
                os.killpg(made.pid, signal.SIGKILL)
                made.communicate()


@contextmanager
def forking() -> Iterator[Parent]:
    """For all tests of a module."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PARENT], **pipes) as process:  # type: ignore[call-overload]
        parent = Parent(process)
        try:
            yield parent
        finally:
            parent.end()
