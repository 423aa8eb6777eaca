"""Why a trial failed: exits, exceptions and logs of its ranks turned into a status and a plain reason."""

import signal
from collections.abc import Sequence
from pathlib import Path

from benchsuite.contract.errors import MORE_PROCESSES, lacks_processes
from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import read_progress
from benchsuite.inside.samples import RankSamples
from benchsuite.results.store.record import Status
from benchsuite.storage.dataset.local_path import is_folder

_RANKED = ("oom", "signal", "failed", "exit", "hang", "peer")
"""Causes of a trial's failure, most telling first: survivors of another rank's end report that end."""
_HANG = ("Timed out waiting", "Watchdog caught collective operation timeout", "Wait timeout", "wait timeout after")
"""How gloo, NCCL and torch's store say that other ranks did not come to a collective in time."""
LAST_WORDS_BYTES = 1 << 20
_PEER = (
    "closed by peer",
    "Connection reset",
    "ncclRemoteError",
    "NCCL communicator was aborted",
    "Broken pipe",
    "recvValue failed",
)


def failure(outcome: Outcome, results: list[RankSamples | None], folder: Path) -> tuple[Status, str]:
    """Status and reason of an attempt that did not finish: the most telling cause of all ranks."""
    where = _where(folder)
    if outcome.interrupted:
        return "interrupted", f"interrupted {where}"
    if not is_folder(folder):
        return "failed", "its work folder was removed while it ran, as where a store is purged"
    if outcome.launcher_error is not None:
        told = f": {MORE_PROCESSES}" if lacks_processes(outcome.launcher_error) else ""
        return "failed", f"{outcome.launcher_error}{told}"
    if outcome.timed_out:
        return "timeout", f"killed at its time limit {where}{hung(folder, range(len(results)), len(results))}"
    status, reason = _of_ranks(outcome, results, folder, where)
    said = [reason, *(_last_words(folder / f"rank-{ended.rank}.log") for ended in outcome.exits)]
    return status, f"{reason}: {MORE_PROCESSES}" if any(map(lacks_processes, said)) else reason


def _of_ranks(outcome: Outcome, results: list[RankSamples | None], folder: Path, where: str) -> tuple[Status, str]:
    """The most telling cause of all ranks."""
    causes: list[tuple[int, str]] = []
    for ended in outcome.exits:
        result = results[ended.rank]
        place = f"rank {ended.rank}, {_where(folder, ended.rank)}"
        if ended.signal is not None:
            kind = "oom" if outcome.out_of_memory and ended.signal == signal.SIGKILL else "signal"
            if _says_hang(_last_words(folder / f"rank-{ended.rank}.log")):  # NCCL's watchdog ends its process
                kind = "hang"
            causes.append((_RANKED.index(kind), f"{place}: killed by {signal_name(ended.signal)}"))
        elif result is not None and result.status != "ok":
            kind = "peer" if is_peer_failure(result.reason) else result.status
            kind = "hang" if _says_hang(result.reason or "") else kind
            if outcome.out_of_memory and result.reason is not None and "killed by signal: Killed" in result.reason:
                kind = "oom"
            causes.append((_RANKED.index(kind), f"{place}: {result.reason}"))
        elif ended.code:
            said = last_line(folder / f"rank-{ended.rank}.log")
            kind = "peer" if is_peer_failure(said) else "exit"
            causes.append((_RANKED.index(kind), f"{place}: exit status {ended.code}" + (f": {said}" if said else "")))
    if not causes:
        return "failed", f"ended without a result {where}"
    rank, reason = min(causes)
    if _RANKED[rank] == "hang":
        others = set(range(len(results))) - {ended.rank for ended in outcome.exits}
        return "timeout", f"ranks waited in vain {where}{hung(folder, sorted(others), len(results))}; {reason}"
    if _RANKED[rank] != "oom":
        return "failed", reason
    return "oom", reason if "memory" in reason else f"{reason} (out of memory)"


def _where(folder: Path, rank: int = 0) -> str:
    progress = read_progress(folder, rank)
    if progress is None:
        return "before it started"
    steps = f", step {progress.step} of {progress.total}" if progress.total else ""
    return f"in phase {progress.phase}{steps}"


def is_peer_failure(reason: str | None) -> bool:
    """Whether a rank only noticed that another one was gone."""
    return reason is not None and any(words in reason for words in _PEER)


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(log: Path) -> str | None:
    """The last line that a rank wrote."""
    lines = [line.strip() for line in _last_words(log).splitlines() if line.strip()]
    return lines[-1] if lines else None


def _says_hang(text: str) -> bool:
    return any(words in text for words in _HANG)


def _last_words(log: Path) -> str:
    """The end of what a rank wrote."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_WORDS_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def hung(folder: Path, ranks: Sequence[int], num_ranks: int) -> str:
    """Where one of these ranks was, and which of them could not tell.

    Ranks that wait for another stand in torch: one that stands elsewhere is named first.
    """
    stacks = {rank: hanging_at(folder / f"rank-{rank}.log") for rank in ranks}
    told = [(rank, stack) for rank, stack in stacks.items() if stack is not None]
    if not told and len(ranks) == num_ranks:
        return ""  # nothing is known of any
    at = ""
    if told:
        rank, stack = next(((rank, stack) for rank, stack in told if "/torch/" not in stack), told[0])
        at = f", at {stack}" if num_ranks == 1 else f", rank {rank} at {stack}"
    silent = [str(rank) for rank, stack in stacks.items() if stack is None]
    who = f"; rank{'s' if len(silent) > 1 else ''} {', '.join(silent)} gave no sign of life"
    return at + (f"{who}: stopped, or stuck in the kernel" if silent else "")


def hanging_at(log: Path) -> str | None:
    """The innermost frame of the main thread in faulthandler's dump, after a time-out."""
    lines = _last_words(log).splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith(("Current thread", "Thread 0x"))]
    frames = [lines[number + 1].strip() for number in heads if number + 1 < len(lines)]
    return frames[-1] if frames else None
