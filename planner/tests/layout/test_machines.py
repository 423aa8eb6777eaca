"""Machines as YAML: every figure has a source, and what is not known stays so."""

from pathlib import Path

import pytest

from benchsuite.analysis import device_peaks
from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import machines

MINE = """
devices_per_node: 2
device: {name: own, peak_flops: {fp32: 1.0e+12}, memory_bytes: 8.0e+9, memory_bytes_per_s: 1.0e+11}
intra_node: {bytes_per_s: 1.0e+10}
inter_node: {bytes_per_s: 1.0e+9, nics: 2, oversubscription: 4}
storage: {shared_read_bytes_per_s: 3.0e+9}
"""


@pytest.mark.parametrize("name", machines.names())
class TestShipped:
    def test_has_sources_and_plausible_figures(self, name: str):
        machine = machines.load(name)
        assert machine.sources and machine.title
        assert machine.node_bytes_per_s < machine.intra_node.bytes_per_s * machine.devices_per_node
        assert machine.device.memory_bytes_per_s > machine.intra_node.bytes_per_s

    def test_every_figure_is_in_a_source(self, name: str):
        """As the documents print it: TFLOP/s, GB, GB/s or TB/s, W, kW, Gb/s of an adapter, links both ways or one."""
        machine, device = machines.load(name), machines.load(name).device
        told = " ".join(machine.sources).replace(",", "")
        memory = {f"{device.memory_bytes / 2**30:.0f} GB", f"{device.memory_bytes / 1e9:.0f} GB"}
        rate, links = device.memory_bytes_per_s, machine.intra_node.bytes_per_s
        factor, stored = device.matrix_efficiency_factor, machine.storage.model_dump().values()
        figures = [
            *({f"{peak / 1e12:g}"} for peak in device.peak_flops.values()),
            memory,
            {f"{rate / 1e9:g} GB/s", f"{rate / 1e12:g} TB/s"},
            {f"{device.tdp_w:g} W"},
            {f"{2 * links / 1e9:g} GB/s both", f"{links / 1e9:g} GB/s each way"},
            {f"{machine.inter_node.bytes_per_s * 8 / 1e9:g} Gb/s", f"{machine.inter_node.bytes_per_s / 1e9:g} GB/s"},
            *([{f"{machine.nodes} nodes", f"{machine.nodes} DGX"}] if machine.nodes else []),
            *([{f"{machine.node_max_w / 1e3:g} kW"}] if machine.node_max_w else []),
            *([{"versubscription 1"}] if machine.inter_node.oversubscription else []),
            *([{f"matrix_efficiency_factor {factor}"}] if factor else []),
            *({f"{value / 1e9:g} GB/s", f"{value / 1e12:g} TB"} for value in stored if value),
        ]
        assert [figure for figure in figures if not any(each in told for each in figure)] == []

    def test_peaks_are_those_of_the_suite(self, name: str):
        device = machines.load(name).device
        for precision in ("fp32", "tf32", "bf16"):
            known = device_peaks.peak_flops(device.name, precision)  # type: ignore[arg-type]
            if known is not None and "custom" not in device.name:
                assert device.peak_flops[precision] == known


def test_the_machines_there_are():
    assert machines.names() == [
        "berzelius",
        "dgx-a100",
        "dgx-h100",
        "dgx-h200",
        "frontera-rtx",
        "leonardo",
        "polaris",
        "power8-p100",
    ]


def test_a_custom_a100_has_the_peak_of_its_multiprocessors():
    """124 of them instead of 108."""
    ratio = machines.load("leonardo").device.peak_flops["bf16"] / machines.load("dgx-a100").device.peak_flops["bf16"]
    assert ratio == pytest.approx(124 / 108, rel=1e-3)


def test_dense_peaks_only():
    assert machines.load("dgx-h100").peak_flops("bf16") == 989.4e12


def test_what_is_not_known_is_null():
    assert machines.load("leonardo").inter_node.oversubscription is None
    assert machines.load("polaris").node_max_w is None
    assert machines.load("dgx-a100").nodes is None


class TestOwnFile:
    def write(self, tmp_path: Path, text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    def test_a_node_sends_through_all_adapters_less_what_is_oversubscribed(self, tmp_path: Path):
        machine = machines.load(self.write(tmp_path, MINE))
        assert (machine.name, machine.node_bytes_per_s) == ("mine", 0.5e9)

    def test_scaled(self, tmp_path: Path):
        machine = machines.load(self.write(tmp_path, MINE)).scaled(network=2, storage=3, device=4)
        assert machine.node_bytes_per_s == 1e9
        assert machine.storage.shared_read_bytes_per_s == 9e9
        assert machine.storage.local_read_bytes_per_s is None
        assert (machine.device.peak_flops["fp32"], machine.device.memory_bytes_per_s) == (4e12, 4e11)
        assert machine.device.memory_bytes == 8e9, "speed, not size"

    def test_a_precision_without_a_peak(self, tmp_path: Path):
        with pytest.raises(UserError, match=r"--precision 'bf16'.*allowed: fp32.*own of mine"):
            machines.load(self.write(tmp_path, MINE)).peak_flops("bf16")

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("devices_per_node", "device_per_node", "unknown key 'device_per_node'.*nearest: devices_per_node"),
            ("fp32: 1.0", "fp33: 1.0", "'fp33'.*nearest: fp32"),
            ("memory_bytes: 8.0e+9", "memory_bytes: -8", "memory_bytes -8"),
            ("nics: 2", "nics: two", "nics 'two'"),
            ("oversubscription: 4", "oversubscription: 0.5", "oversubscription 0.5"),
            ("intra_node: {bytes_per_s: 1.0e+10}", "", "'intra_node' is missing"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, old: str, new: str, words: str):
        with pytest.raises(UserError, match=words) as raised:
            machines.load(self.write(tmp_path, MINE.replace(old, new)))
        assert "mine.yaml" in str(raised.value)

    def test_an_unknown_name(self):
        with pytest.raises(UserError, match=r"'polari' is unknown.*nearest: polaris"):
            machines.load("polari")
        with pytest.raises(UserError, match=r"gone\.yaml"):
            machines.load("gone.yaml")
