"""How samples are stored, read and evicted. Useful alone: knows nothing of training.

A registry maps a name to ("module:ATTR", what to install). Third parties add to FORMATS and
LOADERS through the entry point groups `benchsuite.formats` and `benchsuite.loaders`.
"""

import os
import pkgutil
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from symtable import symtable
from typing import TYPE_CHECKING, Any, NamedTuple

from benchsuite.storage.objects.path import object_path
from benchsuite.storage.objects.profile import settings

if TYPE_CHECKING:
    from benchsuite.storage.dataset.manifest import Format, Manifest, StockReader
    from benchsuite.storage.dataset.spec import DataSpec

Registry = Mapping[str, tuple[str, str]] | Mapping[str, "KnownLoader"]

FORMATS: Registry = {
    "files": ("benchsuite.storage.formats.files:FILES", "pip install numpy"),
    "webdataset": ("benchsuite.storage.formats.tar:WEBDATASET", "pip install 'benchsuite[formats]'"),
    "hdf5": ("benchsuite.storage.formats.hdf5:HDF5", "pip install 'benchsuite[formats]'"),
    "lmdb": ("benchsuite.storage.formats.lmdb:LMDB", "pip install 'benchsuite[formats]'"),
    "tfrecord": ("benchsuite.storage.formats.tfrecord:TFRECORD", "pip install 'benchsuite[formats]'"),
    "mds": ("benchsuite.storage.formats.mds:MDS", "pip install numpy"),
    "parquet": ("benchsuite.storage.formats.parquet:PARQUET", "pip install 'benchsuite[formats]'"),
    "tokens": ("benchsuite.storage.formats.tokens:TOKENS", "pip install numpy"),
}


class KnownLoader(NamedTuple):
    """A loader of ours, and what a plan must know of it before its module is imported."""

    target: str
    """Its class, as `module:NAME`."""
    install: str
    reader: str = "tuned"
    """What it reads by: `stock`, as a library's users do, or `tuned`, our own readers."""
    module: str | None = None
    """What it needs that an installation may lack."""
    kinds: frozenset[str] | None = None
    """The kinds of samples that it decodes; None: all."""
    one_reader: bool = False
    """A rank is one reader, however many threads of a library read for it; it mixes samples of every format."""


LOADERS: Mapping[str, KnownLoader] = {
    "torch": KnownLoader("benchsuite.storage.loaders.torch:TorchLoader", "pip install torch", "stock"),
    "threads": KnownLoader("benchsuite.storage.loaders.threads:ThreadsLoader", "pip install torch"),
    "dali": KnownLoader(
        "benchsuite.storage.loaders.dali:DaliLoader",
        "pip install 'benchsuite[dali]'",
        "stock",
        "nvidia.dali",
        frozenset({"image", "volume"}),
        one_reader=True,
    ),
}
KINDS: Registry = {
    "image": ("benchsuite.storage.dataset.kinds:IMAGE", "pip install 'benchsuite[formats]'"),
    "volume": ("benchsuite.storage.dataset.kinds:VOLUME", "pip install torch"),
    "mlm": ("benchsuite.storage.dataset.kinds:MLM", "pip install torch"),
    "tokens": ("benchsuite.storage.dataset.kinds:TOKENS", "pip install torch"),
}
LIBRARIES: Registry = {"datasets": ("benchsuite.storage.stock.hugging_face:STOCK", "pip install datasets")}
"""Readers that are another library than a format's own, by their names in `data.reader`, which are their modules'."""
LIBRARY_READS: Mapping[str, frozenset[str]] = {"datasets": frozenset({"parquet"})}
"""The formats that these read."""
OURS = "set data.loader: threads and data.reader: tuned"
"""What reads where no library does."""
STOCK_GROUP = "benchsuite.stock_readers"
"""Where other packages add readers of their libraries, by the names of formats."""


def command_path(name: str) -> str | None:
    """A command on the PATH, or one that lies beside this Python, as in an environment that was not activated."""
    return which(name) or which(name, path=os.path.dirname(sys.executable))


