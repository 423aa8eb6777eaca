"""One client reading objects on one core, as a program of its own: `python -m bench.object_clients` with JSON.

What it read, the seconds it took and the CPU seconds of all its threads and children go to stdout. Each client reads as
its documentation has it: clients that block by a thread for each request under way, s3fs by as many tasks.
"""

import asyncio
import json
import os
import resource
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from pathlib import Path
from typing import Any, NoReturn

BUCKET = "bucket"
SOCKET = "socket"
"""The reader that does nothing but receive: what the server gives at most."""
IN_PARTS = "obstore in parts"
"""Whole objects by ranges of PART_BYTES, copied into one buffer that is used again."""
PART_BYTES = 4 << 20
CLIENTS = ("obstore", IN_PARTS, "s3torchconnector", "s3fs", "minio", "s3dlio")
BUFFER_BYTES = 256 << 10
KEYS = {"access": "bench", "secret": "bench"}


@dataclass(frozen=True)
class Shape:
    """What is asked for: whole objects of a size, or ranges of them, so many at once."""

    object_bytes: int
    num_objects: int
    at_once: int
    range_bytes: int | None = None

    @property
    def name(self) -> str:
        """In words."""
        whole = _size(self.object_bytes)
        what = whole if self.range_bytes is None else f"{_size(self.range_bytes)} of {whole}"
        return f"{what} x {self.at_once}"

    @property
    def bytes_per_request(self) -> int:
        return self.range_bytes or self.object_bytes

    def asks(self) -> Iterator["Ask"]:
        """Keys and ranges without end."""
        each = self.bytes_per_request
        places = range(0, self.object_bytes, each)
        once = [Ask(key_of(self.object_bytes, n), start, each) for start in places for n in range(self.num_objects)]
        return cycle(once)


@dataclass(frozen=True)
class Ask:
    """One request."""

    key: str
    start: int
    num_bytes: int


Get = Callable[[Ask], Any]
"""Answers with the bytes, as whatever the client has for them; the reader of sockets with how many they were."""


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


def key_of(object_bytes: int, number: int) -> str:
    """The key of an object."""
    return f"{object_bytes}/{number:04d}"


def installed(client: str) -> str | None:
    """The version of a client's package; None where it is missing."""
    try:
        return version(client.partition(" ")[0])
    except PackageNotFoundError:
        return None


def obstore_client(endpoint: str) -> Any:
    """The store of the bench's bucket."""
    from obstore.store import S3Store

    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=KEYS["access"],
        secret_access_key=KEYS["secret"],
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def obstore_get(endpoint: str, shape: Shape) -> Get:
    """Whole objects by `get`, ranges by `get_range`."""
    import obstore

    store = obstore_client(endpoint)
    if shape.range_bytes:
        return lambda ask: obstore.get_range(store, ask.key, start=ask.start, length=ask.num_bytes)
    return lambda ask: obstore.get(store, ask.key).bytes()


def obstore_in_parts(endpoint: str, shape: Shape) -> Get:
    """Large objects part by part."""
    import obstore

    store, own = obstore_client(endpoint), threading.local()

    def get(ask: Ask) -> memoryview:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(ask.num_bytes))
        for at in range(0, ask.num_bytes, PART_BYTES):
            length = min(PART_BYTES, ask.num_bytes - at)
            part = obstore.get_range(store, ask.key, start=ask.start + at, length=length)
            own.buffer[at : at + length] = memoryview(part)
        return own.buffer

    return get


def minio_get(endpoint: str, shape: Shape) -> Get:
    """`get_object`, read and released."""
    import urllib3
    from minio import Minio

    pool = urllib3.PoolManager(maxsize=shape.at_once)
    host = endpoint.removeprefix("http://")
    client = Minio(
        host, KEYS["access"], KEYS["secret"], secure=False, region="us-east-1", http_client=pool, cert_check=False
    )

    def get(ask: Ask) -> bytes:
        place = {"offset": ask.start, "length": ask.num_bytes} if shape.range_bytes else {}
        response = client.get_object(bucket_name=BUCKET, object_name=ask.key, **place)
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()

    return get


