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
    "imbalance/fewer_batches": "ranks with fewer batches than others",
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
    "client_cpu/cores": "computing on too few cores",
    "client_cpu/affinity": "waiting for a core that others are bound to as well",
    "waiting/lock": "waiting for a lock",
    "waiting/socket": "waiting for an answer over a socket",
    "waiting/child_process": "waiting for another process",
    "waiting/worker_start": "starting workers anew when a pass begins",
    "waiting/no_shard": "waiting for few workers, since the others have nothing to read",
    "waiting/sleep": "sleeping",
    "waiting/checkpoint": "writing to files",
    "waiting/memory": "waiting for memory",
    "waiting": "waiting, not for reads, and for what is not known",
    "imbalance/slow_rank": "waiting for a slower rank",
    "imbalance/fewer_batches": "waiting for ranks with more batches",
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
    "read_ahead": "reading the files in order",
    "smaller_chunks": "chunks that hold one sample",
    "cheaper_data": "data that cost less to decode",
    "cheaper_collate": "a cheaper collate function",
    "fewer_tensors": "fewer and larger tensors a batch",
    "longer_queue": "a longer queue (prefetch_factor)",
    "smaller_buffer": "a smaller shuffle buffer",
    "staying_workers": "workers that stay from pass to pass (persistent_workers=True)",
    "more_cores": "more cores a rank",
    "fewer_threads": "fewer threads",
    "unbind": "letting each process use all cores",
    "share_less": "something of its own for each worker in place of what the lock guards",
    "nearer_service": "asking the service for more at a time",
    "in_process": "doing in the reader what another process does",
    "more_shards": "at least as many shards as workers",
    "no_sleep": "waiting for an event in place of sleeping",
    "rarer_checkpoints": "writing more rarely",
    "background_checkpoints": "writing in the background",
    "more_memory": "more memory",
    "even_work": "work that is dealt evenly",
    "even_batches": "as many samples for each rank",
    "faster_links": "faster links",
    "larger_batches": "larger batches",
    "more_microbatches": "more microbatches",
    "more_clients": "more workers with loader torch, each of which has a client of its own",
    "idle_cores": "measuring again on idle cores: this says nothing of the job itself",
    "quiet_disk": "measuring again while nothing else reads from this disk: this says nothing of the job itself",
    "profile": "--profile torch, which tells exposed communication within compiled blocks",
}
SHARES: Mapping[str, str] = {
    "input_stall_fraction": "waiting for input",
    "cpu_contention_fraction": "waiting for a core",
    "worker_busy_fraction": "what the worker processes compute",
    "loading_thread_busy_fraction": "what the loading thread computes",
    "reader_queue_fraction": "the readers' waiting for a core",
    "throttled_fraction": "a quota on cores that is used up",
    "memory_stall_fraction": "waiting for memory",
}
"""Shares that are measured by clocks of their own."""
UNKNOWN_RANKS = "communication and waiting for other ranks are not known: mark them"
Numbers = Mapping[str, Any]


def name_of(verdict: str, cause: str | None) -> str:
    """A verdict and its cause as records write both."""
    return f"{verdict}/{cause}" if cause else verdict


def evidence(verdict: str, cause: str | None, numbers: Numbers, alternatives: Sequence[str] = ()) -> str:
    """The numbers that a verdict rests on, as clauses of one sentence."""
    if "doubt" in numbers:
        return doubt(numbers)
    named = list(alternatives) or [name_of(verdict, cause)]
    goes = [f"{percent(numbers[f'{each}_fraction'])} to {CAUSES[each]}" for each in named if _has(numbers, each)]
    shares = [goes[0].replace(" to ", " of the step goes to ", 1), *goes[1:]] if goes else []
    return "; ".join(
        [_input(numbers), *_of_readers(numbers), *([", ".join(shares)] if shares else []), *_beside(named, numbers)]
    )


def _has(numbers: Numbers, name: str) -> bool:
    return name in CAUSES and f"{name}_fraction" in numbers


def _input(numbers: Numbers) -> str:
    if "input_stall_fraction" not in numbers:
        return "the input is in memory"
    who = f"rank {numbers['rank']}" if "rank" in numbers else "the loop"
    waits = f"{who} waits for input {percent(numbers['input_stall_fraction'])} of the time"
    if "au" not in numbers:
        return waits
    error = numbers.get("au_error")
    return f"AU {numbers['au']:.2f}{'' if error is None else f' ±{error:.2g}'}; {waits}"