def names(registry: Registry, group: str = "") -> list[str]:
    """The names of a registry, with those that installed packages add through the entry point `group`."""
    extra = {entry.name for entry in entry_points(group=group)} if group else set()
    return sorted({*registry, *extra})


def format_of(name: str) -> "Format":
    """Return a format, of this package or of another.

    Raises:
        DatasetError: no such format, or what it needs is not installed.
    """
    found: Format = load(FORMATS, name, "benchsuite.formats")
    return found


def default_reader(loader: str) -> str:
    """Return the reader of a loader where none is asked for: `stock` of libraries, else `tuned`."""
    return LOADERS[loader].reader if loader in LOADERS else "tuned"


def is_one_reader(loader: str) -> bool:
    """Whether a rank of this loader is one reader, whatever data.num_workers is."""
    return loader in LOADERS and LOADERS[loader].one_reader


def mixes(data: "DataSpec") -> bool:
    """Whether readers mix samples in data.shuffle_buffer: those of shards, and DALI's of every format."""
    return data.shuffle and (format_of(data.format).sequential or is_one_reader(data.loader))


def stock_reader(format: str) -> Any:
    """Return the reader of a format's own library, a `storage.stock.reader.Stock`.

    Raises:
        DatasetError: there is none, or what it needs is not installed.
    """
    own = format_of(format).stock
    known = {format: (own.reader, own.install)} if own is not None else {}
    return load(known, format, STOCK_GROUP)


def reader_problem(data: "DataSpec", manifest: "Manifest | None") -> str | None:
    """Why a dataset cannot be read so, or None; a reader of None reads a single batch."""
    if data.image_dtype != "float32" and manifest is not None and manifest.kind != "image":
        return f"image_dtype {data.image_dtype} is for images, the dataset holds {manifest.kind} samples"
    if data.reader == "tuned":
        return _tuned_problem(data.loader)
    if data.reader is not None and data.cache == "direct":
        return f"reader {data.reader} reads through the page cache, which cache direct avoids; {OURS}"
    if data.loader == "dali" and data.reader in (None, "stock"):
        return _dali_problem(data, manifest)
    if data.reader is None:
        return None
    if data.loader != "torch":
        instead = "set data.loader: torch, or data.reader: tuned"
        return f"reader {data.reader} goes with loader torch, not with {data.loader}; {instead}"
    if data.reader in LIBRARIES:
        return _library_problem(data)
    if data.reader != "stock":
        return _file_problem(str(data.reader))
    return _stock_problem(data)


def _stock_problem(data: "DataSpec") -> str | None:
    """Why a format's own library cannot read it here, or None."""
    own = format_of(data.format).stock
    if own is None:
        return None if data.format in names({}, STOCK_GROUP) else f"format {data.format} has no stock reader; {OURS}"
    if own.module is not None and not _is_installed(own.module):
        return f"reader stock of format {data.format} needs {own.module}, which is not installed: {own.install}"
    return _bucket_problem(data, own) if _in_bucket(data) else None


def _tuned_problem(loader: str) -> str | None:
    """Why a loader cannot read by our own readers, or None."""
    if default_reader(loader) == "tuned":
        return None
    return f"reader tuned goes with loader threads, not with {loader}; set data.loader: threads, or data.reader: stock"


BINDING = (b"import *", b"global ", b"globals(", b"__getattr__")
"""What may bind a name of a module elsewhere than in its own statements."""


def _file_problem(reader: str) -> str | None:
    """Why a user's file holds no such reader, or None; the file is read, not run."""
    path, _, name = reader.rpartition(":")
    if not (path.endswith(".py") and os.path.isfile(path)):
        what = "there is no such file" if path.endswith(".py") and not os.path.exists(path) else "it is no Python file"
        return f"reader {reader}: {path}: {what}; write path/to/mine.py:READER"
    try:
        text = Path(path).read_bytes()
        symbols = symtable(text, path, "exec").get_symbols()  # type: ignore[arg-type]  # bytes, too, as compile() does
    except (OSError, ValueError, SyntaxError) as error:
        return f"reader {reader}: {path} cannot be read: {error}"
    own = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
    imported = {symbol.get_name() for symbol in symbols if symbol.is_imported()}
    if name in own | imported or any(word in text for word in BINDING):
        return None
    return f"reader {reader}: {path} has no {name}; it has {', '.join(sorted(own)) or 'no names of its own'}"


