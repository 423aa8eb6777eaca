"""Whether a dataset is large enough for a cold trial: its last counted step must still read from storage."""

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.blocks import layout, reader_samples
from benchsuite.storage.dataset.manifest import Format

MIN_STEPS = 2
"""Of measure.steps."""


def too_few_for_cold(spec: TrialSpec, form: Format, share: int, lanes: int) -> str | None:
    """Why a cold trial would read from memory, with the arithmetic and what would fit; None where it would not.

    `share` are the samples of the reader that has fewest, of `lanes` readers in all.
    """
    if spec.data.source != "storage" or spec.data.cache != "cold":
        return None
    batches, samples = reader_samples(spec)
    mixes = form.sequential and spec.data.shuffle and spec.data.loader != "dali"
    buffered = spec.data.shuffle_buffer if mixes else 0
    if samples + buffered <= share:
        return None
    plus = f" and holds {buffered} more (data.shuffle_buffer)" if buffered else ""
    return (
        f"cold: each of {lanes} readers takes {batches} batches x {spec.rank_batch} = {samples} samples{plus}, its "
        f"share of the dataset is {share}: the rest would come from memory ({_batches_in_words(spec)}); "
        f"{_what_fits(spec, share, samples, buffered)}"
    )


def _batches_in_words(spec: TrialSpec) -> str:
    """Where a rank's batches come from."""
    plan, queue, readers = layout(spec), spec.data.queue_batches, spec.data.readers
    counted = plan.loader_batches - 1 - plan.held - plan.drains * plan.drained_steps
    parts = {
        f"counted for measure.steps {spec.measure.steps}": counted,
        "first": 1,
        "uncounted while the queue drains": plan.drains * plan.drained_steps,
        "asked for ahead": plan.held + queue,
    }
    told = " + ".join(f"{count} {what}" for what, count in parts.items() if count)
    return (
        f"a rank takes {told} = {plan.loader_batches + queue} batches, by {readers} reader{'s' if readers > 1 else ''}"
    )


def _what_fits(spec: TrialSpec, share: int, samples: int, buffered: int) -> str:
    """The most steps, or the largest shuffle buffer, with which this dataset would do."""
    found = []
    steps = _most_steps(spec, share - buffered)
    if steps:
        found.append(f"measure.steps {steps} or fewer fits")
    if buffered and samples <= share:
        found.append(f"data.shuffle_buffer {share - samples} or less fits")
    or_buffer = ", a smaller data.shuffle_buffer" if buffered and samples > share else ""
    return "; or ".join([*found, f"fewer steps, a smaller batch{or_buffer} or more data" if not found else "more data"])


def _most_steps(spec: TrialSpec, room: int) -> int:
    """The most steps that can be asked for whose samples are within `room`; 0 where there are none."""
    low, high = 0, spec.measure.steps
    while low < high:
        middle = (low + high + 1) // 2
        tried = spec.model_copy(update={"measure": spec.measure.model_copy(update={"steps": middle})})
        low, high = (middle, high) if reader_samples(tried)[1] <= room else (low, middle - 1)
    return low if low >= MIN_STEPS else 0