def _of_readers(numbers: Numbers) -> list[str]:
    """What a reader of a trial does for a sample, by its own clocks."""
    read, decode = numbers.get("read_s_per_sample"), numbers.get("decode_s_per_sample")
    if read is None or decode is None:
        return []
    parts = {"unpacking row groups": "unpack_s_per_sample", "collating": "collate_s_per_sample"}
    told = [f"{numbers[name] * 1e3:.2f} ms of it {part}" for part, name in parts.items() if numbers.get(name)]
    said = f"a reader takes {read * 1e3:.2f} ms to read a sample and {decode * 1e3:.2f} ms to prepare it"
    found = [said + (f" ({', '.join(told)})" if told else "")]
    if rate := numbers.get("loader_only_samples_per_s"):
        found.append(f"the loader alone gives {rate:.0f} samples/s")
    return found


def _beside(named: Sequence[str], numbers: Numbers) -> list[str]:
    """What else was measured that bears on what is named."""
    found, verdicts = [], {each.partition("/")[0] for each in named}
    if numbers.get("exchange_of_body_fraction") and "cannot_tell" in named:
        found.append(UNKNOWN_RANKS)
    if "line" in numbers:
        rarely = numbers.get("line_steps_fraction", 1.0)
        often = f", in one step of {1 / rarely:.0f}" if rarely < 0.5 else ""
        found.append(f"{percent(numbers['line_fraction'])} of {numbers['line_of']} is in {numbers['line']}{often}")
    found += _long_steps(numbers)
    if "imbalance/fewer_batches" in named:
        found.append(f"one rank has {numbers['fewest_steps']} steps, another {numbers['most_steps']}")
    if "slow_part" in numbers:
        slow, fast = (ms(numbers[f"{pace}_part_s"]) for pace in ("slow", "fast"))
        of = f"rank {numbers['slowest_rank']}", f"rank {numbers['fastest_rank']}"
        found.append(f"{numbers['slow_part']} takes {slow} on {of[0]} and {fast} on {of[1]}")
    elif "imbalance" in verdicts and "slowest_rank" in numbers:
        found.append(f"the slowest is rank {numbers['slowest_rank']:.0f}")
    if "communication" in verdicts and numbers.get("bubble_fraction"):
        found.append(f"{percent(numbers['bubble_fraction'])} of the step waits for other stages of the pipeline")
    if "storage" in verdicts:
        found += _of_storage(named, numbers)
    if "client_cpu" in verdicts:
        found += _of_cores(named, numbers)
    return found


def _long_steps(numbers: Numbers) -> list[str]:
    if "long_steps_fraction" not in numbers:
        return []
    rarely = f"one step in {1 / numbers['long_steps_fraction']:.0f} takes {ms(numbers['long_step_s'])}"
    took = percent(numbers["long_steps_time_fraction"])
    return [f"{rarely} where the others take {ms(numbers['other_step_s'])}: together {took} of the time"]


def _of_storage(named: Sequence[str], numbers: Numbers) -> list[str]:
    found = []
    if "storage/amplification" in named:
        found.append(f"{numbers['amplification']:.1f} times as many bytes are read as batches hold")
    elif "folder" in numbers:
        found.append(f"the files lie in {numbers['folder']}")
    if "saturation" in numbers:
        found.append(f"{percent(numbers['saturation'])} of what a plain reader gets of these files is read")
    return found


def _of_cores(named: Sequence[str], numbers: Numbers) -> list[str]:
    found = []
    if numbers.get("reader_queue_fraction"):
        found.append(f"readers wait for a core {percent(numbers['reader_queue_fraction'])} of the time they want one")
    if numbers.get("cpu_contention_fraction"):
        found.append(f"the loop waits for a core {percent(numbers['cpu_contention_fraction'])} of the time")
    if "client_thread_busy_fraction" in numbers:
        full = percent(numbers["client_thread_busy_fraction"])
        found.append(f"the busiest thread of the bucket's client fills {full} of a core")
    if numbers.get("throttled_fraction"):
        found.append(f"a quota on cores is used up {percent(numbers['throttled_fraction'])} of the time")
    if "client_cpu/affinity" in named:
        found.append(f"{numbers['idle_cores']:.1f} cores are idle meanwhile")
    return found