def s3dlio_get(endpoint: str, shape: Shape) -> Get:
    """`get` and `get_range`."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": KEYS["access"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    import s3dlio

    if shape.range_bytes:
        return lambda ask: s3dlio.get_range(f"s3://{BUCKET}/{ask.key}", ask.start, ask.num_bytes)
    return lambda ask: s3dlio.get(f"s3://{BUCKET}/{ask.key}")


def s3torchconnector_get(endpoint: str, shape: Shape) -> Get:
    """Items of an `S3MapDataset`, read by its readers."""
    os.environ |= {"AWS_ACCESS_KEY_ID": KEYS["access"], "AWS_SECRET_ACCESS_KEY": KEYS["secret"]}
    from s3torchconnector import S3ClientConfig, S3MapDataset
    from s3torchconnector.s3reader import S3ReaderConstructor

    keys = [key_of(shape.object_bytes, number) for number in range(shape.num_objects)]
    ranged = S3ReaderConstructor.range_based(buffer_size=0)
    dataset = S3MapDataset.from_objects(
        [f"s3://{BUCKET}/{key}" for key in keys],
        region="us-east-1",
        endpoint=endpoint,
        s3client_config=S3ClientConfig(force_path_style=True),
        reader_constructor=ranged if shape.range_bytes else S3ReaderConstructor.sequential(),
    )
    numbers = {key: number for number, key in enumerate(keys)}

    def get(ask: Ask) -> bytes:
        reader = dataset[numbers[ask.key]]
        if shape.range_bytes:
            reader.seek(ask.start)
            return reader.read(ask.num_bytes)
        return reader.read()

    return get


def socket_get(endpoint: str, shape: Shape) -> Get:
    """Receive into one buffer for each connection, and look at nothing but the length."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    own = threading.local()

    def get(ask: Ask) -> int:
        if not hasattr(own, "socket"):
            own.socket = socket.create_connection((host, int(port)))
            own.buffer = memoryview(bytearray(BUFFER_BYTES))
        end = ask.start + ask.num_bytes - 1
        ranged = f"Range: bytes={ask.start}-{end}\r\n" if shape.range_bytes else ""
        own.socket.sendall(f"GET /{BUCKET}/{ask.key} HTTP/1.1\r\nHost: {host}\r\n{ranged}\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += own.socket.recv(4096) or _closed()
        left = ask.num_bytes - (len(head) - head.index(b"\r\n\r\n") - 4)
        while left:
            left -= own.socket.recv_into(own.buffer, min(left, BUFFER_BYTES)) or _closed()
        return ask.num_bytes

    return get


def _closed() -> NoReturn:
    raise ConnectionError("the server closed the connection")


READERS: dict[str, Callable[[str, Shape], Get]] = {
    "obstore": obstore_get,
    IN_PARTS: obstore_in_parts,
    "minio": minio_get,
    "s3dlio": s3dlio_get,
    "s3torchconnector": s3torchconnector_get,
    SOCKET: socket_get,
}


Run = Callable[[Iterator[Ask], Callable[[], bool]], int]
"""Requests that were answered until the time is over."""


def by_threads(get: Get, shape: Shape) -> Run:
    """As many threads as requests are under way at once."""
    lock = threading.Lock()

    def run(asks: Iterator[Ask], is_over: Callable[[], bool]) -> int:
        def read(_number: int) -> int:
            done = 0
            while not is_over():
                with lock:
                    ask = next(asks)
                check_length(get(ask), ask)
                done += 1
            return done

        with ThreadPoolExecutor(shape.at_once) as pool:
            return sum(pool.map(read, range(shape.at_once)))

    return run


def s3fs_reader(endpoint: str, shape: Shape) -> tuple[Get, Run]:
    """`_cat_file` of an asynchronous file system, by as many tasks of one event loop."""
    import s3fs

    loop = asyncio.new_event_loop()
    system = s3fs.S3FileSystem(
        key=KEYS["access"],
        secret=KEYS["secret"],
        client_kwargs={"endpoint_url": endpoint, "region_name": "us-east-1"},
        config_kwargs={"s3": {"addressing_style": "path"}, "max_pool_connections": shape.at_once},
        asynchronous=True,
        loop=loop,
    )
    loop.run_until_complete(system.set_session())

    async def fetch(ask: Ask) -> Any:
        place = {"start": ask.start, "end": ask.start + ask.num_bytes} if shape.range_bytes else {}
        return await system._cat_file(f"{BUCKET}/{ask.key}", **place)

    async def read(asks: Iterator[Ask], is_over: Callable[[], bool]) -> int:
        done = 0
        while not is_over():
            ask = next(asks)
            check_length(await fetch(ask), ask)
            done += 1
        return done

    async def read_all(asks: Iterator[Ask], is_over: Callable[[], bool]) -> int:
        return sum(await asyncio.gather(*(read(asks, is_over) for _ in range(shape.at_once))))

    def run(asks: Iterator[Ask], is_over: Callable[[], bool]) -> int:
        return loop.run_until_complete(read_all(asks, is_over))

    return lambda ask: loop.run_until_complete(fetch(ask)), run


def check_length(found: Any, ask: Ask) -> None:
    """Refuse an answer of another length."""
    length = found if isinstance(found, int) else len(found)
    if length != ask.num_bytes:
        raise ValueError(f"{ask}: {length} bytes came")


def check_content(found: Any, ask: Ask, folder: Path) -> None:
    """Refuse other bytes than the server's file has."""
    with (folder / BUCKET / ask.key).open("rb") as file:
        file.seek(ask.start)
        wanted = file.read(ask.num_bytes)
    if not isinstance(found, int) and zlib.crc32(memoryview(found)) != zlib.crc32(wanted):
        raise ValueError(f"{ask}: other bytes came")


def cpu_s() -> float:
    """CPU seconds of this process with its threads, and of children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(client: str, endpoint: str, shape: Shape, seconds: float, folder: Path) -> dict[str, float]:
    """What a client reads of a shape in so long, after a third of that to warm up; one answer is compared before."""
    if client == "s3fs":
        get, run = s3fs_reader(endpoint, shape)
    else:
        get = READERS[client](endpoint, shape)
        run = by_threads(get, shape)
    asks = shape.asks()
    first = next(asks)
    check_content(get(first), first, folder)
    warm_s = time.perf_counter() + seconds / 3
    run(asks, lambda: time.perf_counter() >= warm_s)
    began_s, before_s = time.perf_counter(), cpu_s()
    requests = run(asks, lambda: time.perf_counter() >= began_s + seconds)
    used_s, took_s = cpu_s() - before_s, time.perf_counter() - began_s
    return {"num_bytes": requests * shape.bytes_per_request, "seconds": took_s, "cpu_s": used_s}


def main() -> None:
    """Read as the JSON in the first argument asks for, on its core; what came of it goes to stdout."""
    asked = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {asked["core"]})  # before the client counts the cores that it may use
    found = measure(
        asked["client"], asked["endpoint"], Shape(**asked["shape"]), asked["seconds"], Path(asked["folder"])
    )
    print(json.dumps(found), flush=True)
    os._exit(0)  # runtimes of clients may take long to end


if __name__ == "__main__":
    main()