def _in_bucket(data: "DataSpec") -> bool:
    """Whether readers are given objects: where none of a dataset is staged first."""
    return data.staging == "none" and (data.root or "").startswith("s3://")


def _bucket_problem(data: "DataSpec", own: "StockReader") -> str | None:
    """Why a format's own library cannot read it from a bucket, or None."""
    if own.bucket is None:
        return (
            f"reader stock of format {data.format} reads files, no buckets; {OURS}, or set data.staging: copy or lazy"
        )
    client = own.bucket
    if client.always_verifies and not settings(object_path(str(data.root)).bucket).verify_tls:
        return f"{client.name} cannot leave out verify_tls, as the site's file asks: {OURS}"
    if command_path(client.name) if client.is_command else _is_installed(client.name):
        return None
    why = f"reader stock of format {data.format} needs {client.name} to read a bucket, which is not installed"
    return f"{why}: {client.install}"


def _library_problem(data: "DataSpec") -> str | None:
    name = str(data.reader)
    if _in_bucket(data):
        return f"reader {name} reads files, no buckets; {OURS}, or set data.staging: copy or lazy"
    if data.format not in LIBRARY_READS[name]:
        return f"reader {name} reads {' and '.join(sorted(LIBRARY_READS[name]))}, not {data.format}"
    return None if _is_installed(name) else f"reader {name} needs {name}, which is not installed: {LIBRARIES[name][1]}"


def _dali_problem(data: "DataSpec", manifest: "Manifest | None") -> str | None:
    kind = manifest.kind if manifest else ""
    if data.staging == "lazy":
        return f"DALI's readers want whole datasets, staging lazy brings files as they are read; {OURS}"
    if kind not in format_of(data.format).dali_kinds:
        return f"DALI has no reader for {kind} samples in format {data.format}; set data.loader: torch or threads"
    packed = manifest is not None and manifest.options.get("array") == "npz"
    return "DALI has no reader for .npz files; set data.loader: torch or threads" if packed else None


def loader_of(data: "DataSpec") -> Any:
    """Return the class of the loader that data settings ask for, to be built with a `LoaderInput`.

    Raises:
        DatasetError: there is none of that name, or what it needs is not installed.
    """
    return load(LOADERS, data.loader, "benchsuite.loaders")


def loader_problem(loader: str, kind: str) -> str | None:
    """Why a loader cannot deliver samples of this kind here, or None."""
    kinds = LOADERS[loader].kinds if loader in LOADERS else None
    if kinds is not None and kind not in kinds:
        return f"loader {loader} decodes {' and '.join(sorted(kinds))} samples, not {kind}"
    return missing_loaders().get(loader)


def missing_loaders() -> dict[str, str]:
    """Loaders whose module is not installed here, and for each what it needs and how to install that."""
    return {
        loader: f"loader {loader} needs {known.module}, which is not installed: {known.install}"
        for loader, known in LOADERS.items()
        if known.module is not None and not _is_installed(known.module)
    }


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def load(registry: Registry, name: str, group: str = "") -> Any:
    """The object registered as `name`.

    Raises:
        DatasetError: no such name, or what it needs is not installed.
    """
    from benchsuite.storage.errors import DatasetError

    if name not in registry:
        for entry in entry_points(group=group) if group else ():
            if entry.name == name:
                try:
                    return entry.load()
                except Exception as error:
                    raise DatasetError(
                        f"entry point {entry.name} = {entry.value}: cannot be loaded: {error}"
                    ) from error
        raise DatasetError(f"no {name!r} here; allowed: {', '.join(names(registry, group))}")
    target, hint = registry[name][:2]
    try:
        return pkgutil.resolve_name(target)
    except ImportError as error:
        raise DatasetError(f"{name} needs {error.name}, which is not installed: {hint}") from error
