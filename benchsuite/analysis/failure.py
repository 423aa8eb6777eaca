"""Why a trial failed: exceptions and exits turned into a status and a plain reason."""

import signal
from pathlib import Path

_PEER = ("closed by peer", "Connection reset", "NCCL communicator was aborted", "Broken pipe", "recvValue failed")


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
    try:
        lines = [
            line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
    except OSError:
        return None
    return lines[-1] if lines else None


def silent(folder: Path, num_ranks: int) -> str:
    """After a time-out: ranks that did not tell where they hang, while others did; empty where there is none."""
    told = [hanging_at(folder / f"rank-{rank}.log") is not None for rank in range(num_ranks)]
    ranks = [str(rank) for rank, has_told in enumerate(told) if not has_told]
    if not any(told) or not ranks:
        return ""
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
    return f"; {who} gave no sign of life: stopped, or stuck in the kernel"


def hanging_at(log: Path) -> str | None:
    """The innermost frame of the main thread in faulthandler's dump, after a time-out."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    heads = [number for number, line in enumerate(lines) if line.startswith(("Current thread", "Thread 0x"))]
    frames = [lines[number + 1].strip() for number in heads if number + 1 < len(lines)]
    return frames[-1] if frames else None
