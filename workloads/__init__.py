"""What is trained, and how it is spread over ranks. Knows nothing of files.

A registry maps a name to "module:ATTR". Third parties add to WORKLOADS through the entry point group
`benchsuite.workloads`.
"""

import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any


class WorkloadError(ValueError):
    """Something about a workload that its user can mend: said in one line."""


WORKLOADS: Mapping[str, str] = {
    "bert": "workloads.bert:WORKLOAD",
    "resnet50": "workloads.resnet50:WORKLOAD",
    "unet3d": "workloads.unet3d:WORKLOAD",
    "gpt_neox": "workloads.gpt_neox:WORKLOAD",
}
MODES: Mapping[str, str] = {
    "none": "workloads.parallel.data:alone",
    "ddp": "workloads.parallel.data:ddp",
    "zero1": "workloads.parallel.data:zero1",
    "zero2": "workloads.parallel.data:zero2",
    "fsdp": "workloads.parallel.data:fsdp",
    "hsdp": "workloads.parallel.data:hsdp",
    "tp": "workloads.parallel.tensor:tp",
    "pp": "workloads.parallel.pipeline:pp",
    "ep": "workloads.parallel.expert:ep",
}
WORKLOADS_NOT_YET = ()
MODES_NOT_YET = ("cp",)


def names(registry: Mapping[str, str], group: str = "") -> list[str]:
    """The names of a registry, with those that installed packages add through the entry point `group`."""
    extra = {entry.name for entry in entry_points(group=group)} if group else set()
    return sorted({*registry, *extra})


def load(registry: Mapping[str, str], name: str, group: str = "") -> Any:
    """The object registered as `name`.

    Raises:
        KeyError: no such name.
        WorkloadError: a third party's workload that cannot be imported.
    """
    if name in registry:
        return pkgutil.resolve_name(registry[name])
    for entry in entry_points(group=group) if group else ():
        if entry.name == name:
            try:
                return entry.load()
            except Exception as error:
                raise WorkloadError(f"entry point {entry.name} = {entry.value}: cannot be loaded: {error}") from error
    raise KeyError(f"no {name!r} here; allowed: {', '.join(names(registry, group))}")
