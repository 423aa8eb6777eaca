"""`benchsuite run -- COMMAND`: start a training of anyone's, measure it from within, and say what holds it back.

The command keeps its standard streams, its signals and its exit code. Its processes write what they measure into a
folder of the store (`benchsuite.inside.job`), and this process reads it.
"""

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from benchsuite.contract.errors import UserError
from benchsuite.watcher.run_folder import Options, Run, say

FORWARDED = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGINT,
    signal.SIGCONT,
)
ENDING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT})
WAKES_S = 60.0
FIRST_LOOK_S = 2.0
"""How often is looked for the first counted steps."""
LAST_WORDS_S = 0.5
"""How long ranks that were told to end may take to write what they have measured, before the answer is printed."""


def run(command: Sequence[str], options: Options) -> int:
    """Run a command and measure what it trains; its exit code, negative where a signal has ended it.

    Raises:
        UserError: the command cannot be started.
    """
    run, reader, writer = Run(options), *os.pipe()
    os.set_blocking(writer, False)
    with _signals_into(writer):
        try:
            child = subprocess.Popen(command, env=run.environment())
        except OSError as error:
            run.remove()
            raise UserError(f"{command[0]}: cannot be started: {error.strerror}") from error
        try:
            code = _follow(run, child, reader)
        finally:
            run.remove()
    return code


def _follow(run: Run, child: subprocess.Popen[bytes], signals: int) -> int:
    """Wait for the command, pass signals on to it, and say how it goes."""
    from benchsuite.watcher.run_answers import Answers  # takes a third of a second, for which the command need not wait

    answers, every_s, ended = Answers(run), run.options.every_s, os.pidfd_open(child.pid)
    due_s = time.monotonic() + min(FIRST_LOOK_S, every_s)
    answer_at_s = math.inf
    while True:
        ready, _, _ = select.select(
            [ended, signals], [], [], min(WAKES_S, max(0.0, min(due_s, answer_at_s) - time.monotonic()))
        )
        for number in os.read(signals, 64) if signals in ready else b"":
            _pass_on(child, number)
            if number in ENDING:
                run.ended_by, answer_at_s = signal.Signals(number).name, time.monotonic() + LAST_WORDS_S
        if ended in ready:
            break
        now_s = time.monotonic()
        if now_s >= answer_at_s:
            _safely(answers.conclude, None)
            answer_at_s = math.inf
        if now_s >= due_s and run.ended_by is None:
            run.show_life()
            due_s = now_s + (every_s if _safely(answers.say_how_it_goes) else min(FIRST_LOOK_S, every_s))
        elif now_s >= due_s:
            due_s = math.inf
    os.close(ended)
    code = child.wait()
    _safely(answers.conclude, code)
    return code


def _safely(do: Callable[..., Any], *arguments: object) -> Any:
    """Do something of ours; what goes wrong is a line: the job that runs is not ours."""
    try:
        return do(*arguments)
    except Exception as error:
        say(f"warning: benchsuite run: {type(error).__name__}: {error}")
        return None


def _pass_on(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal on, unless the terminal has sent it to the command as well."""
    if not (number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP) and _is_of_terminal()):
        with suppress(ProcessLookupError):
            child.send_signal(number)


def _is_of_terminal() -> bool:
    """Whether this process and its command are what a terminal's keys are for."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


@contextmanager
def _signals_into(writer: int) -> Iterator[None]:
    """Let the numbers of signals come through a pipe; those that were ignored stay so, here and in the command."""
    heeded = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in heeded}
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


def end_as(code: int) -> int:
    """End this process as the command has ended: by the same signal, or with its exit code."""
    if code < 0:
        with suppress(OSError):  # of SIGKILL nothing can be said
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