def doubt(numbers: Numbers) -> str:
    """Why nothing can be concluded from what was measured."""
    where = f" on rank {numbers['rank']}" if "rank" in numbers else ""
    name = numbers["doubt"]
    if name == "too_few":
        return too_few(numbers["steps"])
    if name == "overhead":
        step = f"a step of {numbers['step_s_mean'] * 1e6:,.1f} us{where}"
        return f"measuring takes {percent(numbers['overhead_fraction'])} of {step}, which hides what the loop does"
    if name == "no_share":
        share = f"{percent(numbers['fraction'])} of the time{where}"
        return f"{SHARES[numbers['what']]} was measured as {share}, which cannot be right"
    if name == "au_above_1":
        return f"AU {numbers['au']:.2f} is above 1 by more than its noise: steps were slower with their input in memory"
    if name == "foreign_load":
        return _foreign(numbers)
    if name == "others_read":
        others, disk = numbers["others_read_bytes"] / 1e6, numbers["mount_read_bytes"] / 1e6
        return f"other programs read {others:.3g} of the {disk:.3g} MB that the disk gave meanwhile"
    return "communication runs within compiled blocks, where it is not timed"


def _foreign(numbers: Numbers) -> str:
    cores = counted(int(numbers["cores"]), "core")
    said = f"other programs kept {numbers['foreign_cpu_cores']:.1f} of {cores} busy"
    if "cpu_contention_fraction" not in numbers:
        return f"{said}, and the training the rest"
    return f"{said}, and the training waited for a core {percent(numbers['cpu_contention_fraction'])} of the time"


def remedy(names: Sequence[str], numbers: Numbers) -> str | None:
    """What helps, in words; None where nothing is known to."""
    fitting = numbers.get("fitting_threads")
    said = SAID if fitting is None else {**SAID, "fewer_threads": f"threads_per_rank: {fitting}"}
    words = [said[name] for name in names]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words) or None


def too_few(steps: int) -> str:
    """Why a loop of so few counted steps has no answer."""
    return f"only {counted(steps, 'step')} {'was' if steps == 1 else 'were'} counted: too few for an answer"


def answer(verdict: str, cause: str | None, said: str, numbers: Numbers, alternatives: Sequence[str] = ()) -> str:
    """The answer in a sentence or two; `said` is the evidence."""
    if numbers.get("doubt") == "too_few":
        return f"{said[:1].upper()}{said[1:]}. Run at least 30."
    if verdict == "compute":
        stall = numbers.get("input_stall_fraction", 0.0)
        waits = "never waits for input" if stall < 0.01 else "hardly waits for input"
        said = f"Computation: the loop {waits} ({percent(stall)} of the time), and its cores are busy"
        return _sentences("; ".join([said, *_long_steps(numbers)]))
    if verdict == "cannot_tell":
        return f"What holds it back cannot be told: {said}."
    if verdict == "none":
        return "Nothing holds it back: the input keeps up with what is emulated."
    return f"{held(verdict, cause, alternatives)}. {_sentences(said)}"


def _sentences(clauses: str) -> str:
    return " ".join(f"{each[:1].upper()}{each[1:]}." for each in clauses.split("; "))


def percent(share: float) -> str:
    """31 %, and 0.3 % where that is less than one."""
    return f"{share:.1%}".replace("%", " %") if 0.0005 <= share < 0.01 else f"{share:.0%}".replace("%", " %")


def ms(seconds: float) -> str:
    """Milliseconds in three digits: 0.7 ms, 280 ms, 1,200 ms."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.0995 else f"{seconds * 1e3:.3g} ms"


def limit(verdict: str, cause: str | None) -> str:
    """What limits a training, after "limited by"."""
    said = CAUSES.get(name_of(verdict, cause))
    if verdict == "waiting" and said:
        return said
    return NAMES.get(name_of(verdict, cause), NAMES[verdict]) + (
        f": {said}" if cause not in (None, verdict) and said else ""
    )


def held(verdict: str, cause: str | None, alternatives: Sequence[str] = ()) -> str:
    """The answer in a few words."""
    if verdict == "compute":
        return "Computation"
    if verdict == "mixed" and alternatives:
        return f"Bottleneck: between {and_([NAMES[each.partition('/')[0]] for each in alternatives])}"
    if verdict == "cannot_tell":
        return "What holds it back cannot be told"
    name = name_of(verdict, cause)
    return f"Bottleneck: {CAUSES[name] if verdict == 'waiting' and cause else NAMES.get(name, NAMES[verdict])}"
