"""What holds a training back, in sentences: of a verdict, its cause, and the numbers that it rests on."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.results.render.words import and_, counted, size

NAMES: Mapping[str, str] = {
    "storage": "storage",
    "preprocessing": "preparing the samples",
    "client_cpu": "CPU cores",
    "waiting": "waits of unknown cause",
    "compute": "computation",
    "communication": "communication",
    "imbalance": "a slower rank",
    "mixed": "more than one cause",
    "none": "nothing",
    "cannot_tell": "not known",
    "imbalance/fewer_batches": "uneven numbers of batches",
}
CAUSES: Mapping[str, str] = {
    "storage/reads": "waiting for reads of files",
    "storage/mapped_pages": "waiting for pages of mapped files to come from the disk",
    "storage/amplification": "waiting for reads that mostly fetch unneeded bytes",
    "preprocessing/decode": "computing on samples (decoding, augmenting)",
    "preprocessing/collate": "collating samples into batches",
    "preprocessing/hand_over": "passing batches on from the readers to the loop",
    "preprocessing/shuffle_buffer": "filling the shuffle buffer when a pass begins",
    "preprocessing": "computing in the readers",
    "client_cpu/cores": "computing on too few cores",
    "client_cpu/affinity": "waiting for a core that other threads are bound to as well",
    "waiting/lock": "waiting for a lock",
    "waiting/socket": "waiting for an answer over a socket",
    "waiting/child_process": "waiting for another process",
    "waiting/worker_start": "restarting workers at the start of each pass",
    "waiting/no_shard": "waiting for a few workers, while the others have no shard to read",
    "waiting/sleep": "sleep calls (a pause, or polling)",
    "waiting/checkpoint": "writing to files",
    "waiting/memory": "waiting for memory",
    "waiting": "waits of unknown cause (not reads)",
    "imbalance/slow_rank": "waiting for a slower rank",
    "imbalance/fewer_batches": "waiting for ranks with more batches",
    "compute/compute": "computing",
    "communication/communication": "communication between ranks",
    "cannot_tell": "something that benchsuite cannot see",
}
"""What time goes to, by verdict and cause."""
SAID: Mapping[str, str] = {
    "shards": "a sharded format",
    "more_workers": "more workers",
    "staging": "copying the data to a local disk first",
    "faster_storage": "faster storage",
    "read_ahead": "reading the files in order",
    "smaller_chunks": "chunks that hold one sample",
    "cheaper_data": "data that is cheaper to decode",
    "cheaper_collate": "a cheaper collate function",
    "fewer_tensors": "fewer, larger tensors per batch",
    "smaller_tensors": "smaller tensors (uint8 instead of float32, padded less)",
    "smaller_buffer": "a smaller shuffle buffer",
    "staying_workers": "keeping workers between passes (persistent_workers=True)",
    "more_cores": "more cores per rank",
    "fewer_threads": "fewer threads",
    "unbind": "letting each process use all cores",
    "share_less": "giving each worker its own copy of what the lock guards",
    "nearer_service": "asking the service for more at a time",
    "in_process": "doing that work in the reader, not in another process",
    "more_shards": "at least as many shards as workers",
    "no_sleep": "waiting for an event instead of sleeping",
    "rarer_checkpoints": "writing less often",
    "background_checkpoints": "writing in the background",
    "more_memory": "more memory",
    "even_work": "work that is dealt evenly",
    "even_batches": "the same number of samples on every rank",
    "faster_links": "faster links",
    "larger_batches": "larger batches",
    "more_microbatches": "more microbatches",
    "more_clients": "more workers with loader torch (each has its own client)",
    "idle_cores": "measuring again on idle cores: what other programs took hides what your job does",
    "quiet_disk": "measuring again while nothing else reads from this disk: those reads hide what your job does",
    "profile": "--profile torch: it measures exposed communication within compiled blocks",
}
NOTHING = "nothing that benchsuite knows of"
"""What helps where no remedy gains anything."""
SHARES: Mapping[str, str] = {
    "input_stall_fraction": "waiting for input",
    "cpu_contention_fraction": "waiting for a core",
    "worker_busy_fraction": "worker processes computing",
    "loading_thread_busy_fraction": "loading thread computing",
    "reader_queue_fraction": "readers waiting for a core",
    "throttled_fraction": "CPU quota used up",
    "memory_stall_fraction": "waiting for memory",
}
"""Shares that are measured by clocks of their own."""
UNKNOWN_RANKS = (
    'communication and waiting for other ranks are not measured: mark them on every rank with mark("communication")'
)
MARKED: Mapping[str, str] = {
    "h2d": "the copy to the device",
    "forward": "the forward part",
    "optimizer": "the optimizer",
    "backward": "the backward part",
    "load": "waiting for input",
    "other": "the rest of the loop body",
}
"""Marked parts of a step."""
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
    if "asks_no_loader" in numbers:
        return "the loop asks no loader, so that making its batches is a part of its body"
    if "input_stall_fraction" not in numbers:
        return "the input is in memory"
    who = f"rank {numbers['rank']}" if "rank" in numbers else "the loop"
    waits = f"{who} waits for input {percent(numbers['input_stall_fraction'])} of the time"
    if "au" not in numbers:
        return waits
    error = numbers.get("au_error")
    return f"AU {numbers['au']:.2f}{'' if error is None else f' ±{error:.1g}'}; {waits}"


def _of_readers(numbers: Numbers) -> list[str]:
    """What a reader of a trial does for a sample, by its own clocks."""
    read, decode = numbers.get("read_s_per_sample"), numbers.get("decode_s_per_sample")
    if read is None or decode is None:
        return []
    parts = {"unpacking row groups": "unpack_s_per_sample", "collating": "collate_s_per_sample"}
    told = [f"{ms(numbers[name])} for {part}" for part, name in parts.items() if numbers.get(name)]
    said = f"a reader takes {ms(read)} to read a sample and {ms(decode)} to prepare it"
    found = [said + (f" ({', '.join(told)})" if told else "")]
    if rate := numbers.get("loader_only_samples_per_s"):
        found.append(f"the loader alone gives {rate:.0f} samples/s")
    return found


def _beside(named: Sequence[str], numbers: Numbers) -> list[str]:
    """What else was measured that bears on what is named."""
    found, verdicts = [], {each.partition("/")[0] for each in named}
    if numbers.get("exchange_of_body_fraction") and "cannot_tell" in named:
        found.append(UNKNOWN_RANKS)
    if "cannot_tell" in named:
        found += _why_unseen(numbers)
    if "line" in numbers:
        rarely = numbers.get("line_steps_fraction", 1.0)
        often = f", which runs in one step of {1 / rarely:.0f}" if rarely < 0.5 else ""
        found.append(
            f"{percent(numbers['line_fraction'])} of {numbers['line_of']} is spent in {numbers['line']}{often}"
        )
    if "waiting/lock" in named and "locked_looks_fraction" in numbers:
        found.append(f"in {percent(numbers['locked_looks_fraction'])} of the looks a reader waited for a lock")
    if "waiting/worker_start" in named and "worker_start_s" in numbers:
        found.append(f"a worker takes {ms(numbers['worker_start_s'])} to start")
    if "preprocessing/hand_over" in named and "batch_tensors" in numbers:
        found.append(
            f"a batch has {counted(numbers['batch_tensors'], 'tensor')}, {size(numbers['batch_bytes'])} in all"
        )
        if "hand_over_s" in numbers:
            found.append(f"a worker computes {ms(numbers['hand_over_s'])} to pickle it and put it into shared memory")
    found += _long_steps(numbers)
    if "imbalance/fewer_batches" in named:
        found.append(f"one rank runs {numbers['fewest_steps']} steps, another {numbers['most_steps']}")
    if "slow_part" in numbers:
        slow, fast = (ms(numbers[f"{pace}_part_s"]) for pace in ("slow", "fast"))
        of = f"rank {numbers['slowest_rank']}", f"rank {numbers['fastest_rank']}"
        found.append(f"{MARKED[numbers['slow_part']]} takes {slow} on {of[0]} and {fast} on {of[1]}")
    if "slow_core_wait_fraction" in numbers:
        waits, other = (percent(numbers[f"{pace}_core_wait_fraction"]) for pace in ("slow", "fast"))
        found.append(f"rank {numbers['slowest_rank']} waits for a core {waits} of the time, the other {other}")
    if "imbalance/slow_rank" in named and "slowest_rank" in numbers:
        found += _of_clocks(numbers)
    if "slowest_in_steps_fraction" in numbers:
        found.append(_how_often(numbers))
    if "communication" in verdicts and numbers.get("bubble_fraction"):
        found.append(
            f"that includes waiting for other pipeline stages ({percent(numbers['bubble_fraction'])} of the step)"
        )
    if "storage" in verdicts:
        found += _of_storage(named, numbers)
    if "client_cpu" in verdicts:
        found += _of_cores(named, numbers)
    return found


def _of_clocks(numbers: Numbers) -> list[str]:
    """How much slower the slowest rank's cores and its device run, and whether heat held them back."""
    rank, found = f"rank {numbers['slowest_rank']}", []
    for name, what in (("cpu_mhz", "cores run"), ("device_mhz", "device runs")):
        if f"slow_{name}" in numbers:
            slow, fast = (f"{numbers[f'{pace}_{name}']:,.0f}" for pace in ("slow", "fast"))
            is_hot = name == "device_mhz" and "slow_device_c" in numbers
            hot = f" and {numbers['slow_device_c']:.0f} °C" if is_hot else ""
            found.append(f"{rank}'s {what} at {slow} MHz{hot}, another rank's at {fast} MHz")
    if "slow_cpu_throttled" in numbers:
        found.append(f"{rank}'s cores were held back for heat {counted(numbers['slow_cpu_throttled'], 'time')}")
    return found


