"""Why a trial failed, in plain words: exceptions, workers, memory, peers."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._utils import ExceptionWrapper

from benchsuite.analysis.failure import failure, hanging_at, is_peer_failure, last_line, signal_name
from benchsuite.contract.errors import UserError
from benchsuite.contract.failed_rank import failed_result, is_out_of_memory, reason_of
from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.storage.dataset.manifest import DatasetError
from benchsuite.trial.feed import TrialError


def passed_on(error: BaseException) -> BaseException:
    """The exception as torch raises it in the training process when a loader worker had it."""
    try:
        raise error
    except BaseException:
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    try:
        wrapper.reraise()
    except BaseException as arrived:
        return arrived


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DatasetError("/data/a.tar: corrupt tar: bad checksum"), "/data/a.tar: corrupt tar: bad checksum"),
        (TrialError("loss is nan after 3 steps"), "loss is nan after 3 steps"),
        (UserError("give batch_size"), "give batch_size"),
        (ValueError("no"), "ValueError: no"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
        (RuntimeError("\n\n  late start"), "RuntimeError: late start"),
        (RuntimeError(), "RuntimeError"),
        (MemoryError(), "MemoryError"),
        (OSError(5, "Input/output error", "/data/a.jpg"), "OSError: [Errno 5] Input/output error: '/data/a.jpg'"),
    ],
)
def test_reason_of(error: BaseException, reason: str):
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DatasetError("/data/a.jpg: not a whole JPEG"), "/data/a.jpg: not a whole JPEG"),
        (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error"),
        (ValueError("no: really"), "ValueError: no: really"),
        (KeyError("key"), "KeyError: 'key'"),
    ],
)
def test_reason_of_what_a_worker_passed_on(error: BaseException, reason: str):
    assert reason_of(passed_on(error)) == reason


def test_reason_of_a_long_message_that_a_worker_passed_on():
    error = RuntimeError("shape mismatch in sample 3\n  expected (3, 64, 64)\n  got (1, 64, 64)")
    reason = "RuntimeError: shape mismatch in sample 3"
    assert reason_of(error) == reason
    assert reason_of(passed_on(error)) == reason


def test_reason_of_a_raised_error_says_where():
    def forward() -> None:
        raise ArithmeticError("too much")

    with pytest.raises(ArithmeticError) as caught:
        forward()
    line = forward.__code__.co_firstlineno + 1
    assert reason_of(caught.value) == f"ArithmeticError: too much (test_failure.py:{line} in forward)"


def test_a_worker_out_of_memory_is_out_of_memory():
    assert is_out_of_memory(passed_on(MemoryError("no room")))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.OutOfMemoryError("the device refused"),  # its type tells
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("NCCL error: unhandled cuda error, Last error: Failed to CUDA calloc async 608 bytes"),
        type("Ours", (torch.OutOfMemoryError,), {})("the device refused"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: out of memory"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_out_of_memory(error: BaseException):
    assert is_out_of_memory(error)
    assert failed_result(2, error).status == "oom"


def test_the_allocators_own_words_are_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        RuntimeError("shape mismatch"),
        OSError(28, "No space left on device"),
        KeyError("Cannot allocate memory"),
    ],
)
def test_not_out_of_memory(error: BaseException):
    assert not is_out_of_memory(error)
    assert failed_result(2, error).status == "failed"


def test_failed_result():
    result = failed_result(3, DatasetError("/data: gone"))
    assert (result.rank, result.status, result.reason, result.blocks) == (3, "failed", "/data: gone", [])


@pytest.mark.parametrize(
    ("reason", "peer"),
    [
        ("RuntimeError: [gloo/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711", True),
        ("RuntimeError: [..] Read error: Connection reset by peer", True),
        ("DistNetworkError: failed to recv: Broken pipe", True),
        ("/data/a.jpg: not a whole JPEG", False),
        ("RuntimeError: loss is nan", False),
        (None, False),
    ],
)
def test_is_peer_failure(reason: str | None, peer: bool):
    assert is_peer_failure(reason) is peer


def test_signal_name():
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert signal_name(11) == "SIGSEGV"
    assert signal_name(4000) == "signal 4000"


@pytest.mark.parametrize(
    ("text", "line"),
    [("one\ntwo\n\n", "two"), ("  one  ", "one"), ("", None), ("\n \n", None)],
)
def test_last_line(tmp_path: Path, text: str, line: str | None):
    (tmp_path / "rank-0.log").write_text(text)
    assert last_line(tmp_path / "rank-0.log") == line


def test_last_line_of_no_log_and_of_bytes(tmp_path: Path):
    assert last_line(tmp_path / "rank-0.log") is None
    (tmp_path / "rank-0.log").write_bytes(b"fine\n\xff\xfe broken")
    assert str(last_line(tmp_path / "rank-0.log")).endswith("broken")


def test_hanging_at_is_the_innermost_frame_of_the_main_thread(tmp_path: Path):
    (tmp_path / "rank-0.log").write_text(
        "some warning\n"
        "Thread 0x00007f01 (most recent call first):\n"
        '  File "/lib/threading.py", line 300 in wait\n'
        "\n"
        "Current thread 0x00007f02 (most recent call first):\n"
        '  File "/lib/socket.py", line 10 in recv\n'
        '  File "/code/trial.py", line 20 in run\n'
    )
    assert hanging_at(tmp_path / "rank-0.log") == 'File "/lib/socket.py", line 10 in recv'


@pytest.mark.parametrize("text", ["", "no dump here\n", "Current thread 0x1 (most recent call first):"])
def test_hanging_at_nowhere(tmp_path: Path, text: str):
    assert hanging_at(tmp_path / "none.log") is None
    (tmp_path / "rank-0.log").write_text(text)
    assert hanging_at(tmp_path / "rank-0.log") is None


def test_reasons_are_one_line():
    errors: list[Any] = [RuntimeError("a\nb"), ValueError("x\r\ny"), DatasetError("p\nq")]
    assert all(len(reason_of(error).splitlines()) == 1 for error in errors)


def test_a_rank_that_cannot_start_threads_names_the_limit(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("OpenBLAS blas_thread_init: pthread_create failed for thread 1\nend\n")
    ended = Outcome(exits=[RankExit(0, 1, None)], timed_out=False, out_of_memory=False)
    status, reason = failure(ended, [None], tmp_path)
    assert status == "failed" and reason.startswith("rank 0, before it started: exit status 1: end: no more processes")
    assert "raise `ulimit -u`" in reason
