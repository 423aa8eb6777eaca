"""What a trial may be asked, how a mistake is told, and ids that do not move."""

import re
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.contract.session import check_session
from benchsuite.contract.trial_spec import (
    TrialSpec,
    match_id,
    parse_sweep,
    parse_trial,
    point_id,
    revision_fields,
    trial_id,
)
from benchsuite.workloads import revisions
from benchsuite.workloads.revisions import Revision
from benchsuite.workloads.spec import Parallelism
from tests.helpers.made import made_spec
from tests.helpers.snapshots import compare_messages

BASE: dict[str, Any] = {"workload": "resnet50", "batch_size": 4}


def refused(value: dict[str, Any]) -> str:
    """The one line that refuses a trial."""
    with pytest.raises(UserError) as caught:
        parse_trial(value)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults():
    spec = parse_trial(BASE)
    assert (spec.variant, spec.device, spec.precision, spec.parallelism) == ("reference", "auto", "fp32", "none")
    assert (spec.data.format, spec.data.source, spec.data.cache) == ("files", "storage", "cold")
    assert (spec.measure.repeats, spec.measure.timeout_s) == (3, 900)


def test_mistakes_in_trials() -> None:
    """Unknown keys, values that cannot be, and what is not supported yet."""
    cases = [
        {"batchsize": 4},
        {"data": {"cahce": "cold"}},
        {"measure": {"step": 3}},
        {"num_workers": 3},
        {"xyzzy": 3},
        {"model": {"hidden": 64}},
        {"parallelism": {"ttp": 2}},
        {"model": {"num_heads": 0}},
        {"model": {"vocab_size": 100}},
        {"model": {"hidden_size": 64.5}},
        {"precision": "fp61"},
        {"workload": "resnet51"},
        {"parallelism": "dpd"},
        {"parallelism": {"tp": 0}},
        {"parallelism": {"schedule": "gpip"}},
        {"parallelism": 5},
        {"optimizer": "adamx"},
        {"comm_hook": "fp8"},
        {"data": {"format": "webdatset"}},
        {"data": {"loader": "troch"}},
        {"data": {"cache": "warmish"}},
        {"data": {"source": "store"}},
        {"device": "gpu"},
        {"batch_size": 0},
        {"batch_size": -4},
        {"batch_size": 2.5},
        {"batch_size": "4"},
        {"batch_size": True},
        {"world_size": 0},
        {"threads_per_rank": 0},
        {"measure": {"steps": 1}},
        {"measure": {"repeats": 0}},
        {"measure": {"timeout_s": 0}},
        {"measure": {"warmup_steps": 0}},
        {"measure": {"seed": -1}},
        {"data": {"num_workers": -1}},
        {"data": {"prefetch_factor": 0}},
        {"data": {"shuffle": "yes"}},
        {"data": None},
        {"measure": [1]},
        {"workload": 5},
        {"measure": {"epochs": 3}},
    ]
    compare_messages("trial_specs", cases, lambda change: refused(BASE | change))


def test_a_misspelt_required_key_is_named():
    assert "'worklaod'" in refused({"worklaod": "resnet50", "batch_size": 4})


@pytest.mark.parametrize("sizes", [{}, {"batch_size": 4, "global_batch_size": 8}])
def test_one_batch_size_and_not_both(sizes: dict[str, int]):
    message = refused({"workload": "resnet50", **sizes})
    assert "batch_size" in message and "global_batch_size" in message
    assert ("not both: batch_size=null leaves that one out" in message) == bool(sizes)


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
def test_a_time_limit_is_a_time(seconds: float):
    assert "timeout_s" in refused(BASE | {"measure": {"timeout_s": seconds}})


def test_the_batch_is_that_of_a_data_parallel_rank():
    spec = parse_trial({"workload": "gpt_neox", "parallelism": {"dp": 2, "tp": 2}, "batch_size": 4})
    assert (spec.ranks, spec.data_ranks, spec.global_batch) == (4, 2, 8)


def test_fields_that_came_later_change_no_id():
    """The id of this spec in the first version."""
    assert point_id(made_spec(), "d") == point_id(made_spec(grad_accum=1, compile=False, fused=False), "d")


@pytest.mark.parametrize(
    ("sizes", "rank_batch", "global_batch"),
    [({"batch_size": 4}, 4, 8), ({"global_batch_size": 6}, 3, 6)],
)
def test_batch_sizes(sizes: dict[str, int], rank_batch: int, global_batch: int):
    spec = parse_trial({"workload": "resnet50", "world_size": 2, **sizes})
    assert (spec.rank_batch, spec.global_batch) == (rank_batch, global_batch)


