"""The result of a rank that ended with an exception: its status, and its reason in one line."""

import errno
import os
import re
import traceback
from pathlib import Path

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.inside.samples import RankSamples

_OUT_OF_MEMORY = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "unable to find an engine",  # cuDNN's, where no algorithm's workspace fits
    "Unable to find a valid cuDNN algorithm",
    "Failed to CUDA calloc",  # NCCL's
)

SHARED_MEMORY = "/dev/shm"

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b(:|$)")
"""The line of a traceback that names the exception."""


def reason_of(error: BaseException) -> str:
    """An exception in one line; those that loader workers pass on arrive with a traceback before them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if text.startswith("Caught "):
        raised = [line for line in str(error).splitlines() if _RAISED.match(line)]
        kind, _, message = (raised[-1] if raised else lines[-1]).partition(": ")
        return message if kind.endswith("DatasetError") else f"{kind}: {message}".rstrip(": ")
    kind = type(error).__name__
    if is_plain(error):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{kind}: {text}".rstrip(": ") + _full_place(error) + where


def _full_place(error: BaseException) -> str:
    """Say that shared memory is full, where an exception says that something is: semaphores of workers lie there."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC or error.filename is not None:
        return ""
    try:
        return f": {SHARED_MEMORY} is full" if not os.statvfs(SHARED_MEMORY).f_bavail else ""
    except OSError:
        return ""


def is_plain(error: BaseException) -> bool:
    """Whether an exception is a sentence for users, which needs no place in the code."""
    return type(error).__name__ in ("DatasetError", "TrialError", "UserError", "WorkloadError")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on the host or on a device."""
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True  # torch's is told by its name, as the process of a sweep imports no torch
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def failed_result(rank: int, error: BaseException) -> RankSamples:
    """The result of a rank that ended with an exception."""
    status = "oom" if is_out_of_memory(error) else "failed"
    return RankSamples(rank, status, reason=reason_of(error))


def leave_failed(me: RankIdentity, error: BaseException) -> None:
    """Write the result of a rank that ended with an exception, unless what it measured lies there already."""
    if not me.has_left_result:
        me.leave(failed_result(me.rank, error))