def _why_unseen(numbers: Numbers) -> list[str]:
    """Why what a thread waits for is not known."""
    found = []
    if "hidden_looks_fraction" in numbers:
        found.append("the kernel does not show here what threads wait for (a hardened container, or gVisor)")
    if numbers.get("readers_seen") == 0:
        found.append("no process or thread is known that loads for it")
    return found


def _long_steps(numbers: Numbers) -> list[str]:
    if "long_steps_fraction" not in numbers:
        return []
    rarely = f"one step in {1 / numbers['long_steps_fraction']:.0f} takes {ms(numbers['long_step_s'])}"
    took = percent(numbers["long_steps_time_fraction"])
    return [f"{rarely} instead of {ms(numbers['other_step_s'])}, and these steps take {took} of the time"]


def _of_storage(named: Sequence[str], numbers: Numbers) -> list[str]:
    found = []
    if "storage/amplification" in named:
        found.append(f"the readers read {numbers['amplification']:.1f} times as many bytes as the batches need")
    elif "folder" in numbers:
        found.append(f"the files lie in {numbers['folder']}")
    if "saturation" in numbers:
        found.append(f"the loader reads these files at {percent(numbers['saturation'])} of a plain reader's rate")
    return found


def _of_cores(named: Sequence[str], numbers: Numbers) -> list[str]:
    found = []
    if numbers.get("reader_queue_fraction"):
        queued = percent(numbers["reader_queue_fraction"])
        found.append(f"readers that are ready to run wait for a core {queued} of the time")
    if numbers.get("cpu_contention_fraction"):
        found.append(f"the loop waits for a core {percent(numbers['cpu_contention_fraction'])} of the time")
    if numbers.get("client_is_full"):
        full = percent(numbers["client_thread_busy_fraction"])
        found.append(f"one thread of the bucket's client fills a core ({full}): more cores would not help")
    if numbers.get("throttled_fraction"):
        found.append(f"the CPU quota (cgroup) runs out in {percent(numbers['throttled_fraction'])} of its periods")
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
        step = f"a step of {ms(numbers['step_s_mean'])}{where}"
        return f"measuring takes {percent(numbers['overhead_fraction'])} of {step}, too much to see what the loop does"
    if name == "no_share":
        said = f'the share for "{SHARES[numbers["what"]]}" came out as {percent(numbers["fraction"])}'
        return f"a clock was wrong{where}: {said}; measure again"
    if name == "au_above_1":
        slower = "steps took longer with their input in memory than with the loader"
        return f"{slower} (AU {numbers['au']:.2f}), by more than noise; measure again"
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
        return f"{said}, and the training kept the rest busy"
    return f"{said}, and the training waited for a core {percent(numbers['cpu_contention_fraction'])} of the time"