def test_impossible_sweeps() -> None:
    cases = [
        {"gird": {}},
        {"name": "two words"},
        {"name": "../up"},
        {"grid": {"world_size": 2}},
        {"grid": []},
        {"exclude": {"world_size": 2}},
        {"base": [1]},
        {"scaling": "weeak"},
        {"workload": "resnet50"},
        {"data.cache": "cold"},
    ]

    def message(change: dict[str, Any]) -> str:
        with pytest.raises(UserError) as caught:
            parse_sweep({"name": "s", "base": BASE, **change})
        assert "\n" not in str(caught.value)
        return str(caught.value)

    compare_messages("sweep_specs", cases, message)


def test_keys_that_nobody_has_are_not_said_to_be_of_trials():
    with pytest.raises(UserError) as caught:
        parse_sweep({"name": "s", "base": BASE, "gird": {}})
    assert "trial" not in str(caught.value)


def test_a_sweep_needs_a_base():
    with pytest.raises(UserError, match="'base' is missing"):
        parse_sweep({"name": "s"})


def test_a_spec_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        parse_trial(BASE).batch_size = 8  # type: ignore[misc]


PINNED = parse_trial(
    {
        "workload": "resnet50",
        "variant": "tiny",
        "data": {"root": "/data/imagenet", "format": "webdataset", "num_workers": 4},
        "device": "cpu",
        "parallelism": "ddp",
        "world_size": 2,
        "batch_size": 8,
        "threads_per_rank": 1,
        "measure": {"steps": 20, "repeats": 5, "timeout_s": 60},
    }
)


def test_point_id_never_changes():
    """Ids stand in people's stores: a new field with a default must not move them."""
    assert point_id(PINNED, "0123456789abcdef0123456789abcdef") == "682c2b561de2"
    assert point_id(parse_trial({"workload": "resnet50", "batch_size": 1}), None) == "ce266d77304a"


def test_a_revision_enters_the_ids_of_its_points_alone(monkeypatch: pytest.MonkeyPatch):
    def ids(spec: TrialSpec) -> tuple[str, str]:
        return point_id(spec, "d"), match_id(spec, "d")

    split, plain = made_spec(parallelism="tp", world_size=2), made_spec(parallelism="ddp", world_size=2)
    emulated = made_spec(device="emulated:5ms", parallelism="tp", world_size=2)
    before = {spec: ids(spec) for spec in (split, plain, emulated)}
    made = [Revision("tp", number, f"reason {number}", lambda subject: subject.layout.tp > 1) for number in (2, 3)]
    monkeypatch.setattr(revisions, "REVISIONS", made)
    assert ids(plain) == before[plain] and revision_fields(plain, "d") == {}
    assert ids(emulated) == before[emulated]  # whose steps run no mode
    assert not {*ids(split)} & {*before[split]}
    told = {"revision": "tp 3", "revision_reason": "tp 3: reason 3", "former_match_id": before[split][1]}
    assert revision_fields(split, "d") == told


GPT: dict[str, Any] = {"workload": "gpt_neox", "world_size": 4}
REVISED: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({**GPT, "parallelism": "ddp", "precision": "bf16"}, "gpt_neox 2"),
    ({**GPT, "parallelism": "tp", "precision": "fp8"}, "gpt_neox 2"),
    ({**GPT, "parallelism": "pp", "precision": "bf16"}, "gpt_neox 2"),
    ({**GPT, "parallelism": "zero2", "precision": "bf16"}, None),
    ({**GPT, "parallelism": "fsdp", "precision": "bf16"}, "fsdp 2"),
    ({**GPT, "parallelism": Parallelism(tp=2, zero=3), "precision": "bf16"}, "fsdp 2, gpt_neox 2"),
    ({**GPT, "parallelism": Parallelism(engine="deepspeed", zero=2), "precision": "bf16"}, None),
    ({**GPT, "parallelism": Parallelism(pp=2, zero=3)}, "fsdp 2"),
    ({**GPT, "parallelism": "fsdp", "reshard_after_forward": True}, None),
    ({**GPT, "parallelism": "tp"}, None),
    ({**GPT, "parallelism": "cp", "precision": "fp16"}, None),
    ({"workload": "bert", "parallelism": "zero2", "world_size": 2, "precision": "bf16"}, "bert 2"),
    ({"workload": "bert", "parallelism": "zero2", "world_size": 2}, None),
    ({"workload": "resnet50", "parallelism": "hsdp", "world_size": 4}, "fsdp 2"),
    ({"workload": "unet3d", "parallelism": "ddp", "world_size": 2, "precision": "bf16"}, None),
)


@pytest.mark.parametrize(("changes", "told"), REVISED)
def test_which_points_measure_something_else_since(changes: dict[str, Any], told: str | None):
    spec = made_spec(**changes)
    assert revision_fields(spec, "d").get("revision") == told
    assert all(one.why for one in spec.revisions)


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"parallelism": "fsdp", "world_size": 4}, "fd141a77b64d"),
        ({"parallelism": "tp", "world_size": 4}, "c1018096903c"),
        ({"parallelism": "ddp", "world_size": 4, "precision": "bf16"}, "260c8e114dfe"),
        ({"parallelism": "zero2", "world_size": 4, "precision": "bf16"}, "51ddfe49d7f6"),
    ],
)
def test_ids_of_points_with_and_without_a_revision_never_change(changes: dict[str, Any], known: str):
    assert point_id(made_spec(workload="gpt_neox", **changes), "d") == known


