"""The client of object stores: one bucket by `obstore`, whose every request goes through `Bucket._asked`.

Endpoint, region and credentials come from where `storage.objects.profile` says, and stay in the library: they stand in
no record, message or command line.

The library's threads do not survive a fork: what forks readers must not have asked for anything itself, and asks by
`storage.objects.apart.apart`.
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import Settings, settings

T = TypeVar("T")
Kind = Literal["get", "get_range", "head", "list", "put", "delete"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_TRIES = 6
"""Tries of one request, the first included."""
FIRST_WAIT_S, MAX_WAIT_S = 0.1, 5.0
"""Waits before the second try, and before later ones at most: twice as long each, a random share of it taken off."""
CONNECT_S, SILENT_S, REQUEST_S = 5, 60, 1800
"""Seconds that a connection, the next bytes and a whole request may take."""
PART_BYTES = 16 << 20
"""An object that is larger is written in parts of so many bytes."""
PARTS_AT_ONCE = 4
DIGEST = "benchsuite-digest"
"""Metadata of written objects: the digest of their content as `storage.dataset.manifest.file_digest` gives it."""
_STATUS, _CODE = re.compile(r"status code: (\d{3})"), re.compile(r"<Code>(\w{1,64})</Code>")
_ROLE = re.compile(r"Error performing \w+ https?://[^/\s]+/latest/(?:api/token|meta-data/)")
"""The library asks where a cloud's machine learns its role: only where no other credentials were found."""
_NO_CREDENTIALS = "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_FAILED = object()
"""Stands in place of what a request found, where it found nothing."""
_user = 0
"""The process whose threads the library has started."""


class ObjectMissing(DatasetError):
    """There is no such object."""


class BucketMissing(ObjectMissing):
    """There is no such bucket."""


class _Short(Exception):
    """A body of another length than its answer promised."""


@dataclass(frozen=True)
class ObjectInfo:
    """What a store says of an object."""

    key: str
    num_bytes: int
    etag: str | None
    digest: str | None = None
    """What its writer said its content's digest is; None where it was not asked for or is not there."""


@dataclass(frozen=True)
class Content:
    """The bytes of an object, or of a part of it, and its etag."""

    data: memoryview
    etag: str | None
    num_bytes: int
    """Bytes of the whole object."""
    first_byte_s: float | None = None
    """Seconds from asking to the answer's beginning."""


@dataclass(frozen=True)
class Request:
    """One request that has ended, with all its tries."""

    kind: Kind
    seconds: float
    retries: int
    failed: bool = False
    num_bytes: int = 0
    """Bytes of the object's content, received or sent."""
    first_byte_s: float | None = None
    """Seconds from the last try to its answer's beginning, of contents that were received."""


watcher: Callable[[Request], None] | None = None
"""Who is told of each request of this process (`storage.observe.requests`)."""


def in_use() -> bool:
    """Whether this process has asked for something, so that no process that it forks can."""
    return _user == os.getpid()


class Bucket:
    """One bucket. Methods may be called by several threads.

    Raises, in all methods:
        DatasetError: what the store refuses, or does not give within `MAX_TRIES` tries; `ObjectMissing` of what is not
            there. The text names the object, the HTTP status and the store's code, nothing else of the answer.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        found = settings(name)
        self._reading = _store(name, found, max_retries=0)  # tried again here, where it is seen
        self._writing = _store(name, found, max_retries=MAX_TRIES - 1)  # by the library, part by part

    def get(self, key: str, etag: str | None = None) -> Content:
        """The whole object; with `etag` only if it still is that one."""
        return self._content("get", key, {}, etag)

    def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> Content:
        """Bytes `start` to `end` of an object, which must have them; with `etag` only if it still is that one."""
        if start == end:
            return Content(memoryview(b""), etag, 0)
        found = self._content("get_range", key, {"range": (start, end)}, etag)
        if len(found.data) != end - start:
            short = end - start - len(found.data)
            raise DatasetError(f"s3://{self.name}/{key}: ends {short} bytes before byte {end}: truncated or changed")
        return found

    def head(self, key: str) -> ObjectInfo:
        """Size, etag and our digest of an object."""
        import obstore

        def ask() -> ObjectInfo:
            found = obstore.get(self._reading, key, options={"head": True})
            meta = found.meta
            return ObjectInfo(key, meta["size"], meta["e_tag"], found.attributes.get(DIGEST))

        return self._asked("head", key, ask)

    def listing(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects below a prefix, whose last part is a whole one, in the order of their keys."""
        import obstore

        pages = iter(obstore.list(self._reading, prefix or None, chunk_size=1000))
        while page := self._asked("list", prefix, lambda: next(pages, [])):
            for meta in page:
                yield ObjectInfo(meta["path"], meta["size"], meta["e_tag"])

    def put(self, key: str, content: bytes | Path | Iterator[bytes], digest: str | None = None) -> None:
        """Write an object that is there whole or not at all; a large one, or one that is still being made, in parts."""
        import obstore

        told = {"attributes": {DIGEST: digest}} if digest else {}
        sizes: list[int] = []

        def parts(made: Iterator[bytes]) -> Iterator[bytes]:
            for part in made:
                sizes.append(len(part))
                yield part

        def ask() -> int:
            sent = parts(content) if isinstance(content, Iterator) else content
            obstore.put(self._writing, key, sent, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE, **_any(told))
            if isinstance(content, Iterator):
                return sum(sizes)
            return content.stat().st_size if isinstance(content, Path) else len(content)

        self._asked("put", key, ask, tries=1)

    def delete(self, keys: list[str]) -> None:
        """Remove objects; one that is not there is no error."""
        import obstore

        self._asked("delete", keys[0] if keys else "", lambda: obstore.delete(self._reading, keys))

    def _content(self, kind: Kind, key: str, options: dict[str, Any], etag: str | None) -> Content:
        import obstore

        wanted = options | ({"if_match": etag} if etag else {})

        def ask() -> Content:
            asked_s = time.perf_counter()
            found = obstore.get(self._reading, key, options=_any(wanted))  # its first bytes are here
            first_byte_s = time.perf_counter() - asked_s
            data, (start, end), meta = memoryview(found.bytes()), found.range, found.meta
            if len(data) != end - start:
                raise _Short
            return Content(data, meta["e_tag"], meta["size"], first_byte_s)

        return self._asked(kind, key, ask)

    def _asked(self, kind: Kind, key: str, ask: Callable[[], T], tries: int = MAX_TRIES) -> T:
        """Every request passes here: tried again within bounds where that may help."""
        claim()
        began_s = time.perf_counter()
        for number in range(1, tries + 1):
            try:
                found = ask()
            except Exception as error:
                what, may_help = _explained(error)
                if number == tries or not may_help:
                    _watched(kind, began_s, number - 1)
                    again = f" (tried {number} times)" if number > 1 else ""
                    # What the library says holds the answer, which may name a key of the user's.
                    raise _kind_of(error)(f"s3://{self.name}/{key}: {what}{again}") from None
            else:
                _watched(kind, began_s, number - 1, found)
                return found
            longest = min(FIRST_WAIT_S * 2 ** (number - 1), MAX_WAIT_S)
            time.sleep(longest * random.uniform(0.5, 1))
        raise AssertionError(kind)