def remedy(
    verdict: str, names: Sequence[str], numbers: Numbers, gains: Mapping[str, Numbers] | None = None
) -> str | None:
    """What helps, in words, with what a step would take; `NOTHING` where all is known to gain nothing, None where no
    remedy is known."""
    fitting, now = numbers.get("fitting_threads"), numbers.get("threads")
    how = f"threads_per_rank: {fitting}" if now is None else f"torch.set_num_threads({fitting}); now {now}"
    said = SAID if fitting is None else {**SAID, "fewer_threads": f"fewer threads ({how})"}
    gains = gains or {}
    words = [_with_gain(name, said[name], gains.get(name, {})) for name in names]
    if not words:
        return None if verdict in ("compute", "none", "cannot_tell") else NOTHING
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _with_gain(name: str, said: str, gain: Numbers) -> str:
    """A remedy with what it gives and needs: "staging (at best 99 ms a step instead of 198)"."""
    if "step_s" not in gain:
        return said
    pace, now = "at best" if gain["at_best"] else "about", ms(gain["now_s"]).removesuffix(" ms")
    gives = f"{pace} {ms(gain['step_s'])} a step instead of {now}"
    of_cores, workers = gain.get("of_cores"), gain.get("workers")
    if name == "more_workers" and workers is not None:
        said = f"{counted(workers, 'worker')} instead of {gain['workers_now'] or 'none'}"
        gives += "" if of_cores is None else f"; needs {gain['cores']:.1f} of {_cores(of_cores)} cores"
    elif name == "more_cores" and of_cores is not None:
        gives += f", with {_cores(of_cores)} cores" + ("" if workers is None else f" and {counted(workers, 'worker')}")
    return f"{said} ({gives})"