def changed(**changes: Any) -> str:
    return point_id(made_spec(**changes), "id")


def test_point_id_leaves_out_what_does_not_change_the_measurement():
    assert changed(measure={"repeats": 9}) == changed()
    assert changed(measure={"timeout_s": 3}) == changed()
    bare = parse_trial(BASE)
    assert point_id(parse_trial(BASE | {"measure": {"repeats": 9}}), None) == point_id(bare, None)


def test_point_id_does_not_see_a_default_that_is_written_out():
    written = BASE | {
        "variant": "reference",
        "precision": "fp32",
        "grad_accum": 1,
        "data": {"format": "files", "shuffle": True, "root": None},
        "measure": {"steps": 30, "seed": 0},
    }
    assert point_id(parse_trial(written), "id") == point_id(parse_trial(BASE), "id")
    assert point_id(parse_trial(parse_trial(BASE).model_dump()), "id") == point_id(parse_trial(BASE), "id")


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 5},
        {"variant": "reference"},
        {"precision": "bf16"},
        {"world_size": 2},
        {"threads_per_rank": 2},
        {"parallelism": "ddp"},
        {"data": {"format": "webdataset"}},
        {"data": {"cache": "warm"}},
        {"data": {"num_workers": 0}},
        {"data": {"shuffle": False}},
        {"measure": {"steps": 10}},
        {"measure": {"seed": 1}},
        {"measure": {"warmup_steps": 1}},
    ],
)
def test_point_id_sees_every_choice(changes: dict[str, Any]):
    assert changed(**changes) != changed()


def test_match_id_leaves_out_paths_and_nothing_else():
    def matched(**changes: Any) -> str:
        return match_id(made_spec(**changes), "id")

    there = {"root": "/elsewhere"}
    assert matched(data=there) == matched() and changed(data=there) != changed()
    assert matched(data=there | {"num_workers": 7}) != matched() != matched(measure={"seed": 7})
    assert match_id(made_spec(), "other") != matched()


def test_point_id_sees_the_dataset():
    ids = {point_id(made_spec(), dataset) for dataset in ("one", "two", None)}
    assert len(ids) == 3


def test_point_id_is_short_and_fit_for_paths():
    assert len(changed()) == 12
    assert set(changed()) <= set("0123456789abcdef")


def test_a_spec_survives_its_json():
    spec = made_spec(world_size=2, parallelism="ddp")
    assert TrialSpec.model_validate_json(spec.model_dump_json()) == spec


def test_trial_ids():
    assert trial_id("0123456789ab", "default", 2) == "0123456789ab.default.2"
    ids = {trial_id(point, session, repeat) for point in "ab" for session in ("s", "t") for repeat in range(3)}
    assert len(ids) == 12


@pytest.mark.parametrize("session", ["default", "2026-11-20", "a", "night_3.b", "2026-11-20T10:00"])
def test_session_names(session: str):
    assert check_session(session) == session


@pytest.mark.parametrize("session", ["", " ", "a b", "a/b", "../a", ".hidden", "-x", "a\n", "ü", "a*"])
def test_session_names_that_are_refused(session: str):
    with pytest.raises(UserError, match="session") as caught:
        check_session(session)
    assert "letters, digits" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [
        ({"nodes": 2, "ranks_per_node": 4}, 8),
        ({"nodes": 3}, 3),
        ({"nodes": 2, "world_size": 8}, 8),
        ({"ranks_per_node": 4, "world_size": 6}, 6),
        ({"nodes": 2, "parallelism": {"tp": 2, "dp": 2}}, 4),
    ],
)
def test_nodes_give_ranks_or_spread_them(asked: dict[str, Any], ranks: int):
    assert parse_trial({"parallelism": "ddp", **BASE, **asked}).ranks == ranks


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"nodes": 3, "world_size": 8}, "nodes 3 does not divide 8 ranks; give ranks_per_node"),
        ({"nodes": 2, "ranks_per_node": 4, "world_size": 4}, "nodes 2 x ranks_per_node 4 = 8 ranks; .* say 4"),
    ],
)
def test_nodes_that_do_not_fit_the_ranks(asked: dict[str, Any], words: str):
    assert re.search(words, refused({"parallelism": "ddp", **BASE, **asked}))


@pytest.mark.parametrize("given", [{"name": "x" * 300, "base": BASE}])
def test_names_that_files_cannot_have_are_refused_when_planning(given: dict[str, Any]):
    with pytest.raises(UserError, match=r"name 'xxx.*at most 100 characters"):
        parse_sweep(given)
    with pytest.raises(UserError, match=r"session 'xxx.*up to 100"):
        check_session(str(given["name"]))
