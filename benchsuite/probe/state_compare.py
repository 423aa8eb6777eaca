"""Whether a state that was read is the state that was written: every tensor to the bit, and everything else."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from benchsuite.contract.errors import UserError
from benchsuite.workloads.parallel.recipe import local

State = dict[str, Any]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in nested dicts and lists that is neither, by its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from leaves(item, f"{name}[{number}]")
    else:
        yield name, value


def different(written: State, read: State) -> list[str]:
    """The names of what is not equal: tensors to the bit, and everything else."""
    ours, theirs = dict(leaves(written)), dict(leaves(read))
    apart = sorted(ours.keys() ^ theirs.keys())
    return apart + [name for name in ours if name in theirs and not _same(ours[name], theirs[name])]


def compare(written: State, read: State, path: Path, group: dist.ProcessGroup | None = None) -> int:
    """Refuse what was not read as it was written; how many values were read as another rank had them.

    Of tensors that every rank holds whole, such as batch norm's statistics, the copy of one rank is written.

    Raises:
        UserError: something is as no rank had it.
    """
    apart = different(written, read)
    num_others = 0
    if group is not None:
        everyones: list[list[str]] = [[]] * group.size()
        dist.all_gather_object(everyones, apart, group=group)
        ours, theirs = dict(leaves(written)), dict(leaves(read))
        names = [name for name in sorted({*chain(*everyones)}) if name in ours and _is_whole(ours[name])]
        copies: list[dict[str, str]] = [{}] * group.size()
        dist.all_gather_object(copies, {name: _digest(ours[name]) for name in names}, group=group)
        known = {name: {copy[name] for copy in copies if name in copy} for name in names}
        wrong = [name for name in apart if name not in known or _digest(theirs.get(name)) not in known[name]]
        num_others, apart = len(apart) - len(wrong), wrong
    if apart:
        raise UserError(
            f"{path}: what was read is not what was written: {len(apart)} of {len(dict(leaves(written)))} values, "
            f"such as {apart[0]}"
        )
    return num_others


def _is_whole(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, DTensor)


def _digest(value: Any) -> str:
    """Return the digest of a whole tensor's type, shape and bits; an empty one for anything else."""
    if not _is_whole(value):
        return ""
    content = blake2b(_bits(value.detach().cpu()).numpy().data, digest_size=16).hexdigest()
    return f"{value.dtype} {tuple(value.shape)} {content}"


def _same(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, Tensor):
        return type(ours) is type(theirs) and bool(ours == theirs)
    if not isinstance(theirs, Tensor):
        return False
    first, second = local(ours).detach().cpu(), local(theirs).detach().cpu()
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    return torch.equal(_bits(first), _bits(second))


def _bits(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)
