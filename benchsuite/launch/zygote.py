"""The zygote: a process that has torch imported, forks the ranks of a trial and watches them.

It touches no CUDA and starts no thread pool: a fork taken after either hangs or fails in its children. Requests
and replies are JSON lines on stdin and stdout; when stdin closes, everything is killed and the zygote ends.
"""

import ctypes
import faulthandler
import gc
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch
import torch.distributed
import torch.utils.data
import webdataset.tariterators  # noqa: F401  (imported once here instead of in every reader)

import storage
import workloads
from benchsuite.failure import failed_result
from benchsuite.ranks import RankIdentity
from benchsuite.spec import TrialSpec
from benchsuite.staging import copies_folder, remove_left
from storage.format import DatasetError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Schedulers signal every process of a job: the zygote leaves it to the sweep to end the trial."""
PEERS_GRACE_S = 0.2
"""After a rank has failed, how long the others may take to fail of themselves and say why."""
MAX_POLL_S = 3600.0
REAP_PAUSE_S = 0.002
STACKS_GRACE_S = 0.3
"""After a time-out, how long ranks may take to write where they hang."""
MAX_TEMPORARY_LENGTH = 50
"""Unix sockets have names of at most 107 bytes, and loader workers add 50 to the temporary folder's."""
_libc = ctypes.CDLL(None, use_errno=True)


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since it started; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds of everyone on the cores this process may use, and of this process's ended children."""

    everyone_s: float
    children_s: float
    at_s: float

    @classmethod
    def now(cls) -> "CpuUse":
        """Read the counters."""
        per_core = psutil.cpu_times(percpu=True)
        mine = [per_core[core] for core in os.sched_getaffinity(0) if core < len(per_core)]
        busy = sum(sum(core) - core.idle - getattr(core, "iowait", 0.0) - core.guest - core.guest_nice for core in mine)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(busy, children.ru_utime + children.ru_stime, time.monotonic())

    def foreign_cores(self, later: "CpuUse") -> float:
        """Cores that others kept busy between two readings."""
        others = (later.everyone_s - self.everyone_s) - (later.children_s - self.children_s)
        return max(0.0, others / (later.at_s - self.at_s))