def _cores(count: float) -> str:
    return f"{count:.0f}" if count >= 1.5 else f"{count:.1f}"


def advice(remedy: str | None) -> str:
    """What to do next, in a sentence; empty where nothing is known to help."""
    if remedy == NOTHING:
        return f"{NOTHING[:1].upper()}{NOTHING[1:]} would make these steps shorter."
    return f"Try {remedy}." if remedy else ""


def too_few(steps: int) -> str:
    """Why a loop of so few counted steps has no answer."""
    return f"only {counted(steps, 'step')} {'was' if steps == 1 else 'were'} counted: too few for an answer"


def answer(verdict: str, cause: str | None, said: str, numbers: Numbers, alternatives: Sequence[str] = ()) -> str:
    """The answer in a sentence or two; `said` is the evidence."""
    if numbers.get("doubt") == "too_few":
        return f"{said[:1].upper()}{said[1:]}. Run at least 30."
    if verdict == "compute" and "asks_no_loader" in numbers:
        return _sentences("; ".join(["Computation takes the step", _input(numbers), *_long_steps(numbers)]))
    if verdict == "compute":
        stall = numbers.get("input_stall_fraction", 0.0)
        waits = "never waits for input" if stall < 0.01 else "hardly waits for input"
        said = f"Computation takes the step: the loop {waits} ({percent(stall)} of the time)"
        return _sentences("; ".join([said, *_long_steps(numbers)]))
    if verdict == "cannot_tell":
        return f"The bottleneck is unknown: {said[:1]}{_sentences(said)[1:]}"
    if verdict == "none":
        return "Nothing holds it back: the input keeps up with what is emulated."
    more = " Run at least 30 steps to be sure of the cause." if numbers.get("steps_are_few") else ""
    return f"{held(verdict, cause, numbers, alternatives)}. {_sentences(said)}{more}"


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
    if verdict in ("waiting", "imbalance") and said:
        return said
    return NAMES.get(name_of(verdict, cause), NAMES[verdict]) + (
        f": {said}" if cause not in (None, verdict) and said else ""
    )


def held(verdict: str, cause: str | None, numbers: Numbers, alternatives: Sequence[str] = ()) -> str:
    """The answer in a few words."""
    name, near = name_of(verdict, cause), [_near(each) for each in alternatives[:2]]
    if verdict == "mixed" and len(near) == 2:
        if near[0] == NAMES["compute"]:
            return f"Bottleneck: mostly computation, and {near[1]} takes a small part"
        return f"Bottleneck: both {near[0]} and {near[1]}"
    if verdict == "waiting":
        waits = [CAUSES[each] for each in alternatives if each.startswith("waiting/")]
        return f"Bottleneck: {CAUSES[name] if cause or not waits else and_(waits)}"
    if name == "imbalance/slow_rank" and _in_turn(numbers):
        return "Bottleneck: now one rank, now another is slower than the others"
    if name == "imbalance/slow_rank" and "slowest_rank" in numbers:
        return f"Bottleneck: rank {numbers['slowest_rank']:.0f} is slower than the others"
    return f"Bottleneck: {NAMES.get(name, NAMES[verdict])}"


STAYS_SHARE, MOSTLY_SHARE = 0.8, 0.65
"""A rank that holds the others back in so many steps is slow all the time; and so much of all that ranks wait for each
other is for one of them, or for several in turn."""


def _how_often(numbers: Numbers) -> str:
    """Whether the slowest rank is slow all the time."""
    share, rank = numbers["slowest_in_steps_fraction"], f"rank {numbers['slowest_rank']}"
    if share >= STAYS_SHARE:
        return f"{rank} is the slowest in {percent(share)} of the steps"
    said = f"it comes and goes: {rank} holds the others back in {percent(share)} of the steps"
    waiting = percent(numbers["slowest_of_waiting_fraction"])
    return f"{said}, and takes {waiting} of what ranks wait for each other" if _in_turn(numbers) else said


def _in_turn(numbers: Numbers) -> bool:
    """Whether other ranks hold the others back, too."""
    return bool(numbers.get("slowest_of_waiting_fraction", 1.0) < MOSTLY_SHARE)


def _near(name: str) -> str:
    """One of two between which it lies; a wait that has a cause by that."""
    return CAUSES[name] if name.startswith("waiting/") else NAMES[name.partition("/")[0]]
