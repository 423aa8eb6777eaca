"""What probes measured stands in the place of what is assumed."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.errors import UserError
from benchsuite.results.store.record import CommFigures, DeviceFigures
from benchsuite.results.store.store import ResultsStore
from benchsuite_plan.layout.cost import constants_of
from benchsuite_plan.layout.measured import of_store
from benchsuite_plan.layout.plan_report import basis
from planner.tests.small import job, machine

SIZES = (1 << 20, 1 << 22, 1 << 24, 1 << 26)


def device(store: ResultsStore, **figures: float) -> None:
    measuring = Measuring("device", {"device": "cuda:0"}, "cuda:0 X", "default", {"host": "n1", "devices": []})
    store.append(measuring.record("ok", figures=DeviceFigures(**figures)))


def all_reduces(store: ResultsStore, ranks: int, nodes: int, bytes_per_s: float, latency_s: float = 1e-5) -> None:
    """Rings at a rate, and a latency."""
    for size in SIZES:
        spec = {"op": "all_reduce", "algorithm": "backend", "dtype": "fp32", "backend": "nccl"}
        spec |= {"world_size": ranks, "nodes": nodes, "num_bytes": size}  # type: ignore[dict-item]
        measuring = Measuring("comm", spec, f"{size} {ranks}", "default", {"host": "n1", "devices": []})
        seconds = latency_s + 2 * (ranks - 1) / ranks * size / bytes_per_s
        store.append(measuring.record("ok", figures=CommFigures(comm_s=seconds)))


def test_products_and_memory_are_those_of_the_last_probe(tmp_path: Path):
    store = ResultsStore(tmp_path)
    device(store, gemm_bf16_tflops=0.6, memory_bytes_per_s=5e11)
    found = of_store(store, machine(), "bf16")
    assert found == pytest.approx({"matrix_efficiency": 0.6, "memory_efficiency": 0.5})
    known = replace(job(2), measured=found)
    constants = constants_of(known, known.typical)
    assert constants.flops_per_s == pytest.approx(0.6e12)
    assert constants_of(known, known.drawn(5)).flops_per_s == pytest.approx(0.6e12), "no range"
    assert basis(known).startswith(
        "Measured by probes: matrix_efficiency 0.6, memory_efficiency 0.5; all else of small"
    )


def test_links_are_those_of_the_largest_all_reduce_on_one_node_and_on_several(tmp_path: Path):
    store = ResultsStore(tmp_path)
    all_reduces(store, 2, 1, 7e9)
    all_reduces(store, 4, 2, 1.5e9, 5e-5)
    found = of_store(store, machine(), "bf16")
    rates = {"link_efficiency": 0.7, "network_efficiency": 0.75}
    assert found == pytest.approx(rates | {"link_latency_s": 5e-6, "network_latency_s": 2e-5}, rel=1e-3)
    stated = machine()
    stated = stated.changed(intra_node=stated.intra_node.changed(latency_s=1e-3))
    known = replace(job(4), measured=found, machine=stated)
    constants = constants_of(known, known.typical)
    assert (constants.link_bytes_per_s, constants.node_bytes_per_s) == pytest.approx((7e9, 1.5e9), rel=1e-3)
    latencies = constants.link_latency_s, constants.network_latency_s
    assert latencies == pytest.approx((5e-6, 2e-5), rel=1e-3), "before what the machine states"


def test_latencies_between_nodes_need_those_within(tmp_path: Path):
    """Two messages of each kind follow each other; rings of one device a node have none within."""
    store = ResultsStore(tmp_path / "both")
    all_reduces(store, 4, 2, 1.5e9)
    assert "network_latency_s" not in of_store(store, machine(), "bf16")
    store = ResultsStore(tmp_path / "between")
    all_reduces(store, 2, 2, 1.5e9)
    assert of_store(store, machine(), "bf16")["network_latency_s"] == pytest.approx(5e-6, rel=1e-3)


def test_a_latency_that_noise_hides_is_not_taken(tmp_path: Path):
    store = ResultsStore(tmp_path)
    all_reduces(store, 2, 1, 7e9, 0.0)
    assert {*of_store(store, machine(), "bf16")} == {"link_efficiency"}


def test_a_store_without_probes_is_refused(tmp_path: Path):
    device(ResultsStore(tmp_path), gemm_fp32_tflops=0.1, memory_bytes_per_s=5e11)
    with pytest.raises(UserError, match="no probe of a device at bf16, nor of an all_reduce; allowed: a store of"):
        of_store(ResultsStore(tmp_path), machine(), "bf16")


def test_probes_of_another_machine_are_refused(tmp_path: Path):
    device(ResultsStore(tmp_path), gemm_bf16_tflops=0.001, memory_bytes_per_s=5e11)
    with pytest.raises(UserError, match=r"matrix_efficiency 0.001 of what small states; allowed: 0.02 to 1.5"):
        of_store(ResultsStore(tmp_path), machine(), "bf16")
