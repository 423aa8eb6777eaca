"""What each caveat means, and what helps against it: for reports, pages and the documentation."""

from collections.abc import Mapping

# By name: the cause, a sentence; and what helps, a phrase.
CAVEATS: Mapping[str, tuple[str, str]] = {
    "not_cold": (
        "A cold trial found pages of its files in the page cache.",
        "Stop what else reads these files",
    ),
    "not_warm": (
        "The files did not fit the page cache.",
        "Fewer samples, or more memory",
    ),
    "not_direct": (
        "Direct reads left pages in the page cache.",
        "A format and file system that take O_DIRECT",
    ),
    "cache_unverified": (
        "What was in memory cannot be seen: of files the kernel hides it from this user, of a bucket it is not told.",
        "Measure files as their owner, or as root; a bucket's cache stays unknown",
    ),
    "counters_disagree": (
        "Bytes of the ranks and of their mount or disk differ by more than 5 %.",
        "More steps on a larger dataset; or find out who else reads there",
    ),
    "read_amplification": (
        "Storage gave above 1.1 times what was delivered, because the kernel reads ahead.",
        "measure.epochs: 1; a smaller read_ahead_kb",
    ),
    "short_window": (
        "So little was counted of streams that what the kernel reads ahead changes AU by more than 0.02.",
        "measure.epochs: 1, or more steps",
    ),
    "not_read": (
        "Readers gave more than a core copies: they handed on bytes that nobody read.",
        "A reader that copies whole samples",
    ),
    "not_page_locked": (
        "CUDA refused to page-lock the memory that loader workers fill, so that copies to the device block.",
        "A higher limit of locked memory (ulimit -l), or loader: threads",
    ),
    "not_steady": (
        "The rate changed within the trial, or the queue filled or drained.",
        "More steps, or an idle machine",
    ),
    "unstable": (
        "Repeats spread by more than 10 %.",
        "More repeats, an idle machine",
    ),
    "oversubscribed": (
        "Ranks times threads_per_rank are more than the cores.",
        "Fewer ranks or threads",
    ),
    "clock_set_back": (
        "The clock of the day was set back while it ran: the record's times, and its place among others, may be wrong.",
        "A clock that NTP keeps; measure again",
    ),
    "foreign_load": (
        "Other processes used the cores.",
        "An idle machine",
    ),
    "au_above_one": (
        'The ceiling was measured in a slower stretch than the steps. Above 1.05 the table says "not measurable".',
        "Measure again on an idle machine",
    ),
    "emulation_late": (
        "Ranks woke late from emulated steps.",
        "Fewer ranks on this machine",
    ),
    "slow_node": (
        "This node, or a device of it, gives less than the other nodes or than the site's threshold.",
        "Jobs without it (`sbatch --exclude`), until it is mended",
    ),
    "slow_link": (
        "A link between two nodes gives less than both give with others.",
        "A look at the cables, ports and routes between them",
    ),
    "unclean_devices": (
        "Others used the machine or its devices, or clocks were held back.",
        "A machine of one's own",
    ),
    "left_behind": (
        "The trial left processes, shared memory or device memory.",
        "Look at the trial's log",
    ),
    "not_counted": (
        "Memory, messages or FLOPs are missing, which are counted after all steps. What was timed is complete.",
        "A smaller batch where memory ran out; else the reason that the caveat tells",
    ),
    "lanes": (
        "Trials of the same sweep ran beside this one on other nodes, as `--lanes` once had them.",
        "A sweep of one trial at a time, where nodes share storage",
    ),
    "ranks_missing": (
        "Ranks of a watched loop did not report; the figures are those of the others.",
        "The script's own messages",
    ),
    "cut_short": (
        "The watched loop ended by an exception.",
        "The script's own messages",
    ),
    "memory_grows": (
        "The private memory of a process grows from step to step, beyond noise.",
        "Samples in arrays instead of lists of Python objects, where pages are copied; else a look at what is kept",
    ),
    "shared_memory_full": (
        "/dev/shm, through which loader workers hand on their batches, was nearly full.",
        "A larger one (docker run --shm-size), fewer workers, or a shorter queue",
    ),
    "traced": (
        "strace slowed each call of the readers: no figure is the trial's own.",
        "A trial without measure.profile: strace for figures",
    ),
}


def advice(name: str) -> str:
    """What helps against a caveat, then what it means."""
    cause, helps = CAVEATS.get(name, ("It is not among those that are documented.", "its arithmetic"))
    return f"{name}: {helps}. {cause}"
