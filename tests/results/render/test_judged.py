"""Sentences of verdicts: a page of them, for a reviewer to read."""

from typing import Any

from benchsuite.results.render import judged
from tests.helpers.snapshots import compare_messages

STARVED = {"input_stall_fraction": 0.62, "steps": 400}
TRIAL = STARVED | {"au": 0.38, "read_s_per_sample": 0.0291, "decode_s_per_sample": 0.0042}


def often(steps: float, waiting: float) -> dict[str, float]:
    """In which share of the steps it holds the others back, and its share of what ranks wait for each other."""
    return {"slowest_in_steps_fraction": steps, "slowest_of_waiting_fraction": waiting}


def of(
    verdict: str, share: float = 0.58, **numbers: Any
) -> tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    return verdict, STARVED | {f"{verdict}_fraction": share} | numbers, (), ()


CASES: dict[str, Any] = {
    "files": (*of("storage/reads", folder="/scratch/imagenet")[:3], ("shards", "more_workers", "staging")),
    "a whole chunk for one sample": (*of("storage/amplification", amplification=29.4)[:3], ("smaller_chunks",)),
    "a trial on a slow disk": (
        "storage/reads",
        TRIAL | {"storage/reads_fraction": 0.55, "saturation": 0.97, "loader_only_samples_per_s": 61.2},
        (),
        ("shards", "faster_storage"),
    ),
    "a trial that collates": (
        "preprocessing/collate",
        TRIAL | {"preprocessing/collate_fraction": 0.5, "collate_s_per_sample": 0.0031, "unpack_s_per_sample": 0.0005},
        (),
        ("more_workers", "more_cores", "cheaper_collate"),
    ),
    "a quota": of("client_cpu/cores", reader_queue_fraction=0.7, cpu_contention_fraction=0.2, throttled_fraction=0.8),
    "bound to one core": of("client_cpu/affinity", reader_queue_fraction=0.7, idle_cores=0.94),
    "a bucket's client": of("client_cpu/cores", client_thread_busy_fraction=0.97),
    "a checkpoint": of(
        "waiting/checkpoint",
        line="torch.save (train.py:41)",
        line_fraction=0.87,
        line_of="the loop's body",
        line_steps_fraction=0.1,
        long_steps_fraction=0.1,
        long_steps_time_fraction=0.97,
        long_step_s=0.28,
        other_step_s=0.0007,
    ),
    "a lock": of("waiting/lock", locked_looks_fraction=0.93),
    "workers that start": of("waiting/worker_start", worker_start_s=1.83),
    "a wait that nothing names": of("waiting"),
    "one rank of four": of("waiting/sleep", rank=2),
    "a kernel that hides calls": ("cannot_tell", STARVED | {"hidden_looks_fraction": 0.9}, (), ()),
    "a queue that others fill": ("cannot_tell", STARVED | {"readers_seen": 0}, (), ()),
    "a slow rank": of("imbalance/slow_rank", slowest_rank=1),
    "a rank that is always slow": of("imbalance/slow_rank", slowest_rank=1, **often(0.97, 1.0)),
    "a rank that comes and goes": of("imbalance/slow_rank", slowest_rank=1, **often(0.12, 0.9)),
    "ranks that are slow in turn": of("imbalance/slow_rank", slowest_rank=1, **often(0.31, 0.35)),
    "a slow part": of(
        "imbalance/slow_rank", slow_part="forward", slowest_rank=1, fastest_rank=0, slow_part_s=0.1, fast_part_s=0.0004
    ),
    "a hot device": of(
        "imbalance/slow_rank",
        slowest_rank=3,
        slow_device_mhz=1215.0,
        fast_device_mhz=1980.0,
        slow_device_c=84.0,
        slow_cpu_mhz=1200.0,
        fast_cpu_mhz=3000.0,
        slow_cpu_throttled=12,
    ),
    "fewer batches": of("imbalance/fewer_batches", fewest_steps=144, most_steps=480),
    "a pipeline": of("communication/communication", bubble_fraction=0.4),
    "computation": ("compute/compute", {"input_stall_fraction": 0.003}, (), ()),
    "computation that is rarely long": (
        "compute/compute",
        {
            "input_stall_fraction": 0.03,
            "long_steps_fraction": 0.02,
            "long_steps_time_fraction": 0.4,
            "long_step_s": 1.2,
            "other_step_s": 0.04,
        },
        (),
        (),
    ),
    "an emulated device": ("none", {"input_stall_fraction": 0.0, "au": 1.0}, (), ()),
    "between two verdicts": (
        "mixed",
        TRIAL | {"storage/reads_fraction": 0.3, "preprocessing/decode_fraction": 0.28, "au_error": 0.02},
        ("storage/reads", "preprocessing/decode"),
        ("shards", "more_workers", "cheaper_data"),
    ),
    "between two causes": (
        "waiting",
        STARVED | {"waiting/lock_fraction": 0.3, "waiting/socket_fraction": 0.28},
        ("waiting/lock", "waiting/socket"),
        ("share_less",),
    ),
    "ranks that exchange unmarked": of("cannot_tell", exchange_of_body_fraction=0.6),
    "too few steps": ("cannot_tell", {"doubt": "too_few", "steps": 12}, (), ()),
    "a harness that takes too long": (
        "cannot_tell",
        {"doubt": "overhead", "overhead_fraction": 0.09, "step_s_mean": 0.0004, "rank": 3},
        (),
        (),
    ),
    "a share that is none": (
        "cannot_tell",
        {"doubt": "no_share", "what": "throttled_fraction", "fraction": 1.5},
        (),
        (),
    ),
    "quicker than without a loader": ("cannot_tell", {"doubt": "au_above_1", "au": 1.21}, (), ()),
    "others on the cores": (
        "cannot_tell",
        {"doubt": "foreign_load", "foreign_cpu_cores": 1.5, "cores": 2, "cpu_contention_fraction": 0.73},
        (),
        ("idle_cores",),
    ),
    "others on the rest": ("cannot_tell", {"doubt": "foreign_load", "foreign_cpu_cores": 1.5, "cores": 2}, (), ()),
    "others on the disk": (
        "cannot_tell",
        {"doubt": "others_read", "others_read_bytes": 12e6, "mount_read_bytes": 56e6},
        (),
        ("quiet_disk",),
    ),
    "compiled blocks": ("cannot_tell", {"doubt": "hidden_communication"}, (), ("profile",)),
}


