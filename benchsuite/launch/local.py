"""Launcher `local`: ranks on this machine, forked from a zygote that has torch imported."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchsuite.errors import UserError
from benchsuite.launch import Outcome, RankExit
from benchsuite.ranks import Progress, read_progress
from benchsuite.spec import TrialSpec

START_TIMEOUT_S = 120.0
CLEANUP_GRACE_S = 30.0
"""How long after a trial's time-out the zygote may take to end its processes."""
REFRESH_S = 0.2
TRIAL = "benchsuite.trial:run_rank"
PACKAGE_ROOT = Path(__file__).parents[2]


class LocalLauncher:
    """Starts a zygote when first needed, and a new one should it die.

    `task` names what a rank runs: a function like `benchsuite.trial.run_rank`.
    """

    def __init__(self, task: str = TRIAL) -> None:
        self._task = task
        self._zygote: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._buffer = b""
        self._ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the zygote without waiting for it."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the zygote)
        # The package need not be installed: the zygote finds it where this process did, not in the current folder.
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(PACKAGE_ROOT)]))
        environment = {"GOMP_SPINCOUNT": "1000", **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
        self._zygote = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchsuite.launch.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env=environment,
        )
        self._buffer, self._ready = b"", False

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        """Run a trial's ranks; an interrupt ends them all before it is passed on."""
        try:
            self._ensure_ready()
            sent = self._send(
                {
                    "task": self._task,
                    "spec": spec.model_dump_json(),
                    "dataset": str(dataset) if dataset else None,
                    "world_size": spec.ranks,
                    "folder": str(folder),
                    "timeout_s": spec.measure.timeout_s,
                    "launched_s": time.perf_counter(),
                }
            )
            reply = self._await_reply(spec, folder, on_progress) if sent else None
        except TimeoutError:
            self.close()
            return Outcome(timed_out=True)
        except BaseException:
            self.close()
            raise
        if reply is None:
            reason = f"the process that forks ranks ended: {self._last_words()}"
            self.close()
            return Outcome(launcher_error=reason)
        exits = [RankExit(**ended) for ended in reply.pop("exits")]
        return Outcome(exits=exits, **reply)

    def _ensure_ready(self) -> None:
        if self._zygote is not None and self._zygote.poll() is not None:
            self.close()
        if self._zygote is None:
            self.start()
        if not self._ready and self._receive(time.monotonic() + START_TIMEOUT_S) is None:
            raise UserError(f"ranks cannot be started: {self._last_words()}")
        self._ready = True

    def _send(self, message: dict[str, Any]) -> bool:
        """Send a request; False when the zygote is gone."""
        assert self._zygote is not None and self._zygote.stdin is not None
        try:
            self._zygote.stdin.write(json.dumps(message).encode() + b"\n")
            self._zygote.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def _await_reply(
        self, spec: TrialSpec, folder: Path, on_progress: Callable[[Progress], None]
    ) -> dict[str, Any] | None:
        """The zygote's reply; None when it has ended.

        Raises:
            TimeoutError: it has not ended the trial in time.
        """
        deadline = time.monotonic() + spec.measure.timeout_s + CLEANUP_GRACE_S
        while time.monotonic() < deadline:
            reply = self._receive(time.monotonic() + REFRESH_S)
            if reply is not None:
                return reply
            assert self._zygote is not None
            if self._zygote.poll() is not None:
                return None
            progress = read_progress(folder, 0)
            if progress is not None:
                on_progress(progress)
        raise TimeoutError

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """The next reply, or None when there is none by the deadline or the zygote has closed its pipe."""
        assert self._zygote is not None and self._zygote.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._zygote.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(self._zygote.stdout.fileno(), 65536)
                if not chunk:
                    self._zygote.wait()
                    return None
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_words(self) -> str:
        """The last line of the zygote's standard error, and how it ended."""
        assert self._log is not None and self._zygote is not None
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        code = self._zygote.poll()
        ended = "" if code is None else f" (exit status {code})"
        return (lines[-1] if lines else "it said nothing") + ended

    def close(self) -> None:
        """End the zygote and, with it, every process of a running trial."""
        if self._zygote is None:
            return
        for pipe in (self._zygote.stdin, self._zygote.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        try:
            self._zygote.wait(timeout=CLEANUP_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._zygote.pid, signal.SIGKILL)
            self._zygote.wait()
        if self._log is not None:
            self._log.close()
        self._zygote = self._log = None