class Control:
    """The pipe to the launcher: requests in, replies out."""

    def __init__(self) -> None:
        self.inbox = os.dup(0)
        self.outbox = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        self._buffer = b""

    def receive(self) -> dict[str, Any] | None:
        """The next request; None when the launcher is gone."""
        while b"\n" not in self._buffer:
            chunk = os.read(self.inbox, 65536)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        value: dict[str, Any] = json.loads(line)
        return value

    def send(self, message: dict[str, Any]) -> None:
        """Reply; a launcher that is gone is noticed by the next receive."""
        try:
            os.write(self.outbox, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            return

    def close_in_child(self) -> None:
        """Ranks must not hold the pipe open."""
        os.close(self.inbox)
        os.close(self.outbox)


def rank_main(request: dict[str, Any], me: RankIdentity, control: Control, zygote: int) -> NoReturn:
    """A forked rank: run, leave the result, and exit without unwinding (torch's groups may hang in destructors)."""
    keep: list[object] = []
    try:
        _become_rank(request, me, control, zygote)
        spec = TrialSpec.model_validate_json(request["spec"])
        dataset = Path(request["dataset"]) if request["dataset"] else None
        pkgutil.resolve_name(request["task"])(spec, dataset, me, keep).write(me.result_path)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        os._exit(0)
    except BaseException as error:  # the traceback keeps what must not be destroyed
        try:
            failed_result(me.rank, error).write(me.result_path)
            traceback.print_exception(error)
            sys.stderr.flush()
        finally:
            os._exit(1)


def _become_rank(request: dict[str, Any], me: RankIdentity, control: Control, zygote: int) -> None:
    """What a fresh fork of the zygote does first: signals, descriptors, log, environment."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    control.close_in_child()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(1)
    log = os.open(me.log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ["TMPDIR"] = tempfile.tempdir = request["scratch"]
    os.environ |= {"RANK": str(me.rank), "WORLD_SIZE": str(me.world_size), "LOCAL_RANK": str(me.local_rank)}


def fork_ranks(request: dict[str, Any], control: Control) -> list[int]:
    """Fork every rank into one process group; their pids."""
    world_size = int(request["world_size"])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.set_inheritable(True)
    pids: list[int] = []
    zygote = os.getpid()
    staging_dir = copies_folder(TrialSpec.model_validate_json(request["spec"]))  # ranks get a TMPDIR of their own
    for rank in range(world_size):
        me = RankIdentity(
            rank, world_size, rank, Path(request["folder"]), request["launched_s"], port, listener.fileno(), staging_dir
        )
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, pids[0] if pids else 0)
            rank_main(request, me, control, zygote)
        pids.append(pid)
        with suppress(OSError):  # the child has done it already, or has ended
            os.setpgid(pid, pids[0])
    listener.close()
    return pids


def peek_exit(pid: int) -> tuple[int | None, int | None] | None:
    """Exit code or signal of an ended child, left unreaped; None while it runs."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return (info.si_status, None) if info.si_code == os.CLD_EXITED else (None, info.si_status)


def watch(pids: list[int], deadline_s: float, control: Control) -> tuple[dict[int, Any], str | None]:
    """Wait for the ranks: how each ended of itself, and why the wait ended early (`timeout`, or `gone` launcher)."""
    poller = select.poll()
    poller.register(control.inbox, select.POLLIN | select.POLLHUP)
    descriptors = {os.pidfd_open(pid): rank for rank, pid in enumerate(pids)}
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    exits: dict[int, Any] = {}
    early: str | None = None
    grace_ends = float("inf")
    while len(exits) < len(pids):
        left = min(deadline_s, grace_ends) - time.monotonic()
        if left <= 0:
            early = None if grace_ends < deadline_s else "timeout"
            break
        for descriptor, _ in poller.poll(min(left, MAX_POLL_S) * 1000):
            if descriptor == control.inbox:
                early = "gone"
                break
            rank = descriptors[descriptor]
            poller.unregister(descriptor)
            exits[rank] = peek_exit(pids[rank])
            if exits[rank] != (0, None):
                grace_ends = min(grace_ends, time.monotonic() + PEERS_GRACE_S)
        if early:
            break
    for descriptor in descriptors:
        os.close(descriptor)
    return exits, early


def end_all(pids: list[int], dump_stacks: bool) -> None:
    """Kill the ranks' process group and every other descendant, and reap them all."""
    if dump_stacks:
        for pid in pids:
            _signal(os.kill, pid, signal.SIGUSR1)
        time.sleep(STACKS_GRACE_S)
    while True:
        _signal(os.killpg, pids[0], signal.SIGKILL)
        for process in psutil.Process().children(recursive=True):
            _signal(os.kill, process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(REAP_PAUSE_S)


def _signal(send: Any, target: int, number: int) -> None:
    try:
        send(target, number)
    except ProcessLookupError:
        return


def short_temporary() -> str | None:
    """Where scratch folders go: /tmp where TMPDIR is so long that a worker's socket below it would get no name."""
    return "/tmp" if len(tempfile.gettempdir()) > MAX_TEMPORARY_LENGTH else None


def run_trial(request: dict[str, Any], control: Control) -> bool:
    """Fork, watch, clean up and reply; False when the launcher is gone."""
    kills, before = oom_kills(), CpuUse.now()
    deadline = time.monotonic() + float(request["timeout_s"])
    # Ranks leave without cleaning up, so what they and their workers put into TMPDIR is removed here.
    with tempfile.TemporaryDirectory(
        prefix="benchsuite-", dir=short_temporary(), ignore_cleanup_errors=True
    ) as scratch:
        pids = fork_ranks({**request, "scratch": scratch}, control)
        exits, early = watch(pids, deadline, control)
        end_all(pids, dump_stacks=early == "timeout")
    ended = [{"rank": rank, "code": code, "signal": number} for rank, (code, number) in exits.items()]
    control.send(
        {
            "exits": ended,
            "timed_out": early == "timeout",
            "interrupted": early == "gone",
            "out_of_memory": oom_kills() > kills,
            "foreign_cores": before.foreign_cores(CpuUse.now()),
        }
    )
    remove_left(TrialSpec.model_validate_json(request["spec"]))
    return early != "gone"


def preload() -> None:
    """Import what every rank would import for itself; what is not installed is left to the trials that ask for it."""
    import torch._dynamo  # noqa: F401  (optimizers import it on first use)

    import benchsuite.trial  # noqa: F401  (what ranks run, unless another task is asked for)

    for registry in (storage.FORMATS, storage.LOADERS, storage.KINDS):
        for name in registry:
            with suppress(DatasetError):
                storage.load(registry, name)
    for name in workloads.WORKLOADS:
        workloads.load(workloads.WORKLOADS, name)


def main() -> None:
    """Serve requests until the launcher closes the pipe."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = Control()
    torch.set_num_threads(1)
    preload()
    gc.collect()
    gc.freeze()  # a rank that went through all that is imported would stand still for a quarter of a second
    assert not torch.cuda.is_initialized(), "a fork taken now could not use CUDA"  # type: ignore[no-untyped-call]
    control.send({"ready": True})
    while (request := control.receive()) is not None:
        if not run_trial(request, control):
            return


if __name__ == "__main__":
    main()