def _watched(kind: Kind, began_s: float, retries: int, found: object = _FAILED) -> None:
    """Tell the watcher, if there is one, of a request that has ended."""
    if watcher is None:
        return
    seconds, content = time.perf_counter() - began_s, found if isinstance(found, Content) else None
    num_bytes = len(content.data) if content else found if isinstance(found, int) else 0
    first_byte_s = content.first_byte_s if content else None
    watcher(Request(kind, seconds, retries, found is _FAILED, num_bytes, first_byte_s))


def bucket_of(path: ObjectPath) -> Bucket:
    """The client of a path's bucket, one for each process."""
    return _bucket(path.bucket, os.getpid())


@cache
def _bucket(name: str, pid: int) -> Bucket:
    return Bucket(name)


def _any(options: Mapping[str, Any]) -> Any:
    """Options for a call that types each by its name."""
    return options


def claim() -> None:
    """Say that this process has threads of the library, by our client or by another's use of it.

    Raises:
        DatasetError: one that it was forked from had some, which are not here.
    """
    global _user
    pid = os.getpid()
    if _user not in (0, pid):
        raise DatasetError("the object store's client was used before this process was forked: it cannot work here")
    _user = pid


def _store(bucket: str, found: Settings, max_retries: int) -> Any:
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise DatasetError("s3:// needs obstore, which is not installed: pip install 'benchsuite[s3]'") from error
    if found.endpoint and not re.match(r"https?://[^/]", found.endpoint):
        raise DatasetError(f"s3://{bucket}: the endpoint (AWS_ENDPOINT_URL) is no http:// or https:// URL")
    client = {
        **found.client_options(),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=SILENT_S),
        "timeout": timedelta(seconds=REQUEST_S),
    }
    retries = {"max_retries": max_retries}
    try:
        return S3Store(bucket, client_options=_any(client), retry_config=_any(retries), **found.of_obstore(bucket))
    except Exception as error:
        raise DatasetError(f"s3://{bucket}: {_explained(error)[0]}") from None


def _kind_of(error: Exception) -> type[DatasetError]:
    if not isinstance(error, FileNotFoundError) or _ROLE.search(str(error)):
        return DatasetError
    return BucketMissing if "<Code>NoSuchBucket" in str(error) else ObjectMissing


def _explained(error: Exception) -> tuple[str, bool]:
    """What an error of the library says, without the answer's text, and whether another try may help."""
    said = str(error).partition("Debug source")[0]
    status, code = _STATUS.search(said), _CODE.search(said)
    if _ROLE.search(said):  # the store was not asked
        return _NO_CREDENTIALS, False
    if isinstance(error, FileNotFoundError):
        return ("no such bucket" if _kind_of(error) is BucketMissing else "no such object"), False
    if status:
        number = int(status[1])
        named = f"HTTP {number}{f' {code[1]}' if code else ''}"
        refused = {301: "another region's", 401: "not allowed", 403: "not allowed", 412: "changed meanwhile"}
        why = refused.get(number, "")
        return f"{why}: {named}" if why else named, number >= 500 or number in (408, 429)
    if type(error).__name__ == "PreconditionError":
        return "changed meanwhile", False
    if "redirect" in said:
        return "the store sends the request elsewhere without saying where: is the region right?", False
    if "non-partial" in said or "Requested" in said:
        return "the store answered with other bytes than were asked for", False
    if isinstance(error, _Short) or "body error" in said:
        return "the answer ended before it was whole", True
    if "error sending request" in said:
        return "the store gave no answer", True
    if "Missing SecretAccessKey" in said or "Missing AccessKeyId" in said:
        return "half of the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together", False
    if "credential" in said.lower() or "169.254" in said:
        return _NO_CREDENTIALS, False
    return type(error).__name__, False
