"""Names of objects: `s3://bucket/key` as a path whose parts, parents and joins are those of any other.

What takes it for a file of this machine is refused by the system call it wanted to make, so that nothing makes a
folder named `s3:`.
"""

import errno
import re
from pathlib import Path, PosixPath

SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
MAX_KEY_BYTES = 1024
"""The limit of S3 (Amazon S3 User Guide, "Naming Amazon S3 objects")."""


class ObjectPath(PosixPath):
    """An object, or what its key begins with: made by `object_path`."""

    def __str__(self) -> str:
        said = super().__str__()
        return f"s3:/{said}" if self.is_absolute() else said  # what lies below a prefix is a name like any other

    def __fspath__(self) -> str:
        raise OSError(errno.EOPNOTSUPP, "an object of a bucket, where a file of this machine is needed", str(self))

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.parts[1]

    @property
    def key(self) -> str:
        """The object's name in its bucket."""
        return "/".join(self.parts[2:])


def object_path(text: str) -> ObjectPath:
    """Return what `s3://bucket/prefix` names.

    Raises:
        ValueError: no bucket's name stands there, or a key that no object can have. What was given is not repeated
            where it may hold credentials.
    """
    rest = text[len(SCHEME) :]
    bucket, _, key = rest.partition("/")
    if "@" in bucket:
        raise ValueError("s3://...@...: a URL with credentials; give s3://bucket/prefix, and them in AWS_ variables")
    if not text.lower().startswith(SCHEME) or not _BUCKET.fullmatch(bucket):
        rule = "3 to 63 characters: letters, digits, dots, hyphens, underscores; a letter or digit first"
        raise ValueError(f"{text}: {bucket!r} is no name of a bucket (it has {rule}); give s3://bucket/prefix")
    if "\0" in key or ".." in key.split("/"):
        raise ValueError(f"{text!r}: not a key of an object: no part of it may be `..` or hold a zero byte")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"{text[:40]}...: a key of {len(key.encode()):,} bytes; allowed: up to {MAX_KEY_BYTES:,}")
    return ObjectPath(f"/{bucket}/{key}")


def path_of(text: str) -> Path:
    """Return a path of this machine, or an `ObjectPath` where the text begins with `s3://`."""
    return object_path(text) if text.lower().startswith(SCHEME) else Path(text)
