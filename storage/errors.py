"""What is wrong with a dataset, or with what was asked of it; and how libraries' errors become that."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

OUTAGES = (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT)
"""What the system says of a file system that does not answer for now: its server, its network or its disk is gone."""


class DatasetError(ValueError):
    """Something about a dataset that its user can mend: said in one line."""

    may_skip = False
    """Whether it is about samples that a conversion may leave out and go on."""


class NoDatasetError(DatasetError):
    """There is no dataset in a folder, or no such folder."""


GONE_DATASET = "the dataset was there when the trial was planned, and is gone"
"""What is said of one that was removed meanwhile, or whose file system was unmounted."""


def reason(error: BaseException) -> str:
    """Return what an error says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"  # its first argument is the name of the encoding
    said = str(error.args[0] if error.args else "").strip().partition("\n")[0]
    return said or type(error).__name__


@contextmanager
def told(where: object, *errors: type[BaseException]) -> Iterator[None]:
    """Turn errors of a library, those of the system by default, into one that names the place.

    Not to be held across a `yield`.
    """
    caught = errors or (OSError,)
    try:
        yield
    except DatasetError:
        raise
    except caught as error:
        raise DatasetError(f"{where}: {reason(error)}") from error


@contextmanager
def told_by_file(folder: object) -> Iterator[None]:
    """Turn what the system refuses into an error that names the file, or the folder where none is known."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{error.filename or folder}: {error.strerror or error}") from error
