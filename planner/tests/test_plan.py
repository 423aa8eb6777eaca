"""The verb `plan`: what it prints, what it says where nothing can be planned."""

import json
import os
import re
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.assumptions import ranges
from benchsuite_plan.layout.plan_report import COLUMNS

Run = Callable[..., tuple[int, str, str]]
NEOX = ("--model", "gpt-neox-20b", "--machine", "polaris", "--devices", "96", "--batch", "1536")


def error_line(run_cli: Run, *arguments: object) -> str:
    code, out, err = run_cli("plan", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    return err


SAID: dict[tuple[str, ...], tuple[int, str, str]] = {}


def said(run_cli: Run, *arguments: object) -> tuple[int, str, str]:
    """What `plan` says, which it is asked once: nothing but its arguments decides it."""
    words = tuple(map(str, arguments))
    return SAID[words] if words in SAID else SAID.setdefault(words, run_cli("plan", *words))


def as_json(run_cli: Run, *arguments: object) -> dict[str, Any]:
    code, out, err = said(run_cli, *arguments, "--format", "json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


class TestTable:
    def test_ten_layouts_and_what_they_rest_on(self, run_cli: Run):
        code, out, err = said(run_cli, *NEOX)
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert lines[0].startswith(
            "gpt-neox-20b (20.55 billion parameters, 2048 tokens a sample) on 96 x A100-SXM4-40GB"
        )
        assert "4.72e+11 tokens in all" in lines[0]
        header = next(number for number, line in enumerate(lines) if "s/step" in line)
        for heading in (
            "tp",
            "pp",
            "dp",
            "zero",
            "MFU",
            "memory GB",
            "bubble",
            "comm",
            "input",
            "days",
            "device-h",
            "kWh",
        ):
            assert heading in lines[header]
        rows = lines[header + 2 : header + 12]
        assert [line.split()[0] for line in rows] == [str(rank) for rank in range(1, 11)]
        assert all("[" in line and " of 43" in line for line in rows)
        assert "The second-best layout (tp " in out and "% of 2,000 random draws of what is assumed" in out
        assert "The best layout that trials run is tp " in out and "Its step goes to computation " in out
        assert "oversubscription of polaris's network is not known" not in out and "90 % interval" not in out
        _, explained, _ = run_cli("plan", *NEOX, "--top", "3", "--explain")
        assert "oversubscription of polaris's network is not known" in explained and "90 % interval" in explained

    def test_what_if_side_by_side(self, run_cli: Run):
        _, out, _ = run_cli("plan", *NEOX, "--top", "1", "--what-if", "network=2,data=0.5")
        rows = out.partition("what if")[2].splitlines()[2:5]
        assert [row[:11].strip() for row in rows] == ["as it is", "network x2", "data x0.5"]

    def test_what_is_not_known_has_no_column(self, run_cli: Run, tmp_path: Path):
        own = tmp_path / "own.yaml"
        own.write_text("{kind: decoder, layers: 2, hidden: 64, heads: 4, seq_len: 64}")
        code, out, _ = run_cli(
            "plan", "--model", own, "--machine", "dgx-a100", "--devices", 8, "--batch", 8, "--top", 1
        )
        assert code == 0
        header = next(line for line in out.splitlines() if "s/step" in line)
        assert "input" in header, "days, device-hours and energy of a training nobody described are not known"
        assert not any(heading in header for heading in ("days", "device-h", "kWh"))

    def test_memory_that_is_known_in_part(self, run_cli: Run):
        _, out, _ = run_cli("plan", "--model", "unet3d", "--machine", "polaris", "--devices", 4, "--batch", 8)
        assert " >0.3 of 43" in out

    def test_a_narrow_terminal_leaves_columns_out(self, run_cli: Run, monkeypatch: pytest.MonkeyPatch):
        from rich.console import Console

        monkeypatch.setattr("benchsuite_plan.cli.plan.console", lambda: Console(highlight=False, width=130))
        _, out, _ = run_cli("plan", *NEOX)
        header = next(line for line in out.splitlines() if "s/step" in line)
        assert "kWh" not in header and "days" in header
        assert "no room for" in out and "a wider terminal" in out


class TestJson:
    def test_everything_with_its_interval(self, run_cli: Run):
        found = as_json(run_cli, *NEOX, "--what-if", "device=2")
        assert len(found["layouts"]) == 10 and found["fitting"] < found["valid"]
        best = found["layouts"][0]
        for name in ("step_s", "mfu", "tflops_per_device", "bubble_share", "communication_share", "days", "energy_kwh"):
            assert best[name]["low"] <= best[name]["value"] <= best[name]["high"]
        assert set(found["assumptions"]) == set(ranges())
        assert found["sources"] and found["why"] and found["notes"]
        assert [*found["what_if"]] == ["as it is", "device x2"]
        assert found["samples"] == pytest.approx(472e9 / 2048)

    def test_options_fix_an_axis(self, run_cli: Run):
        options = ("--zero", 0, "--recompute", "full", "--microbatch", 1, "--tensor-parallel", 4, "--interleave", 1)
        layouts = as_json(run_cli, *NEOX, *options)["layouts"]
        keys = ("zero", "recompute", "microbatch", "tp", "interleave")
        assert {tuple(each[key] for key in keys) for each in layouts} == {(0, "full", 1, 4, 1)}

    def test_how_far(self, run_cli: Run):
        far = as_json(run_cli, *NEOX, "--tokens", "300e9", "--top", 1)
        assert far["samples"] == pytest.approx(300e9 / 2048)
        assert as_json(run_cli, *NEOX, "--samples", 1000, "--top", 1)["samples"] == 1000

    def test_the_length_of_a_sample(self, run_cli: Run):
        short, long = (
            as_json(run_cli, *NEOX, "--seq-len", length, "--top", 1)["layouts"][0] for length in (1024, 4096)
        )
        assert long["step_s"]["value"] > 3.9 * short["step_s"]["value"]

    def test_precision_is_the_devices(self, run_cli: Run):
        old = as_json(run_cli, "--model", "gpt3-125m", "--machine", "power8-p100", "--devices", 4, "--batch", 64)
        assert old["precision"] == "fp16"
        assert as_json(run_cli, *NEOX, "--top", 1)["precision"] == "bf16"


class TestWhatTrialsRefuse:
    REFUSED = "interleave 11: schedule interleaved holds 2 stages a rank"
    EQUAL = "stages of equally many layers: trials count the embedding and the head as a layer each"

    def test_stands_apart_with_the_reason(self, run_cli: Run):
        _, out, _ = run_cli("plan", *NEOX, "--top", 2)
        assert re.search(r"\d+ fit in memory, \d+ of them run as trials", out)
        best, _, rest = out.partition("\n not runnable ")
        assert f"not runnable: {self.EQUAL} (" in rest
        assert "The second-best layout" in best and "interleave 11" not in best

    def test_has_columns_of_its_own_in_json(self, run_cli: Run):
        found = as_json(run_cli, *NEOX)
        assert {(each["runnable"], each["reason"]) for each in found["layouts"]} == {(True, None)}
        first = found["not_runnable"][0]
        assert (first["rank"], first["runnable"], first["reason"]) == (1, False, self.EQUAL)
        assert 0 < found["runnable"] < found["fitting"]

    def test_stages_that_trials_cut_alike_are_told_once(self, run_cli: Run):
        asked = ("--model", "llama2-7b", "--machine", "dgx-h100", "--devices", 16, "--batch", 256, "--top", 300)
        found = as_json(run_cli, *asked)
        columns = ("tp", "pp", "dp", "zero", "microbatch", "interleave", "recompute", "stage_layers")
        runs, refused = ([*map(itemgetter(*columns), found[key])] for key in ("layouts", "not_runnable"))
        assert refused and not [each for each in refused if each in runs]
        trials = [each["trial"] for each in found["layouts"]]
        assert not [each for each in found["not_runnable"] if each["trial"] in trials]
        _, out, _ = run_cli("plan", *asked)
        assert re.search(r"faster \(tp .* recompute none, microbatch \d+, .* needs \d+ GB a device", out)
        assert "Usable are 80.1 GB of it; a GB is 10^9 bytes." in out and "-0.0%" not in out

    def test_all_of_it(self, run_cli: Run):
        fixed = (*NEOX, "--tensor-parallel", 4, "--pipeline-parallel", 4, "--interleave", 11, "--what-if", "network=2")
        found = as_json(run_cli, *fixed)
        assert (found["layouts"], found["runnable"]) == ([], 0) and found["not_runnable"]
        assert found["why"].startswith(f"No layout that fits can run as a trial: {self.REFUSED}.")
        assert not any(each["runnable"] for each in found["what_if"].values())
        _, out, _ = run_cli("plan", *fixed)
        assert found["why"] in out and "as it is (not runnable)" in out and "second-best" not in out

    def test_fp8_is_ranked_where_trials_have_it(self, run_cli: Run):
        found = as_json(
            run_cli, *NEOX[:2], "--machine", "dgx-h100", "--devices", 64, "--batch", 64, "--precision", "fp8"
        )
        assert found["layouts"] and {each["trial"]["precision"] for each in found["layouts"]} == {"fp8"}
        refused = {each["reason"] for each in found["not_runnable"]}
        assert any("fp8" in reason for reason in refused), refused

    def test_a_model_without_trials_is_ranked_and_says_what_is_lacking(self, run_cli: Run):
        found = as_json(run_cli, "--model", "vit-h", "--machine", "dgx-a100", "--devices", 16, "--batch", 256)
        lacking = "no trial trains vit-h: no workload is of kind vision-transformer"
        assert (found["layouts"], found["runnable"]) == ([], 0)
        assert found["why"] == f"No layout that fits can run as a trial: {lacking}."
        steps = [each["step_s"]["value"] for each in found["not_runnable"]]
        assert steps == sorted(steps) and len(steps) == 10
        assert {(each["reason"], each["trial"]) for each in found["not_runnable"]} == {(lacking, None)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["--model", "--machine", "--devices", "--batch", "plan list"]),
        ((*NEOX[:6],), ["needs --batch"]),
        (("--model", "gpt-neox", *NEOX[2:]), ["'gpt-neox' is unknown", "nearest: gpt-neox-20b"]),
        ((*NEOX, "--machine", "polari"), ["'polari'", "nearest: polaris"]),
        ((*NEOX, "--machine", "gone.yaml"), ["gone.yaml"]),
        ((*NEOX, "--precision", "bf6"), ["--precision 'bf6'", "nearest: bf16"]),
        ((*NEOX, "--precision", "fp8"), ["--precision 'fp8'", "A100-SXM4-40GB of polaris"]),
        ((*NEOX, "--recompute", "ful"), ["--recompute 'ful'", "nearest: full"]),
        ((*NEOX, "--zero", "4"), ["--zero"]),
        ((*NEOX, "--devices", "0"), ["--devices"]),
        ((*NEOX, "--devices", "98"), ["no whole nodes", "96 or 100"]),
        ((*NEOX, "--devices", "4000"), ["560 nodes x 4 = 2240"]),
        (
            (*NEOX, "--batch", "1537", "--tensor-parallel", "4", "--pipeline-parallel", "1"),
            ["--batch 1537", "nearest: 1536"],
        ),
        ((*NEOX, "--what-if", "netwrk=2"), ["'netwrk'", "nearest: network"]),
        ((*NEOX, "--what-if", "network=fast"), ["network=FACTOR", "'network=fast'"]),
        ((*NEOX, "--what-if", "network=0"), ["allowed: 1e-06 to 1e+06"]),
        ((*NEOX, "--what-if", "network=1e-308"), ["network=1e-308", "allowed: 1e-06 to 1e+06"]),
        ((*NEOX, "--batch", 10**18), ["--batch", "less than or equal to 1000000000"]),
        ((*NEOX, "--devices", 10**18), ["--devices", "less than or equal to 1000000000"]),
        ((*NEOX, "--seq-len", 10**22), ["--seq-len", "less than or equal to 1000000000"]),
        ((*NEOX, "--tokens", "inf"), ["--tokens", "less than or equal to 1000000000000000000"]),
        ((*NEOX, "--samples", "1e300"), ["--samples", "less than or equal to 1000000000000000000"]),
        ((*NEOX, "--tokens", "1e9", "--samples", "5"), ["--tokens and --samples"]),
        (("--model", "resnet50", *NEOX[2:], "--tokens", "1e9"), ["resnet50 (conv) have no tokens", "--samples"]),
        (("--model", "openfold", *NEOX[2:]), ["openfold", "device_sample_s"]),
        (
            ("--model", "gpt3-175b", *NEOX[2:4], "--devices", 4, "--batch", 4),
            ["nothing fits", "at least", "would fit on"],
        ),
        (("--model", "resnet50", *NEOX[2:], "--seq-len", "4"), ["no sequence length"]),
        (("--model", "x\x1b[31m\nerror: forged", *NEOX[2:]), ["x\\x1b[31m\\nerror: forged"]),
        (("--model", "s3://bucket/x.yaml", *NEOX[2:]), ["s3://bucket/x.yaml"]),
    ],
)
def test_mistakes_are_one_line(run_cli: Run, arguments: tuple[object, ...], words: list[str]):
    line = error_line(run_cli, *arguments)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("text", ["[" * 60_000, "a: &a [*a]\n", "\xff\xfe"], ids=["deep lists", "an anchor", "no text"])
