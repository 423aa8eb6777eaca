"""What is trained, and how it is parallelized over ranks. Knows nothing of files.

A registry maps a name to "module:ATTR". Third parties add to WORKLOADS through the entry point group
`benchsuite.workloads`, or name a file of their own: `path/to/file.py:WORKLOAD`.
"""

import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


class WorkloadError(ValueError):
    """Something about a workload that its user can mend: said in one line."""


WORKLOADS: Mapping[str, str] = {
    "bert": "benchsuite.workloads.bert:WORKLOAD",
    "resnet50": "benchsuite.workloads.resnet50:WORKLOAD",
    "unet3d": "benchsuite.workloads.unet3d:WORKLOAD",
    "gpt_neox": "benchsuite.workloads.gpt_neox:WORKLOAD",
}
MODES = ("none", "data_parallel", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp", "cp", "ep")
"""Names of parallelism; `workloads.parallel.modes` and `pipeline` have what they do."""


def names(registry: Mapping[str, Any], group: str = "") -> list[str]:
    """The names of a registry, with those that installed packages add through the entry point `group`."""
    extra = {entry.name for entry in entry_points(group=group)} if group else set()
    return sorted({*registry, *extra})


@cache
def from_file(name: str, what: str = "workload") -> Any:
    """The object in a user's own file, given as `path/to/file.py:NAME`; `what` it is, for messages.

    Raises:
        WorkloadError: no such file, it cannot be run, or there is nothing of that name in it.
    """
    path, _, attribute = name.rpartition(":")
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise WorkloadError(f"{what} {name!r}: {path} is no Python file; write path/to/file.py:{what.upper()}")
    spec = spec_from_file_location(f"benchsuite_{what}_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise WorkloadError(f"{what} {name!r}: {path} cannot be run: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        found = [word for word in vars(module) if word.isupper()]
        raise WorkloadError(f"{what} {name!r}: no {attribute} in {path}; capitals there: {', '.join(found) or 'none'}")
    return getattr(module, attribute)


def load(registry: Mapping[str, Any], name: str, group: str = "") -> Any:
    """The object registered as `name`, or where it is.

    Raises:
        KeyError: no such name.
        WorkloadError: what a third party adds cannot be imported.
    """
    if name in registry:
        return pkgutil.resolve_name(registry[name]) if isinstance(registry[name], str) else registry[name]
    if registry is WORKLOADS and ":" in name:
        return from_file(name)
    for entry in entry_points(group=group) if group else ():
        if entry.name == name:
            try:
                return entry.load()
            except Exception as error:
                raise WorkloadError(f"entry point {entry.name} = {entry.value}: cannot be loaded: {error}") from error
    raise KeyError(f"no {name!r} here; allowed: {', '.join(names(registry, group))}")
