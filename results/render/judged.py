"""What holds a training back, in sentences: of a verdict, its cause, and the numbers that it rests on."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.results.render.words import and_, counted

NAMES: Mapping[str, str] = {
    "storage": "storage",
    "preprocessing": "preparing the samples",
    "client_cpu": "CPU cores",
    "waiting": "waiting",
    "compute": "computation",
    "communication": "communication",
    "imbalance": "a slower rank",
    "mixed": "more than one cause",
    "none": "nothing",
    "cannot_tell": "not known",
}
CAUSES: Mapping[str, str] = {
    "storage/reads": "waiting for reads of files",
    "storage/mapped_pages": "waiting for pages of mapped files to come from the disk",
    "storage/amplification": "waiting for reads, most of whose bytes are of no use",
    "preprocessing/decode": "computing on samples (decoding, augmenting)",
    "preprocessing/collate": "putting samples together to batches (collate)",
    "preprocessing/hand_over": "passing batches on from the readers to the loop",
    "preprocessing/shuffle_buffer": "filling the shuffle buffer when a pass begins",
    "preprocessing": "computing in the readers",
    "client_cpu/cores": "waiting for a core, or computing that does",
    "client_cpu/affinity": "waiting for a core that others are bound to as well",
    "waiting/lock": "waiting for a lock",
    "waiting/socket": "waiting for an answer over a socket",
    "waiting/child_process": "waiting for another process",
    "waiting/worker_start": "starting workers anew when a pass begins",
    "waiting/no_shard": "waiting for few workers, since the others have nothing to read",
    "waiting/sleep": "sleeping",
    "waiting/checkpoint": "writing to files",
    "waiting/memory": "waiting for memory",
    "waiting": "waits, not for reads",
    "imbalance/slow_rank": "waiting for a slower rank",
    "imbalance/fewer_batches": "ranks with fewer batches",
    "compute/compute": "computing",
    "communication/communication": "exchanging with other ranks",
    "cannot_tell": "what cannot be seen from outside",
}
"""What time goes to, by verdict and cause."""
SAID: Mapping[str, str] = {
    "shards": "a format of shards",
    "more_workers": "more workers",
    "staging": "copying the data to a local disk first",
    "faster_storage": "faster storage",
    "read_ahead": "reading the files in order, or into memory",
    "smaller_chunks": "chunks that hold one sample, or reading in the order in which they lie",
    "cheaper_data": "data that cost less to decode",
    "cheaper_collate": "a cheaper collate function, or samples of one shape",
    "fewer_tensors": "fewer and larger tensors a batch",
    "longer_queue": "a longer queue (prefetch_factor)",
    "smaller_buffer": "a smaller shuffle buffer",
    "staying_workers": "workers that stay from pass to pass (persistent_workers=True)",
    "more_cores": "more cores a rank",
    "fewer_threads": "fewer threads or workers",
    "unbind": "letting each process use all cores",
    "share_less": "something of its own for each worker in place of what the lock guards",
    "nearer_service": "a service that is nearer, or asked for more at a time",
    "in_process": "doing in the reader what another process does",
    "more_shards": "at least as many shards as workers",
    "no_sleep": "waiting for an event in place of sleeping",
    "rarer_checkpoints": "writing more rarely",
    "background_checkpoints": "writing in the background",
    "more_memory": "more memory, or fewer workers",
    "even_work": "work that is dealt evenly, and the same clock and load on all nodes",
    "even_batches": "as many samples for each rank",
    "faster_links": "faster links",
    "larger_batches": "larger batches, or gradients accumulated over several",
}
UNKNOWN_RANKS = "communication and waiting for other ranks are not known: mark them"
Numbers = Mapping[str, Any]


def name_of(verdict: str, cause: str | None) -> str:
    """A verdict and its cause as records write both."""
    return f"{verdict}/{cause}" if cause else verdict


def evidence(verdict: str, cause: str | None, numbers: Numbers, alternatives: Sequence[str] = ()) -> str:
    """The numbers that a verdict rests on, as clauses of one sentence."""
    said = [_input(numbers)]
    named = list(alternatives) or [name_of(verdict, cause)]
    said += [f"{percent(numbers[f'{each}_fraction'])} goes to {CAUSES[each]}" for each in named if _has(numbers, each)]
    said += _beside(named, numbers)
    return "; ".join(said)


def _has(numbers: Numbers, name: str) -> bool:
    return name in CAUSES and f"{name}_fraction" in numbers


def _input(numbers: Numbers) -> str:
    rank = f" of rank {numbers['rank']}" if "rank" in numbers else ""
    waits = f"{percent(numbers.get('input_stall_fraction', 0.0))} of the step{rank} waits for input"
    return f"AU {numbers['au']:.2f}; {waits}" if "au" in numbers else waits


def _beside(named: Sequence[str], numbers: Numbers) -> list[str]:
    """What else was measured that bears on what is named."""
    found = []
    if numbers.get("exchange_of_body_fraction") and "cannot_tell" in named:
        found.append(UNKNOWN_RANKS)
    if "line" in numbers:
        rarely = numbers.get("line_steps_fraction", 1.0)
        often = f", in one step of {1 / rarely:.0f}" if rarely < 0.5 else ""
        found.append(f"{percent(numbers['line_fraction'])} of {numbers['line_of']} is in {numbers['line']}{often}")
    if "storage/reads" in named and "folder" in numbers:
        found.append(f"the files lie in {numbers['folder']}")
    if "storage/amplification" in named:
        found.append(f"{numbers['amplification']:.1f} times as many bytes are read as batches hold")
    if {"client_cpu/cores", "client_cpu/affinity"} & {*named}:
        found.append(
            f"readers wait for a core {percent(numbers.get('reader_queue_fraction', 0.0))} of the time they want one"
        )
        if numbers.get("throttled_fraction"):
            found.append(f"a quota on cores is used up {percent(numbers['throttled_fraction'])} of the time")
    if "client_cpu/affinity" in named:
        found.append(f"{numbers['idle_cores']:.1f} cores are idle meanwhile")
    return found


def remedy(names: Sequence[str]) -> str | None:
    """What helps, in words; None where nothing is known to."""
    words = [SAID[name] for name in names]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words) or None


def too_few(steps: int) -> str:
    """Why a loop of so few counted steps has no answer."""
    return f"only {counted(steps, 'step')} {'was' if steps == 1 else 'were'} counted: too few for an answer"


def answer(verdict: str, cause: str | None, said: str, numbers: Numbers, alternatives: Sequence[str] = ()) -> str:
    """The answer in a sentence or two; `said` is the evidence."""
    if numbers.keys() == {"steps"}:
        return f"{said[:1].upper()}{said[1:]}. Run at least 30."
    if verdict == "compute":
        stall = numbers.get("input_stall_fraction", 0.0)
        waits = "never waits for input" if stall < 0.01 else "hardly waits for input"
        return f"Computation: the loop {waits} ({percent(stall)} of the time), and its cores are busy."
    if verdict == "cannot_tell":
        return f"What holds it back cannot be told: {said}."
    return f"{held(verdict, cause, alternatives)}. {said[:1].upper()}{said[1:]}."


def percent(share: float) -> str:
    """31 %, and 0.3 % where that is less than one."""
    return f"{share:.1%}".replace("%", " %") if 0.0005 <= share < 0.01 else f"{share:.0%}".replace("%", " %")


def held(verdict: str, cause: str | None, alternatives: Sequence[str] = ()) -> str:
    """The answer in a few words."""
    if verdict == "compute":
        return "Computation"
    if verdict == "mixed" and alternatives:
        return f"Bottleneck: between {and_([NAMES[each.partition('/')[0]] for each in alternatives])}"
    if verdict == "cannot_tell":
        return "What holds it back cannot be told"
    return f"Bottleneck: {NAMES[verdict]}"