def test_files_are_read_as_all_yaml_is(run_cli: Run, tmp_path: Path, text: str):
    (tmp_path / "mine.yaml").write_text(text, encoding="latin-1")
    for option in ("--model", "--machine"):
        assert "mine.yaml: " in error_line(run_cli, *NEOX, option, tmp_path / "mine.yaml")


def test_each_mistake_in_a_machine_is_a_line(run_cli: Run, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("nods: 3\ndevice: 5\n")
    lines = run_cli("plan", *NEOX, "--machine", tmp_path / "mine.yaml")[2].splitlines()
    assert len(lines) > 2 and all(f"{tmp_path}/mine.yaml: " in line for line in lines), lines


def test_models_and_machines_are_listed(run_cli: Run):
    found = json.loads(run_cli("plan", "list", "--format", "json")[1])
    assert found == {"machines": machines.names(), "models": models.names()}
    assert run_cli("plan", "list", "machines") == (0, f"machines: {', '.join(machines.names())}\n", "")


KINDS = ("gpt3-350m", "t5-11b", "vit-h", "bert-large", "resnet50", "unet3d")
ONCE = [(machine, KINDS[number % len(KINDS)]) for number, machine in enumerate(machines.names())]
"""Every machine, and every kind of model, once."""


def plans(run_cli: Run, machine: str, model: str) -> None:
    code, out, err = run_cli("plan", "--model", model, "--machine", machine, "--devices", 32, "--batch", 64)
    assert code == 0 or "nothing fits: t5-11b" in err, err
    assert code != 0 or model in out


@pytest.mark.parametrize(("machine", "model"), ONCE)
def test_every_machine_plans_and_every_kind_is_planned(run_cli: Run, machine: str, model: str):
    plans(run_cli, machine, model)


@pytest.mark.weekly
@pytest.mark.parametrize("machine", machines.names())
def test_every_machine_plans_every_kind(run_cli: Run, machine: str):
    for model in KINDS:
        plans(run_cli, machine, model)


def test_plans_from_anywhere(run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert run_cli("plan", *NEOX, "--top", 1)[0] == 0
    assert os.listdir(tmp_path) == [], "nothing is written"


def test_the_second_is_told_of_where_one_is_shown(run_cli: Run):
    _, out, _ = said(run_cli, *NEOX, "--top", 1)
    assert "The second-best layout (" in out and len(as_json(run_cli, *NEOX, "--top", 1)["layouts"]) == 1


def test_what_would_help_names_an_odd_vocabulary(run_cli: Run):
    asked = ("--model", "gpt2", "--machine", "dgx-h200", "--devices", 1, "--batch", 32)
    _, out, _ = run_cli("plan", *asked)
    assert "What would help: a vocabulary of 50,304 words saves 3" in out
    assert "vocabulary" not in run_cli("plan", *asked, "--recipe", "megatron")[1], "which pads it"


def test_who_trains_decides_kernels_and_bytes(run_cli: Run):
    asked = ("--model", "llama2-7b", "--machine", "dgx-h100", "--devices", 8, "--batch", 64, "--recompute", "none")
    steps = {}
    for recipe in ("trial", "megatron"):
        found = as_json(run_cli, *asked, "--recipe", recipe)
        steps[recipe] = found["layouts"][0]["step_s"]["value"]
        assert any("not compiled" in source for source in found["sources"]) == (recipe == "trial")
    assert steps["trial"] > 1.1 * steps["megatron"], "whose kernels are fused"
    assert as_json(run_cli, *asked)["layouts"][0]["step_s"]["value"] == steps["trial"]
    line = error_line(run_cli, *asked, "--recipe", "megatron-lm")
    assert line == "error: --recipe 'megatron-lm' is unknown; nearest: megatron; allowed: trial, megatron, nemo\n"


class TestWords:
    def test_every_column_is_explained_where_that_is_asked_for(self, run_cli: Run):
        _, out, _ = said(run_cli, *NEOX, "--top", "1")
        _, explained, _ = run_cli("plan", *NEOX, "--top", "1", "--explain")
        header = next(line for line in out.splitlines() if "s/step" in line)
        for heading, meaning in COLUMNS.items():
            assert heading in header or heading in ("cp", "ep"), "degrees that are all 1 have no column"
            assert f"{heading}: {meaning}" in explained and meaning not in out, heading

    def test_what_it_rests_on_is_one_line(self, run_cli: Run, tmp_path: Path):
        _, out, _ = said(run_cli, *NEOX, "--top", "1")
        (line,) = [line for line in out.splitlines() if line.startswith("warning: ")]
        assert line.startswith("warning: Nothing was measured on polaris: computed from its data sheets, with ")
        assert line == f"warning: {as_json(run_cli, *NEOX, '--top', '1')['basis']}"
        own = tmp_path / "own.yaml"
        own.write_text("{kind: other, published_params: 93e6, device_sample_s: 3.0}")
        measured = as_json(run_cli, "--model", own, *NEOX[2:4], "--devices", 8, "--batch", 8)["basis"]
        assert "and the device_sample_s that was given" in measured


class TestStaging:
    MINE = """
devices_per_node: 4
device: {name: mine, peak_flops: {bf16: 312e12}, memory_bytes: 40e9, memory_bytes_per_s: 1.5e12}
intra_node: {bytes_per_s: 300e9}
inter_node: {bytes_per_s: 25e9}
storage: {shared_read_bytes_per_s: 1e9, local_read_bytes_per_s: 4e9}
"""

    def asked(self, tmp_path: Path, *more: object) -> tuple[object, ...]:
        (tmp_path / "mine.yaml").write_text(self.MINE)
        own = ("--model", "resnet50", "--machine", tmp_path / "mine.yaml", "--devices", 8, "--batch", 2048)
        return (*own, "--top", 1, *more)

    def test_is_compared_and_can_be_assumed(self, run_cli: Run, tmp_path: Path):
        _, out, _ = run_cli("plan", *self.asked(tmp_path, "--what-if", "staging"))
        (line,) = [line for line in out.splitlines() if line.startswith("input is assumed to be read from the shared")]
        assert "copying the dataset to each of 2 nodes pays from " in line and "this training has 90" in line
        shared, staged = (as_json(run_cli, *self.asked(tmp_path, *way)) for way in ((), ("--staging",)))
        # 2048 x 114,660 B at 0.8 x 1 GB/s, and at 2 nodes x 0.8 x 4 GB/s, less than computing
        assert shared["layouts"][0]["step_s"]["value"] == pytest.approx(2048 * 114660 / 0.8e9)
        assert (shared["staged"], shared["staging"]["assumed"]) == (False, "shared")
        assert (staged["staged"], staged["staging"]["assumed"]) == (True, "staged")
        assert staged["layouts"][0]["step_s"]["value"] == pytest.approx(shared["staging"]["staged_step_s"], rel=1e-6)
        # 1,281,167 x 114,660 B to both nodes
        assert shared["staging"]["copy_s"] == pytest.approx(2 * 1281167 * 114660 / 0.8e9)
        under = as_json(run_cli, *self.asked(tmp_path, "--what-if", "staging,network=2"))["what_if"]
        assert [*under] == ["as it is", "staging", "network x2"]
        assert under["staging"]["step_s"]["value"] == staged["layouts"][0]["step_s"]["value"]

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (("--what-if", "staging=2"), "staging has no factor"),
            (("--machine", "polaris", "--staging"), "staging: polaris tells no storage.local_read_bytes_per_s"),
        ],
    )
    def test_mistakes(self, run_cli: Run, tmp_path: Path, more: tuple[object, ...], words: str):
        assert words in error_line(run_cli, *self.asked(tmp_path), *more)


