"""Entry point of the `benchsuite` command, and of `python -m benchsuite`: ready for Ctrl-C before much is imported."""

import os
import signal
from types import FrameType

INTERRUPTED = 130


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """While modules are imported an exception would end in tracebacks of theirs, or in none."""
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def main() -> None:
    """Import the verbs and run one."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from benchsuite import cli

    cli.main()


if __name__ == "__main__":
    main()
