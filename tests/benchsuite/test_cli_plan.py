"""The verb `plan`: what it prints, what it says where nothing can be planned."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.predict import machines, models
from benchsuite.predict.assumptions import RANGES

Run = Callable[..., tuple[int, str, str]]
NEOX = ("--model", "gpt-neox-20b", "--machine", "polaris", "--devices", "96", "--batch", "1536")


def error_line(run_cli: Run, *arguments: object) -> str:
    code, out, err = run_cli("plan", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    return err


def as_json(run_cli: Run, *arguments: object) -> dict[str, Any]:
    code, out, err = run_cli("plan", *arguments, "--format", "json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


class TestTable:
    def test_ten_layouts_and_what_they_rest_on(self, run_cli: Run):
        code, out, err = run_cli("plan", *NEOX)
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
        assert [line.split()[0] for line in lines[header + 1 : header + 11]] == [str(rank) for rank in range(1, 11)]
        assert all("[" in line and " of 43" in line for line in lines[header + 1 : header + 11])
        assert "The runner-up (tp " in out and "% of the draws" in out
        assert "oversubscription of polaris's network is not known" in out
        assert "90 % interval" in out and "Nothing was measured" in out

    def test_what_if_side_by_side(self, run_cli: Run):
        _, out, _ = run_cli("plan", *NEOX, "--top", "1", "--what-if", "network=2,data=0.5")
        rows = out.partition("what if")[2].splitlines()[1:4]
        assert [row[:10].strip() for row in rows] == ["as it is", "network x2", "data x0.5"]

    def test_what_is_not_known_is_a_dash(self, run_cli: Run, tmp_path: Path):
        own = tmp_path / "own.yaml"
        own.write_text("{kind: decoder, layers: 2, hidden: 64, heads: 4, seq_len: 64}")
        code, out, _ = run_cli(
            "plan", "--model", own, "--machine", "dgx-a100", "--devices", 8, "--batch", 8, "--top", 1
        )
        assert code == 0
        row = next(line for line in out.splitlines() if line.startswith("1 "))
        assert row.split()[-3:] == ["-", "-", "-"], "days, device-hours and energy of a training nobody described"

    def test_memory_that_is_known_in_part(self, run_cli: Run):
        _, out, _ = run_cli("plan", "--model", "unet3d", "--machine", "polaris", "--devices", 4, "--batch", 8)
        assert " >0.3 of 43" in out and "activations of unet3d are not known" in out

    def test_a_narrow_terminal_leaves_columns_out(self, run_cli: Run, monkeypatch: pytest.MonkeyPatch):
        from rich.console import Console

        monkeypatch.setattr("benchsuite.plan_verb.console", lambda: Console(highlight=False, width=130))
        _, out, _ = run_cli("plan", *NEOX)
        header = next(line for line in out.splitlines() if "s/step" in line)
        assert "kWh" not in header and "days" in header
        assert "columns left out" in out


class TestJson:
    def test_everything_with_its_interval(self, run_cli: Run):
        found = as_json(run_cli, *NEOX, "--what-if", "device=2")
        assert len(found["layouts"]) == 10 and found["fitting"] < found["legal"]
        best = found["layouts"][0]
        for name in ("step_s", "mfu", "tflops_per_device", "bubble_share", "communication_share", "days", "energy_kwh"):
            assert best[name]["low"] <= best[name]["value"] <= best[name]["high"]
        assert set(found["assumptions"]) == set(RANGES)
        assert found["sources"] and found["why"] and found["notes"]
        assert [*found["what_if"]] == ["as it is", "device x2"]
        assert found["samples"] == pytest.approx(472e9 / 2048)

    def test_options_fix_an_axis(self, run_cli: Run):
        options = ("--zero", 0, "--recompute", "full", "--microbatch", 1, "--tensor-parallel", 4, "--interleave", 1)
        layouts = as_json(run_cli, *NEOX, *options)["layouts"]
        keys = ("zero", "recompute", "microbatch", "tp", "interleave")
        assert {tuple(each[key] for key in keys) for each in layouts} == {(0, "full", 1, 4, 1)}
        capped = as_json(run_cli, *NEOX, "--max-tensor-parallel", 2, "--pipeline-parallel", 4)["layouts"]
        assert {(each["tp"], each["pp"]) for each in capped} <= {(1, 4), (2, 4)}

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

    def test_stored_scores_and_whole_norms_need_more_memory(self, run_cli: Run):
        fixed = (*NEOX, "--tensor-parallel", 4, "--pipeline-parallel", 4, "--microbatch", 1, "--recompute", "none")
        memory = [
            as_json(run_cli, *fixed, "--zero", 1, *more)["layouts"][0]["activation_bytes"]
            for more in ((), ("--no-sequence-parallel",), ("--no-flash-attention",))
        ]
        assert memory[0] < memory[1] and memory[0] < memory[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["--model", "--machine", "--devices", "--batch", "list models"]),
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
        ((*NEOX, "--batch", "1537"), ["--batch 1537", "nearest: 1536"]),
        ((*NEOX, "--what-if", "netwrk=2"), ["'netwrk'", "nearest: network"]),
        ((*NEOX, "--what-if", "network=fast"), ["network=FACTOR", "'network=fast'"]),
        ((*NEOX, "--what-if", "network=0"), ["above 0"]),
        ((*NEOX, "--tokens", "1e9", "--samples", "5"), ["--tokens and --samples"]),
        (("--model", "resnet50", *NEOX[2:], "--tokens", "1e9"), ["resnet50 (conv) have no tokens", "--samples"]),
        (("--model", "openfold", *NEOX[2:]), ["openfold", "device_sample_s"]),
        (
            ("--model", "gpt3-175b", *NEOX[2:4], "--devices", 4, "--batch", 4),
            ["nothing fits", "at least", "would fit on"],
        ),
        (("--model", "resnet50", *NEOX[2:], "--seq-len", "4"), ["no sequence length"]),
    ],
)
def test_mistakes_are_one_line(run_cli: Run, arguments: tuple[object, ...], words: list[str]):
    line = error_line(run_cli, *arguments)
    assert all(word in line for word in words), line


def test_models_and_machines_are_listed(run_cli: Run):
    found = json.loads(run_cli("list", "--format", "json")[1])
    assert (found["models"], found["machines"]) == (models.names(), machines.names())


@pytest.mark.parametrize("machine", machines.names())
def test_every_machine_plans_every_kind(run_cli: Run, machine: str):
    for name in ("gpt3-350m", "t5-11b", "vit-h", "bert-large", "resnet50", "unet3d"):
        code, out, err = run_cli("plan", "--model", name, "--machine", machine, "--devices", 32, "--batch", 64)
        assert code == 0 or "nothing fits: t5-11b" in err, err
        assert code != 0 or name in out


def test_plans_from_anywhere(run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert run_cli("plan", *NEOX, "--top", 1)[0] == 0
    assert os.listdir(tmp_path) == [], "nothing is written"
