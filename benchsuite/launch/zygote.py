"""The zygote: a process on a node that has torch imported, forks the node's ranks of a trial and watches them.

It touches no CUDA and starts no thread pool: a fork taken after either hangs or fails in its children. Requests
and replies are messages over its link to the launcher; when that breaks, everything is killed and the zygote ends.
"""

import ctypes
import faulthandler
import gc
import os
import pkgutil
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed
import torch.utils.data
import webdataset.tariterators  # noqa: F401  (imported once here instead of in every reader)

from benchsuite import storage, workloads
from benchsuite.contract.failed_rank import leave_failed
from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.scratch import scratch
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host import device_samples
from benchsuite.host.interference import Guard
from benchsuite.host.load import moment
from benchsuite.host.staged_copies import copies_folder, remove_left
from benchsuite.inside.processes import children
from benchsuite.launch.agents import TRIAL
from benchsuite.launch.allocation import task
from benchsuite.launch.answers import VISIBLE_S
from benchsuite.launch.link import Link
from benchsuite.launch.node import CpuUse, about_this_node, node_name, oom_kills
from benchsuite.launch.rendezvous import VARIABLE, Invitation, answer, interface_of, interfaces_in, read_invitation
from benchsuite.storage.dataset.local_path import is_folder
from benchsuite.storage.dataset.manifest import DatasetError
from benchsuite.storage.objects.path import path_of

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Schedulers signal every process of a job: the zygote leaves it to the sweep to end the trial."""
RANKS_GRACE_S = 0.2
"""How long the others, after a rank has failed, may take to fail of themselves and say why."""
MAX_POLL_S = 3600.0
MEET_PAUSE_S = 0.1
MEET_S = 120.0
"""How long an agent tries to reach its launcher."""
REAP_PAUSE_S = 0.002
STACKS_GRACE_S = 0.3
"""How long ranks that are to be ended may take to write where they are."""
MAX_TEMPORARY_LENGTH = 50
"""Unix sockets have names of at most 107 bytes, and loader workers add 50 to the temporary folder's."""
DEVICES_FILE = "device-samples.jsonl"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Agent:
    """This process's link to its launcher, and the port at which ranks meet should the first one be forked here."""

    link: Link
    everywhere: bool
    """Whether ranks of other nodes may come, too."""
    listener: socket.socket = field(init=False)
    guard: Guard = field(default_factory=Guard)
    """Looks at this node, where the sweep is on another."""

    def __post_init__(self) -> None:
        self.listen()

    def listen(self) -> None:
        """Take a new port."""
        self.listener = socket.create_server(("" if self.everywhere else "127.0.0.1", 0), backlog=1024)

    @property
    def port(self) -> int:
        """The port taken."""
        return int(self.listener.getsockname()[1])


def rank_main(request: dict[str, Any], me: RankIdentity, agent: Agent, zygote: int) -> NoReturn:
    """A forked rank: run, leave the result, and exit without unwinding (torch's groups may hang in destructors)."""
    keep: list[object] = []
    try:
        _become_rank(request, me, agent, zygote)
        spec = TrialSpec.model_validate_json(request["spec"])
        dataset = path_of(request["dataset"]) if request["dataset"] else None
        me.leave(pkgutil.resolve_name(request["task"])(spec, dataset, me, keep))
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        os._exit(0)
    except BaseException as error:  # the traceback keeps what must not be destroyed
        try:
            leave_failed(me, error)
            traceback.print_exception(error)
            sys.stderr.flush()
        finally:
            os._exit(1)


def _become_rank(request: dict[str, Any], me: RankIdentity, agent: Agent, zygote: int) -> None:
    """What a fresh fork of the zygote does first: signals, descriptors, log, environment."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    agent.link.close()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(1)
    log = os.open(me.log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["TMPDIR"] = tempfile.tempdir = request["scratch"]
    os.environ |= environment_of(me, os.environ)


def environment_of(me: RankIdentity, given: Mapping[str, str]) -> dict[str, str]:
    """What a rank's environment says of it, and of its network and reports where nobody has said it."""
    own = {"RANK": str(me.rank), "WORLD_SIZE": str(me.world_size), "LOCAL_RANK": str(me.local_rank)}
    own |= {"MASTER_ADDR": me.master_addr, "MASTER_PORT": str(me.master_port)}
    usual = {  # NCCL's flight recorder: which collectives were under way when one was not joined in time
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(me.folder / "nccl-collectives-"),
    }
    if me.interface:
        usual["GLOO_SOCKET_IFNAME"] = me.interface
    if me.interfaces:  # else NCCL looks for itself: it would take one network alone where several were there
        usual["NCCL_SOCKET_IFNAME"] = f"={','.join(me.interfaces)}"  # prefixes without `=`
    return own | {name: value for name, value in usual.items() if name not in given}


