"""Clients of object stores beside each other: bytes a second and a CPU second of one core, the server on another.

The server is nginx, whose GETs of files below a folder answer path-style GETs of S3; signatures are not looked at. It
sends from the page cache by sendfile. What it gives to a bare socket is what it can give: a rate near that says
nothing of a client.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import median

from bench.object_clients import BUCKET, CLIENTS, IN_PARTS, PART_BYTES, SOCKET, Shape, installed, key_of
from bench.object_formats import FORMATS, SAMPLES, SHARD_SAMPLES
from bench.tables import goal
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from benchsuite.storage.rawspeed.probe import write_incompressible

SHAPES = (
    Shape(64 << 10, 512, 16),
    Shape(1 << 20, 64, 8),
    Shape(64 << 20, 4, 4),
    Shape(64 << 20, 4, 8, 1 << 20),
)
ROUNDS = 5
SECONDS = 2.0
MAX_OF_CEILING = 0.8
"""Share of what the server gives to a bare socket: what reads more is held by the server, and its rate is no claim."""
MIN_OF_PLAIN = 0.95
SERVER_CORE, CLIENT_CORE = 0, 1
CONFIG = """daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
  access_log off;
  sendfile on;
  keepalive_requests 1000000000;
  open_file_cache max=10000 inactive=600s;
  open_file_cache_valid 600s;
  default_type application/octet-stream;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


class CannotServe(RuntimeError):
    """Why no server can be had here."""


@dataclass
class Rates:
    """One client and one shape, over rounds."""

    bytes_per_s: list[float] = field(default_factory=list)
    bytes_per_cpu_s: list[float] = field(default_factory=list)
    samples_per_s: list[float] = field(default_factory=list)
    """Samples a second, where a format was read."""


def takes(client: str, shape: Shape) -> bool:
    """Whether a shape is for a client: only whole objects that are larger than a part are read in parts."""
    return client != IN_PARTS or (shape.range_bytes is None and shape.object_bytes > PART_BYTES)


Table = dict[tuple[Shape, str], Rates]


def make(folder: Path, shapes: Sequence[Shape]) -> None:
    """Objects of random bytes, all that the shapes ask for."""
    for size, number in sorted({(shape.object_bytes, shape.num_objects) for shape in shapes}):
        (folder / BUCKET / str(size)).mkdir(parents=True, exist_ok=True)
        for n in range(number):
            write_incompressible(folder / BUCKET / key_of(size, n), size)


