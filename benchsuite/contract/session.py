"""What a session may be called."""

import re

from benchsuite.contract.errors import UserError

MAX_NAME_LENGTH = 100
"""The most of a sweep's or session's name: files are named after it, host, time and process, in 255 bytes."""


def check_session(session: str) -> str:
    """Session names become parts of ids and paths.

    Raises:
        UserError: it has other characters, or more of them.
    """
    if len(session) > MAX_NAME_LENGTH or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", session):
        raise UserError(f"session {session!r:.120}: allowed: letters, digits and _ . : -, up to {MAX_NAME_LENGTH}")
    return session
