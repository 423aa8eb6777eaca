"""Templates: a shipped machine or model as YAML with comments, which reads as the same."""

from pathlib import Path

import pytest
import yaml

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import machines, models, template


@pytest.mark.parametrize("name", machines.names())
def test_a_machine_reads_as_the_same(name: str, tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(template.text("machines", name))
    assert machines.load(str(file)) == machines.load(name).changed(name="mine")


@pytest.mark.parametrize("name", models.names())
def test_a_model_reads_as_the_same(name: str, tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(template.text("models", name))
    assert models.load(str(file)) == models.load(name).changed(name="mine")


def test_numbers_are_readable_and_every_key_is_there():
    text = template.text("machines", "polaris")
    lines = {line.split(":")[0].strip(): line for line in text.splitlines() if not line.startswith("#")}
    assert "    bf16: 312.0e+12" in text.splitlines()
    assert lines["memory_bytes"].split("#")[0].split() == ["memory_bytes:", "42949672960"], "exact"
    assert "local_write_bytes_per_s: null" in text, "also what is not known"
    assert "# Machine" not in text and text.startswith("# A machine of your own: edit, save, and give the file to ")


def test_comments_are_units_and_meaning():
    text = template.text("machines", "dgx-h100")
    (tdp,) = [line for line in text.splitlines() if "tdp_w" in line]
    assert tdp.split("#")[0].strip() == "tdp_w: 700" and "# W of one device" in tdp
    (peaks,) = [line for line in text.splitlines() if "peak_flops" in line]
    assert "# FLOP/s of one device. Peaks by precision" in peaks and "dense" in peaks


def test_a_model_has_what_its_kind_needs():
    keys = yaml.safe_load(template.text("models", "gpt3-175b")).keys()
    assert {"kind", "layers", "hidden", "heads", "seq_len", "vocab", "source"} <= keys
    assert not {"name", "device_sample_s", "gated_mlp", "decoder_layers"} & keys


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (312e12, "312.0e+12"),
        (2.039e12, "2.039e+12"),
        (42949672960.0, "42949672960"),
        (12345678.25, "12345678.25"),
        (1e6, "1.0e+6"),
        (400.0, "400"),
        (1281167.0, "1281167"),
        (-2.5e7, "-25.0e+6"),
        (0.75, "0.75"),
        (5e-06, "5.0e-06"),
        (None, "null"),
        (True, "true"),
        ("a: b # c", "'a: b # c'"),
    ],
)
def test_scalars(value: object, text: str):
    assert template.scalar(value) == text
    assert yaml.safe_load(text) == value


def test_mistakes():
    with pytest.raises(UserError, match=r"--yaml 'polari' is unknown; .*nearest: polaris"):
        template.text("machines", "polari")
    for what in ("", "formats"):
        with pytest.raises(
            UserError, match="--yaml polaris: goes with machines and models: benchsuite plan list machines"
        ):
            template.text(what, "polaris")
