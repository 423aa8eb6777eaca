"""Staging in a plan: a step from node-local copies beside one from the shared file system, and when copying pays.

Staging copies the whole dataset to every node once: nodes x bytes, as fast as the shared file system, the nodes'
adapters and their drives let it. That is saved again after copy_s / (shared epoch - staged epoch) epochs; the dataset's
size cancels out of it, for what is copied and what an epoch reads both grow with it.
"""

from dataclasses import dataclass, replace

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout.candidates import Job, Layouts
from benchsuite_plan.layout.cost import cost, read_bytes_per_s
from benchsuite_plan.layout.models import sample_bytes

EQUAL = 1e-3
"""Share of a step below which both take as long."""


@dataclass(frozen=True)
class Staging:
    """Both ways to read, of one layout; None where the machine, the model or the training does not tell."""

    assumed: str
    """`shared` or `staged`: what the plan rests on."""
    shared_step_s: float
    staged_step_s: float
    break_even_epochs: float | None
    """Epochs from which on copying pays; None: it never does."""
    copy_s: float | None
    """Seconds to copy the whole dataset to all nodes."""
    epochs: float | None
    """Epochs of this training."""
    fits: bool | None
    """Whether a node's drives hold the dataset."""


def check(job: Job) -> None:
    """Refuse to plan with staged input where it cannot be.

    Raises:
        UserError: with what is missing, or the sizes.
    """
    machine, storage, size = job.machine, job.machine.storage, dataset_bytes(job)
    if not job.staged:
        return
    if storage.local_read_bytes_per_s is None:
        raise UserError(
            f"staging: {machine.name} tells no storage.local_read_bytes_per_s; give it in a YAML file of your own: "
            "benchsuite plan list machines --yaml NAME prints one to edit"
        )
    if sample_bytes(job.model) is None:
        raise UserError(f"staging: bytes of a stored sample of {job.model.name} are not known: give sample_bytes")
    if storage.local_bytes is not None and size is not None and size > storage.local_bytes:
        raise UserError(
            f"staging: the dataset of {job.model.name} ({size / 1e12:.3g} TB) does not fit on a node's drives of "
            f"{machine.name} ({storage.local_bytes / 1e12:.3g} TB)"
        )


def dataset_bytes(job: Job) -> float | None:
    """What is copied to each node."""
    size, count = sample_bytes(job.model), job.model.dataset_samples
    return None if size is None or count is None else size * count


def staging(job: Job, layout: Layouts, samples: float | None) -> Staging | None:
    """Both ways to read for the first of the layouts; None where either bandwidth or a sample's size is not known."""
    one, storage, size = layout.take(np.array([0])), job.machine.storage, sample_bytes(job.model)
    if size is None or storage.shared_read_bytes_per_s is None or storage.local_read_bytes_per_s is None:
        return None
    shared, staged = (float(cost(replace(job, staged=way), one, job.typical).step_s[0]) for way in (False, True))
    sample_s = job.nodes * size / copy_bytes_per_s(job)
    count, whole = job.model.dataset_samples, dataset_bytes(job)
    return Staging(
        assumed="staged" if job.staged else "shared",
        shared_step_s=shared,
        staged_step_s=staged,
        break_even_epochs=sample_s * job.batch / (shared - staged) if shared - staged > EQUAL * shared else None,
        copy_s=None if count is None else sample_s * count,
        epochs=None if count is None or samples is None else samples / count,
        fits=None if whole is None or storage.local_bytes is None else whole <= storage.local_bytes,
    )


def copy_bytes_per_s(job: Job) -> float:
    """Rate of all nodes together, while each copies the dataset from the shared file system to its drives."""
    reading = float(read_bytes_per_s(replace(job, staged=False), job.typical))
    writing = job.machine.storage.local_write_bytes_per_s
    return reading if writing is None else min(reading, float(job.typical.storage_efficiency) * writing * job.nodes)


def in_words(of: Staging, job: Job) -> str:
    """Which way is assumed, what the other would bring, and from how many epochs on copying pays."""
    ways = {"shared": ("from the shared file system", of.shared_step_s), "staged": ("staged", of.staged_step_s)}
    other = "staged" if of.assumed == "shared" else "shared"
    (here, step), (there, instead) = ways[of.assumed], ways[other]
    head = f"input is assumed to be read {here}: {_step(step)}, {_step(instead)} {there}"
    if of.fits is False:
        return f"{head}; but the dataset does not fit on a node's drives"
    if abs(of.shared_step_s - of.staged_step_s) <= EQUAL * of.shared_step_s:
        return f"{head}: staging changes nothing"
    if of.break_even_epochs is None:
        return f"{head}: staging does not pay"
    known = [f"takes {_three(of.copy_s)} s, not in days"] if of.copy_s is not None else []
    known += [f"this training has {_three(of.epochs)}"] if of.epochs is not None else []
    nodes = "the node" if job.nodes == 1 else f"each of {job.nodes} nodes"
    told = f" ({'; '.join(known)})" if known else ""
    return f"{head}; copying the dataset to {nodes} pays from {_three(of.break_even_epochs)} epochs on{told}"


def _step(seconds: float) -> str:
    return f"{_three(seconds)} s/step"


def _three(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