STEP = {"now_s": 0.198, "of_cores": 2.0, "cores": 1.9}
GAINS: dict[str, dict[str, Any]] = {
    "more_workers": {**STEP, "step_s": 0.099, "at_best": False, "workers": 2, "workers_now": 1},
    "cheaper_collate": {**STEP, "step_s": 0.04, "at_best": True},
    "more_cores": {**STEP, "step_s": 0.0512, "at_best": False, "of_cores": 4.0, "cores": 3.9, "workers": 4},
}


def sentences(name: str, numbers: dict[str, Any], alternatives: tuple[str, ...], remedies: tuple[str, ...]) -> str:
    verdict, _, cause = name.partition("/")
    said = judged.evidence(verdict, cause or None, numbers, alternatives)
    gains = {each: GAINS[each] for each in remedies if each in GAINS}
    helps = (
        judged.advice(judged.remedy(verdict, remedies, numbers, gains)) if remedies or name == "waiting/lock" else ""
    )
    return "\n".join([judged.answer(verdict, cause or None, said, numbers, alternatives), *([helps] if helps else [])])


def test_what_is_said_of_each_verdict() -> None:
    compare_messages("judged", CASES, sentences)


def test_every_cause_and_every_remedy_has_words() -> None:
    from benchsuite.analysis.judging.remedies import REMEDIES

    assert {*REMEDIES} <= {*judged.CAUSES}
    assert {name for names in REMEDIES.values() for name in names} <= {*judged.SAID}