class TestTemplates:
    def test_a_machine_and_a_model_to_edit_plan_as_they_are(self, run_cli: Run, tmp_path: Path):
        files = []
        for what, name in (("machines", "polaris"), ("models", "gpt-neox-20b")):
            code, out, err = run_cli("plan", "list", what, "--yaml", name)
            assert (code, err) == (0, "") and out.startswith("# A ") and out.endswith("\n") and "\n\n" not in out
            files.append(tmp_path / f"{what}.yaml")
            files[-1].write_text(out)
        machine, model = files
        own = as_json(run_cli, "--model", model, "--machine", machine, *NEOX[4:], "--top", 1)
        assert own["layouts"] == as_json(run_cli, *NEOX, "--top", 1)["layouts"]
        assert own["machine"] == "machines"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("list", "--yaml", "polaris"), "--yaml polaris: goes with machines and models"),
            (("list", "formats"), "plan list 'formats' is unknown; allowed: machines, models"),
            (("--top", "2", "list"), "plan list with --top before it: options come after the verb"),
            (("list", "machines", "--yaml", "polari"), "'polari' is unknown; nearest: polaris; allowed: berzelius"),
        ],
    )
    def test_mistakes(self, run_cli: Run, arguments: tuple[str, ...], words: str):
        code, out, err = run_cli("plan", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1) and words in err

    @pytest.mark.parametrize("what", ["machine", "model", "table"])
    def test_schemas_are_printed(self, run_cli: Run, what: str):
        code, out, err = run_cli("plan", "schema", what)
        assert (code, err) == (0, "") and json.loads(out)["description"]