def fork_ranks(request: dict[str, Any], agent: Agent) -> list[int]:
    """Fork this node's ranks into one process group; their pids."""
    pids: list[int] = []
    zygote = os.getpid()
    spec = TrialSpec.model_validate_json(request["spec"])
    share = replace(
        RankIdentity(**request["first"] | {"folder": Path(request["first"]["folder"])}),
        listen_fd=agent.listener.fileno(),
        staging_dir=copies_folder(spec),  # ranks get a TMPDIR of their own
        temporary=None if agent.everywhere else Path(tempfile.gettempdir()),
        interface=interface_of(request["first"]["address"]) if request["first"]["address"] else None,
        interfaces=tuple(interfaces_in(request["networks"])),
    )
    for number in range(request["num_ranks"]):
        me = share.next(number)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, pids[0] if pids else 0)
            rank_main(request, me, agent, zygote)
        pids.append(pid)
        with suppress(OSError):  # the child has done it already, or has ended
            os.setpgid(pid, pids[0])
    agent.listener.close()
    agent.listen()
    return pids


def watch_devices(device_ids: list[str], out: Path, agent: Agent) -> None:
    """Fork a process that reads devices beside the ranks and writes to `out`, until `end_all` kills it; none without.

    It begins after the ranks, which do not inherit what NVML holds.
    """
    if not device_ids or os.fork():
        return
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        agent.link.close()
        agent.listener.close()
        device_samples.record(device_ids, out)
    finally:
        os._exit(1)


def peek_exit(pid: int) -> tuple[int | None, int | None] | None:
    """Exit code or signal of an ended child, left unreaped; None while it runs."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return (info.si_status, None) if info.si_code == os.CLD_EXITED else (None, info.si_status)


def watch(pids: list[int], deadline_s: float, link: Link) -> tuple[dict[int, Any], str | None]:
    """Wait for the ranks: how each ended of itself, and why the wait ended early.

    Early: at its `timeout`; by the launcher's `end`, as ranks of another node have failed, or its `quit`; or it is
    `gone`.
    """
    poller = select.poll()
    poller.register(link, select.POLLIN | select.POLLHUP)
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
        if link.pending:  # it came with the request
            early = _said(link.receive())
            break
        for descriptor, _ in poller.poll(min(left, MAX_POLL_S) * 1000):
            if descriptor == link.fileno():
                early = _said(link.receive())
                break
            rank = descriptors[descriptor]
            poller.unregister(descriptor)
            exits[rank] = peek_exit(pids[rank])
            if exits[rank] != (0, None):
                grace_ends = min(grace_ends, time.monotonic() + RANKS_GRACE_S)
        if early:
            break
    for descriptor in descriptors:
        os.close(descriptor)
    return exits, early


def _said(message: dict[str, Any] | None) -> str:
    """What a launcher's message amounts to for ranks that run."""
    if message is None:
        return "gone"
    return "quit" if "quit" in message else "end"


def end_all(pids: list[int], dump_stacks: bool) -> None:
    """Kill the ranks' process group and every other descendant, and reap them all."""
    if dump_stacks:
        for pid in pids:
            _signal(os.kill, pid, signal.SIGUSR1)
        time.sleep(STACKS_GRACE_S)
    while True:
        _signal(os.killpg, pids[0], signal.SIGKILL)
        for pid in children(os.getpid()):
            _signal(os.kill, pid, signal.SIGKILL)
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


def short_temporary() -> Path | None:
    """Where scratch folders go: /tmp where TMPDIR is so long that a worker's socket below it would get no name."""
    return Path("/tmp") if len(tempfile.gettempdir()) > MAX_TEMPORARY_LENGTH else None


