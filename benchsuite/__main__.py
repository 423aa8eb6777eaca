"""Entry point of the `benchsuite` command, and of `python -m benchsuite`: ready for Ctrl-C before much is imported."""

import os
import signal
from types import FrameType

INTERRUPTED, REQUEUE = 130, 75


def _interrupted(number: int, _frame: FrameType | None) -> None:
    """While modules are imported an exception would end in tracebacks of theirs, or in none."""
    by_hand = number == signal.SIGINT
    try:
        os.write(2, b"error: interrupted\n" if by_hand else b"stopped early; nothing was begun\n")
    finally:
        os._exit(INTERRUPTED if by_hand else REQUEUE)


def main() -> None:
    """Import the verbs and run one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _interrupted)
    from benchsuite.cli import app

    app.main()


if __name__ == "__main__":
    main()
