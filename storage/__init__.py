"""How samples are stored, read and evicted. Useful alone: knows nothing of training.

A registry maps a name to ("module:ATTR", what to install). Third parties add to FORMATS through the entry point
group `benchsuite.formats`.
"""

import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

Registry = Mapping[str, tuple[str, str]]

FORMATS: Registry = {
    "files": ("storage.files:FILES", "pip install simplejpeg"),
    "webdataset": ("storage.tar:WEBDATASET", "pip install webdataset"),
}
LOADERS: Registry = {
    "torch": ("storage.loaders.torch:TorchLoader", "pip install torch"),
}
KINDS: Registry = {
    "image": ("storage.kinds:IMAGE", "pip install simplejpeg"),
}
FORMATS_NOT_YET = ("hdf5", "lmdb", "tfrecord", "tokens")
LOADERS_NOT_YET = ("threads", "dali")


def names(registry: Registry, group: str = "") -> list[str]:
    """The names of a registry, with those that installed packages add through the entry point `group`."""
    extra = {entry.name for entry in entry_points(group=group)} if group else set()
    return sorted({*registry, *extra})


def load(registry: Registry, name: str, group: str = "") -> Any:
    """The object registered as `name`.

    Raises:
        DatasetError: no such name, or what it needs is not installed.
    """
    from storage.format import DatasetError

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
    target, hint = registry[name]
    try:
        return pkgutil.resolve_name(target)
    except ImportError as error:
        raise DatasetError(f"{name} needs {error.name}, which is not installed: {hint}") from error