def run_trial(request: dict[str, Any], agent: Agent) -> bool:
    """Fork, watch, clean up and reply; False when the launcher wants this agent no more."""
    folder = Path(request["first"]["folder"])
    if not _is_seen(folder, VISIBLE_S if agent.everywhere else 0.0):
        agent.link.send({"error": f"node {node_name()} does not see {folder}: all nodes must see the store"})
        return True
    then = moment() if request["look"] else {}
    if request["look"]:
        agent.guard.before("cuda" in TrialSpec.model_validate_json(request["spec"]).device)
    kills, before = oom_kills(), CpuUse.now()
    deadline = time.monotonic() + float(request["timeout_s"])
    # Ranks leave without cleaning up, so what they and their workers put into TMPDIR is removed here.
    with scratch(short_temporary()) as temporary:
        pids = fork_ranks({**request, "scratch": str(temporary)}, agent)
        watch_devices(request["devices"], temporary / DEVICES_FILE, agent)
        exits, early = watch(pids, deadline, agent.link)
        failed = any(ended != (0, None) for ended in exits.values())
        end_all(pids, dump_stacks=early in ("timeout", "end") or (failed and len(exits) < len(pids)))
        ahead_s = request["first"]["clock_offset_s"]
        devices = device_samples.recorded(request["devices"], temporary / DEVICES_FILE, ahead_s)
    first = request["first"]["rank"]
    _, found = agent.guard.after() if request["look"] else ({}, [])
    remove_left(TrialSpec.model_validate_json(request["spec"]))
    agent.link.send(
        {
            "exits": [{"rank": first + at, "code": code, "signal": number} for at, (code, number) in exits.items()],
            "timed_out": early == "timeout",
            "out_of_memory": oom_kills() > kills,
            **before.until(CpuUse.now()),
            "port": agent.port,
            "found": found,
            "moment": then,
            "devices": devices,
        }
    )
    return early != "quit"


def _is_seen(folder: Path, within_s: float) -> bool:
    """Whether this node sees a folder that another has just made: network file systems may take a moment."""
    deadline = time.monotonic() + within_s
    while not is_folder(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(MEET_PAUSE_S)
    return True


def preload() -> None:
    """Import what every rank would import for itself; what is not installed is left to the trials that ask for it."""
    import torch._dynamo  # noqa: F401  (optimizers import it on first use)

    import_module(TRIAL.partition(":")[0])  # by name: this room knows nothing of trials
    for registry in (storage.FORMATS, storage.LOADERS, storage.KINDS):
        for name in registry:
            with suppress(DatasetError):
                storage.load(registry, name)
    for name in workloads.WORKLOADS:
        workloads.load(workloads.WORKLOADS, name)


def meet(again: bool) -> tuple[Link, bool] | None:
    """The link to the launcher, and whether that may be on another node; None where there is no launcher any more.

    A launcher that started this process itself has passed a socket. Others leave an invitation in the environment, or
    the name of a file that holds it as long as they want agents.
    """
    if len(sys.argv) > 1:
        return None if again else (Link(socket.socket(fileno=int(sys.argv[1]))), False)
    where = os.environ[VARIABLE]
    if again and not where.startswith("/"):
        return None
    deadline, invitation = time.monotonic() + MEET_S, None
    while time.monotonic() < deadline:
        invitation = read_invitation(Path(where)) if where.startswith("/") else Invitation.parse(where)
        if invitation is not None and (link := answer(invitation)) is not None:
            return link, True
        if again and invitation is None:
            return None
        time.sleep(MEET_PAUSE_S)
    raise ConnectionError(f"no launcher can be reached by {invitation or where}")  # without its token


def introduction(elsewhere: bool) -> dict[str, Any]:
    """What the launcher has to know of this agent; one that forked it knows its code already."""
    mine = task() if elsewhere else None
    return {**about_this_node(elsewhere), "task": mine.rank if mine else 0}


def serve(link: Link, elsewhere: bool) -> bool:
    """Answer a launcher until it is gone; whether there may be another, which it has not said there is not."""
    agent = Agent(link, everywhere=elsewhere)
    link.send({**introduction(elsewhere), "port": agent.port})
    wanted = True
    while wanted and (request := link.receive()) is not None:
        wanted = "quit" not in request
        if "ping" in request:
            link.send({"pong": time.perf_counter(), "ping": request["ping"]})
        elif "spec" in request:
            wanted = run_trial(request, agent)
    agent.listener.close()
    link.close()
    return wanted


def main() -> None:
    """Serve launchers as long as there is one."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    torch.set_num_threads(1)
    preload()
    gc.collect()
    gc.freeze()  # a rank that went through all that is imported would stand still for a quarter of a second
    assert not torch.cuda.is_initialized(), "a fork taken now could not use CUDA"  # type: ignore[no-untyped-call]
    again = False
    while (met := meet(again)) is not None and serve(*met):
        again = True


if __name__ == "__main__":
    main()