@contextmanager
def served(folder: Path, root: Path) -> Iterator[str]:
    """Serve what lies below `root` from one core: the endpoint.

    Raises:
        CannotServe: nginx is missing, there are not two cores, or it does not begin.
    """
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise CannotServe("nginx is not installed (Debian: apt install nginx-light)")
    if not {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0):
        raise CannotServe(f"cores {SERVER_CORE} and {CLIENT_CORE} are not both there for client and server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, root=root, port=port))
    user = ["-g", "user root;"] if os.geteuid() == 0 else []  # else its worker may not read what root keeps to itself
    server = subprocess.Popen(
        ["taskset", "-c", str(SERVER_CORE), program, "-c", str(folder / "nginx.conf"), *user],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for(server, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(server: "subprocess.Popen[str]", port: int, within_s: float = 10.0) -> None:
    """Wait until the server takes connections."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
    server.terminate()
    raise CannotServe(f"nginx does not answer: {server.stderr.read().strip() if server.stderr else ''}")


def _turn(client: str, endpoint: str, shape: Shape, seconds: float, root: Path, rates: Rates) -> None:
    """One round of a client in a process of its own."""
    asked = {"client": client, "endpoint": endpoint, "shape": asdict(shape), "core": CLIENT_CORE}
    asked |= {"seconds": seconds, "folder": str(root)}
    command = [sys.executable, "-m", "bench.object_clients", json.dumps(asked)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60 + 10 * seconds, check=False)
    if said.returncode:
        raise RuntimeError(f"{client}, {shape.name}: {said.stderr.strip().splitlines()[-1:]}")
    found = json.loads(said.stdout)
    rates.bytes_per_s.append(found["num_bytes"] / found["seconds"])
    rates.bytes_per_cpu_s.append(found["num_bytes"] / found["cpu_s"])


def measure(
    folder: Path, shapes: Sequence[Shape] = SHAPES, rounds: int = ROUNDS, seconds: float = SECONDS
) -> tuple[Table, dict[str, str]]:
    """All clients that are installed in turn, for several rounds; and why others have failed.

    Raises:
        CannotServe: there is no server.
    """
    root = folder / "root"
    table: Table = {}
    failed: dict[str, str] = {}
    make(root, shapes)
    contenders = [SOCKET, *(client for client in CLIENTS if installed(client))]
    with served(folder / "nginx", root) as endpoint:
        for shape in shapes:
            for number in range(rounds):
                turn = number % len(contenders)
                for client in contenders[turn:] + contenders[:turn]:
                    if client in failed or not takes(client, shape):
                        continue
                    try:
                        rates = table.setdefault((shape, client), Rates())
                        _turn(client, endpoint, shape, seconds, root, rates)
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        failed[client] = str(error)
    return table, failed


def table_of(table: Table, failed: Mapping[str, str]) -> str:
    """The figures as Markdown; a client that is missing, or failed, has a row that says so."""
    lines = [
        "| objects | client | MB/s | MB a client CPU second | of the server's ceiling |",
        "|---|---|---:|---:|---:|",
    ]
    for shape in dict.fromkeys(shape for shape, _ in table):
        ceiling = median(table[shape, SOCKET].bytes_per_s)
        for client in (SOCKET, *CLIENTS):
            if not takes(client, shape):
                continue
            found = table.get((shape, client))
            if client in failed or found is None:
                lines.append(f"| {shape.name} | {client} | {failed.get(client, 'not installed')} | | |")
                continue
            share = median(found.bytes_per_s) / ceiling
            held = " (held by the server)" if client != SOCKET and share > MAX_OF_CEILING else ""
            name = "bare socket" if client == SOCKET else f"{client} ({installed(client)})"
            rates = f"{_spread(found.bytes_per_s)} | {_spread(found.bytes_per_cpu_s)}"
            lines.append(f"| {shape.name} | {name} | {rates} | {share:.2f}{held} |")
    return "\n".join(lines)


def _spread(rates: Sequence[float]) -> str:
    return f"{median(rates) / 1e6:,.0f} ({min(rates) / 1e6:,.0f}..{max(rates) / 1e6:,.0f})"


def best_of(table: Table) -> dict[Shape, str]:
    """The client that reads most bytes a CPU second of each shape."""
    found: dict[Shape, str] = {}
    for shape in dict.fromkeys(shape for shape, _ in table):
        known = {client: table[shape, client].bytes_per_cpu_s for client in CLIENTS if (shape, client) in table}
        rates = {client: median(values) for client, values in known.items() if values}
        if rates:
            found[shape] = max(rates, key=lambda client: rates[client])
    return found


def measure_formats(
    folder: Path, rounds: int = ROUNDS, seconds: float = SECONDS, samples: int = SAMPLES
) -> dict[tuple[str, str], Rates]:
    """Formats by our readers and by the plainest loops in turn, photographs of ResNet-50; samples are counted too.

    Raises:
        CannotServe: there is no server.
    """
    root, found = folder / "formats", dict[tuple[str, str], Rates]()
    for name in FORMATS:
        options: dict[str, int | str] = {"shard_samples": SHARD_SAMPLES} if name == "webdataset" else {}
        wanted, target = Wanted("resnet50", "tiny", name, options=options), root / BUCKET / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name == FORMATS[0]:
            generate_dataset(target, wanted, samples)
        else:
            convert_dataset(root / BUCKET / FORMATS[0], target, wanted)
    with served(folder / "nginx-formats", root) as endpoint:
        for name, number in product(FORMATS, range(rounds)):
            for by in ("ours", "plain") if number % 2 else ("plain", "ours"):
                asked = {"format": name, "by": by, "endpoint": endpoint, "seconds": seconds, "folder": str(root)}
                said = subprocess.run(
                    [sys.executable, "-m", "bench.object_formats", json.dumps(asked | {"core": CLIENT_CORE})],
                    capture_output=True,
                    text=True,
                    timeout=60 + 10 * seconds,
                    check=True,
                )
                one, rates = json.loads(said.stdout), found.setdefault((name, by), Rates())
                rates.bytes_per_s.append(one["num_bytes"] / one["seconds"])
                rates.bytes_per_cpu_s.append(one["num_bytes"] / one["cpu_s"])
                rates.samples_per_s.append(one["samples"] / one["seconds"])
    return found


def formats_table(found: Mapping[tuple[str, str], Rates]) -> tuple[str, dict[str, float]]:
    """The figures as Markdown, and ours over the plain loop's in each format: medians of ratios of neighbours."""
    lines = [
        "| format | MB/s | plain loop MB/s | samples/s | plain loop samples/s | ours / plain |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    ratios = {}
    for name in FORMATS:
        own, other = found[name, "ours"], found[name, "plain"]
        pairs = zip(own.bytes_per_s, other.bytes_per_s, strict=True)
        ratios[name] = median(mine / theirs for mine, theirs in pairs)
        rates = f"{_spread(own.bytes_per_s)} | {_spread(other.bytes_per_s)}"
        samples = f"{median(own.samples_per_s):,.0f} | {median(other.samples_per_s):,.0f}"
        lines.append(f"| {name} | {rates} | {samples} | {ratios[name]:.2f} |")
    return "\n".join(lines), ratios


def show(folder: Path) -> None:
    """(q)"""
    print("(q) clients of object stores: one core of a client, one core of nginx, interleaved rounds, median (range)")
    try:
        table, failed = measure(folder)
    except CannotServe as error:
        print(f"    not run: {error}")
        return
    print(table_of(table, failed))
    for shape, client in best_of(table).items():
        print(f"    {shape.name}: most bytes a CPU second by {client}")
    text, ratios = formats_table(measure_formats(folder))
    print(text)
    for name, ratio in ratios.items():
        print(goal(ratio >= MIN_OF_PLAIN, f"{name}: ours / the plainest loop with the same client >= {MIN_OF_PLAIN}"))
    print("    DLIO with the same objects: not run; the readers of 2.0.0 open local paths alone")
