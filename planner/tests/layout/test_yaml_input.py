"""Files that users write for the planner: units and bounds, and one line in their words for each mistake."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import machines, models

MACHINE = """
devices_per_node: 8
device:
  name: A100
  peak_flops: {bf16: 312e12}
  memory_bytes: 80e9
  memory_bytes_per_s: 2.0e+12
  tdp_w: 400
intra_node: {bytes_per_s: 300e9, latency_s: 5e-6}
inter_node: {bytes_per_s: 25e9, nics: 8, oversubscription: 2}
node_max_w: 6500
storage: {shared_read_bytes_per_s: 650e9, local_read_bytes_per_s: 25e9, local_bytes: 15e12}
"""
MODEL = "{kind: decoder, layers: 2, hidden: 8, heads: 2, seq_len: 4, vocab: 10, published_tokens: 300e9}"


def refused(tmp_path: Path, load: Any, text: str) -> str:
    """The line without the file's name."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        load(str(path))
    line = str(raised.value)
    assert line.startswith(f"{path}: ") and "\n" not in line
    for leak in ("nput should", "instance of", "dictionary", "None", "pydantic", "<"):
        assert leak not in line.removeprefix(str(path)), line
    return line.removeprefix(f"{path}: ")


def test_numbers_are_read_as_people_write_them(tmp_path: Path):
    """YAML takes 312e12 for text, for want of a point and a sign."""
    path = tmp_path / "mine.yaml"
    path.write_text(MACHINE)
    machine = machines.load(str(path))
    assert (machine.device.peak_flops, machine.device.memory_bytes) == ({"bf16": 312e12}, 80e9)
    assert (machine.intra_node.latency_s, machine.storage.local_bytes) == (5e-6, 15e12)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("312e12", "312", "device.peak_flops.bf16 312: in FLOP/s of one device, such as 312e12; allowed: 1e+11 to"),
        ("312e12", "312e18", "device.peak_flops.bf16 '312e18': in FLOP/s of one device, such as 312e12;"),
        ("{bf16: 312e12}", "312", "device.peak_flops 312: give a peak for each precision, such as {bf16: 312e12}"),
        ("{bf16: 312e12}", "", "device.peak_flops null: give a peak for each precision"),
        ("{bf16: 312e12}", "{bf61: 312e12}", "peak_flops 'bf61' is unknown; nearest: bf16; allowed: fp32, tf32, "),
        ("312e12", "fast", "device.peak_flops.bf16 'fast': in FLOP/s of one device, such as 312e12;"),
        ("memory_bytes: 80e9", "memory_bytes: 80", "device.memory_bytes 80: in bytes of one device, such as 80e9;"),
        ("memory_bytes: 80e9", "memory_bytes: 80GB", "device.memory_bytes '80GB': in bytes of one device"),
        ("memory_bytes: 80e9", "memory_bytes: .nan", "device.memory_bytes NaN: in bytes of one device"),
        ("memory_bytes: 80e9", "memory_bytes: yes", "device.memory_bytes true: in bytes of one device"),
        ("2.0e+12", "2039", "device.memory_bytes_per_s 2039: in bytes/s of one device's memory, such as 2e12;"),
        ("tdp_w: 400", "tdp_w: 0.4", "device.tdp_w 0.4: in W of one device, such as 400; allowed: 1 to 10000"),
        ("node_max_w: 6500", "node_max_w: 6.5", "node_max_w 6.5: in W of one node, such as 6500; allowed: 10 to 1e+06"),
        ("300e9", "600", "intra_node.bytes_per_s 600: in bytes/s of one device, each way, such as 300e9;"),
        ("latency_s: 5e-6", "latency_s: 5", "intra_node.latency_s 5: in seconds of one message, such as 5e-6;"),
        ("25e9, nics", "200, nics", "inter_node.bytes_per_s 200: in bytes/s of one adapter, each way, such as 25e9;"),
        ("nics: 8", "nics: 2.5", "inter_node.nics 2.5: in adapters of one node, such as 8; allowed: 1 to 64"),
        ("oversubscription: 2", "oversubscription: 0.5", "inter_node.oversubscription 0.5: allowed: 1 and above"),
        ("650e9", "650", "storage.shared_read_bytes_per_s 650: in bytes/s that all nodes read together, such as 65"),
        ("local_bytes: 15e12", "local_bytes: 15", "storage.local_bytes 15: in bytes of one node's own drives"),
        ("devices_per_node: 8", "devices_per_node: eight", "devices_per_node 'eight': in devices of one node, such"),
        ("devices_per_node: 8", "devices_per_node: 0", "devices_per_node 0: in devices of one node, such as 8;"),
        ("devices_per_node: 8\n", "", "'devices_per_node' is missing"),
        ("node_max_w: 6500", "sources: a book", "sources 'a book': give a list"),
        ("node_max_w: 6500", "title: [a]", 'title ["a"]: give text'),
        (MACHINE[MACHINE.index("  name") : MACHINE.index("intra")], "", "device null: give keys and values below it"),
        ("{bytes_per_s: 300e9, latency_s: 5e-6}", "NVLink", "intra_node 'NVLink': give keys and values below it: "),
        ("{bytes_per_s: 300e9, latency_s: 5e-6}", "[1]", "intra_node [1]: give keys and values below it: bytes_per_s"),
    ],
)
def test_machines(tmp_path: Path, old: str, new: str, line: str):
    assert old in MACHINE
    found = refused(tmp_path, machines.load, MACHINE.replace(old, new, 1))
    assert found.startswith(line), found


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("layers: 2", "layers: two", "layers 'two': give a whole number"),
        ("layers: 2", "layers: 2.5", "layers 2.5: give a whole number"),
        ("layers: 2", "layers: -2", "layers -2: allowed: above 0"),
        ("vocab: 10", "bias: 3", "bias 3: give true or false"),
        ("vocab: 10", "bytes_per_token: 0", "bytes_per_token 0: in bytes of one token, such as 2; allowed: 0.01 to"),
        ("vocab: 10", "sample_bytes: 110 kB", "sample_bytes '110 kB': in bytes of one sample, such as 110e3;"),
        ("vocab: 10", "train_flops_per_sample: 24.3", "train_flops_per_sample 24.3: in FLOP of one sample, such as"),
        ("vocab: 10", "other_forward_flops_per_sample: .inf", "other_forward_flops_per_sample Infinity: give a finite"),
        ("kind: decoder", "kind: decodr", "kind 'decodr' is not allowed; nearest: decoder; allowed: decoder, "),
        ("kind: decoder, ", "", "'kind' is missing"),
        ("300e9", "much", "published_tokens 'much': in tokens of the whole training, such as 300e9;"),
    ],
)
def test_models(tmp_path: Path, old: str, new: str, line: str):
    assert old in MODEL
    found = refused(tmp_path, models.load, MODEL.replace(old, new, 1))
    assert found.startswith(line), found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{models: {a: 3}}", "models.a 3: give keys and values"),
        ("{models: {}}", "models {}: give one at least"),
        ("{models: [a]}", 'models ["a"]: give keys and values'),
        ("{common: 5, models: {a: {kind: conv}}}", "common 5: give keys and values"),
        ("{models: {a: {kind: conv}}}", "a: model a: kind conv needs published_params"),
        (
            "{common: {kind: decoder}, models: {a: {layer: 3}}}",
            "a: unknown key 'layer'; nearest: layers; allowed here: ",
        ),
        ("{models: {a: {kind: conv}}, comon: {}}", "unknown key 'comon'; nearest: common; allowed here: source, "),
    ],
)
def test_files_of_several_models(tmp_path: Path, text: str, line: str):
    found = refused(tmp_path, models.load, text)
    assert found.startswith(line), found


def test_bounds_hold_what_there_is_and_will_be():
    """A core of a CPU, and a rack of 72 devices that is one node, are plausible."""
    values: dict[str, Any] = {
        "devices_per_node": 72,
        "device": {
            "name": "next",
            "peak_flops": {"fp8": 5e15, "fp32": 1e11},
            "memory_bytes": 288e9,
            "memory_bytes_per_s": 8e12,
            "tdp_w": 1400,
        },
        "intra_node": {"bytes_per_s": 900e9},
        "inter_node": {"bytes_per_s": 12.5e6, "nics": 1},
        "node_max_w": 132_000,
        "storage": {"shared_read_bytes_per_s": 31e12},
    }
    machine = machines.parse(values, "here")
    assert machine.node_bytes_per_s == 12.5e6


def test_what_if_goes_beyond_the_bounds():
    """They are for what people write."""
    machine = machines.load("polaris").scaled(network=1e6, storage=1e6, device=1e6)
    assert machine.device.peak_flops["bf16"] == 312e18
    assert (machine.storage.shared_read_bytes_per_s, machine.storage.local_bytes) == (650e15, 3.2e12), "speed, not size"
