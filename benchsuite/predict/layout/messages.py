"""What a plan says in words: layouts, why the second loses, and what is not known."""

from collections.abc import Sequence

import numpy as np

from benchsuite.predict.layout import runnable
from benchsuite.predict.layout.assumptions import TYPICAL
from benchsuite.predict.layout.candidates import RECOMPUTE, Layouts
from benchsuite.predict.layout.cost import Cost
from benchsuite.predict.layout.job import Job

QUANTILES = (0.05, 0.95)
EQUAL = 1e-3
"""Share of a step below which two layouts count as equal."""
PARTS = {
    "compute_s": "computation",
    "recompute_s": "recomputation",
    "tensor_s": "tensor-parallel exchange",
    "pipeline_s": "sends between stages",
    "bubble_s": "bubble",
    "data_s": "exchange between replicas",
    "optimizer_s": "optimizer",
    "straggling_s": "stragglers",
    "input_s": "input",
}


def named(of: Layouts, at: int) -> str:
    """A layout in words."""
    text = f"tp {of.tp[at]} pp {of.pp[at]} dp {of.dp[at]} zero {of.zero[at]} recompute {RECOMPUTE[of.recompute[at]]}"
    return text + (f" interleave {of.interleave[at]}" if of.interleave[at] > 1 else "")


def none_runs(of: Layouts, reasons: Sequence[str | None]) -> str:
    """A sentence where trials refuse all that fits."""
    return f"No layout that fits can run as a trial: the fastest of them ({named(of, 0)}) is refused: {reasons[0]}."


def why_second_loses(of: Layouts, costs: Cost, draws: Cost, others: bool) -> str:
    """A sentence: by how much, through which parts of the step, and in what share of the draws.

    Args:
        others: whether there are layouts that fit and that trials refuse.
    """
    if len(of) < 2:
        return f"No other layout {'that fits can run as a trial' if others else 'fits'}."
    parts = {words: getattr(costs, name) for name, words in PARTS.items()}
    differences = {words: float(part[1] - part[0]) for words, part in parts.items()}
    lost = float(costs.step_s[1] - costs.step_s[0])
    share = lost / float(costs.step_s[0])
    second = f"The second-best layout ({named(of, 1)})"
    if share < EQUAL:
        return f"{second} takes as long: nothing that is computed here tells them apart."
    told = sorted((words for words in differences if abs(differences[words]) > 0.1 * lost), key=differences.__getitem__)
    listed = ", ".join(f"{words} {differences[words]:+.3g} s" for words in reversed(told))
    ahead = f"{second} takes {lost:.3g} s a step ({share:.1%}) more: {listed}"
    if draws.step_s.shape[-1] < 2:
        return f"{ahead}."
    slower = float(np.mean(draws.step_s[:, 1] > draws.step_s[:, 0]))
    doubt = ": too close to call" if QUANTILES[0] < slower < QUANTILES[1] else ""
    draw = f"in {slower:.0%} of {len(draws.step_s):,} random draws of what is assumed{doubt}"
    return f"{ahead}. It is the slower one {draw}."


def basis(job: Job) -> str:
    """What the figures rest on."""
    measured = " and the device_sample_s that was given" if job.model.device_sample_s is not None else ""
    return (
        f"Computed from the stated figures of {job.machine.name} (data sheets: --format json has the sources)"
        f"{measured} with efficiencies that published runs of other systems reached: nothing was measured on this "
        "machine."
    )


def notes(job: Job) -> tuple[str, ...]:
    """What is not known of the machine and the model, and what is taken instead."""
    machine, model = job.machine, job.model
    found = []
    if machine.inter_node.oversubscription is None and job.nodes > 1:
        found.append(f"oversubscription of {machine.name}'s network is not known: taken as 1")
    found += _of_input(job)
    if machine.node_max_w is None and machine.device.tdp_w is not None:
        found.append(f"power of {machine.name}'s nodes is not known: devices' and {TYPICAL.host_power:.0%} for hosts")
    if not model.shaped:
        found.append(f"{model.name} ({model.kind}): planned with data parallelism and ZeRO only")
        if model.activations_per_sample is None:
            found.append(f"activations of {model.name} are not known: only its model states are checked against memory")
    unmade = runnable.note(model)
    found += [unmade] if unmade else []
    if model.kind == "encoder-decoder":
        found.append("an encoder-decoder's layers count as their mean; activations as of the longer stack")
    return tuple(found)


def _of_input(job: Job) -> list[str]:
    """What is not known of storage and samples."""
    name, storage, model = job.machine.name, job.machine.storage, job.model
    if model.sample_bytes is None and model.bytes_per_token is None:
        return [f"bytes of a stored sample of {model.name} are not known: input is taken to keep up"]
    if storage.shared_read_bytes_per_s is None and job.staged:
        return [f"bandwidth of {name}'s shared file system is not known: nor when copying the dataset pays"]
    if storage.shared_read_bytes_per_s is None:
        return [f"bandwidth of {name}'s shared file system is not known: input is taken to keep up"]
    if storage.local_read_bytes_per_s is None:
        why = f"staging is not compared: storage.local_read_bytes_per_s of {name} is not known"
        return [f"input is assumed to be read from the shared file system ({why})"]
    return []
