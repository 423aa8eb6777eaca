"""What a device could make of a trial's step, beside what was measured: the roof at its intensity, and how tiles fit.

A measured roof counts before a published one: `benchsuite probe device --store` on the same host, in the same store.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from benchsuite.analysis.device_peaks import memory_bytes_per_s, peak_flops
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.predict.theory import roofline
from benchsuite.results.render.words import counted
from benchsuite.results.store.record import Record, TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.workloads.facts import FACTS, MLP_FACTOR
from benchsuite.workloads.spec import Variant


@dataclass(frozen=True)
class Roof:
    """What a device, or a rank's share of a host's cores, can do at most."""

    peak_flops: float
    bytes_per_s: float
    source: str


def with_roof(spec: TrialSpec, record: TrialRecord, store: ResultsStore | None) -> TrialRecord:
    """The record with the roof above its step, where its operators were counted and a roof is known."""
    figures = record.figures
    if figures.arithmetic_intensity is None or figures.attained_flops_per_s is None:
        return record
    roof = _measured(spec, record, store) or _published(spec, record)
    if roof is None:
        return record
    most = float(roofline.attainable_flops(figures.arithmetic_intensity, roof.peak_flops, roof.bytes_per_s))
    found = {
        "ridge_intensity": float(roofline.ridge_intensity(roof.peak_flops, roof.bytes_per_s)),
        "roof_flops_per_s": most,
        "roof_fraction": figures.attained_flops_per_s / most,
        "roof_source": roof.source,
    }
    return record.model_copy(update={"figures": figures.model_copy(update=found)})


def _published(spec: TrialSpec, record: TrialRecord) -> Roof | None:
    """The roof that the data sheet of the trial's device states."""
    name = next((str(device["name"]) for device in record.env.get("devices") or ()), None)
    peak, bandwidth = peak_flops(name, spec.precision), memory_bytes_per_s(name)
    if spec.device != "cuda" or peak is None or bandwidth is None:
        return None
    return Roof(peak, bandwidth, f"published: {name}")


def _measured(spec: TrialSpec, record: TrialRecord, store: ResultsStore | None) -> Roof | None:
    """The roof that the last probe of this host's devices has measured.

    On a CPU the ranks of the host share its cores and its memory, so the probe must have used as many threads as they.
    """
    if store is None or not store.exists():
        return None
    ranks = 1 if spec.device == "cuda" else -(-spec.ranks // max(1, len(record.env.get("nodes") or ())))
    threads = None if spec.device == "cuda" else ranks * (spec.threads_per_rank or 0)
    probes = [
        one for one in store.latest() if one.kind == "device" and one.status == "ok" and _is_of(one, spec, record)
    ]
    gemm = f"gemm_{'bf16' if spec.precision == 'pure_bf16' else spec.precision}_tflops"
    for probe in sorted(probes, key=lambda one: one.finished_at, reverse=True):
        peak, bandwidth = probe.figures.get(gemm), probe.figures.get("memory_bytes_per_s")
        if peak and bandwidth and threads in (None, probe.spec.get("threads")):
            shared = f", shared by {counted(ranks, 'rank')}" if ranks > 1 else ""
            source = f"measured: probe device, {probe.label}, {probe.started_at[:10]}{shared}"
            return Roof(peak * 1e12 / ranks, bandwidth / ranks, source)
    return None


def _is_of(probe: Record, spec: TrialSpec, record: TrialRecord) -> bool:
    """Whether a record is a probe of the trial's host, and of a device of its kind."""
    if probe.kind != "device" or probe.status != "ok":
        return False
    same_kind = str(probe.spec.get("device")).partition(":")[0] == spec.device
    return same_kind and probe.env.get("host") == record.env.get("host")


Product = tuple[int, int, int]
"""M, N and K of (M x K) times (K x N)."""


def with_tiles(record: TrialRecord, spec: TrialSpec, samples: Mapping[str, Any] | None) -> TrialRecord:
    """The record with its `tile_efficiency`, where the device's multiprocessors and the model's products are known."""
    ranks = (samples or {}).get("ranks") or [{}]
    efficiency = tile_efficiency(spec, ranks[0].get("num_multiprocessors"))
    if efficiency is None:
        return record
    figures = record.figures.model_copy(update={"tile_efficiency": efficiency})
    return record.model_copy(update={"figures": figures})


def tile_efficiency(spec: TrialSpec, multiprocessors: int | None) -> float | None:
    """Useful share of tiles of 256 x 128 in the products of a step, over so many multiprocessors.

    None where their number is not known, in fp32, whose products have other tiles, and of models without a list of
    products: those of others, images' and volumes', and mixtures, whose router deals the rows.
    """
    facts = FACTS.get(spec.workload)
    if multiprocessors is None or facts is None or spec.precision == "fp32":
        return None
    variant = spec.variant_in(facts.variants)
    if "num_heads" not in variant.model or variant.model.get("num_experts"):
        return None
    layout = spec.layout
    samples = spec.rank_batch // (spec.grad_accum * layout.microbatches)
    if layout.pp > 1:  # ranks hold other layers, and only the last one the head
        return None
    m, n, k = zip(*products(variant, max(1, samples), layout.tp, layout.cp), strict=True)
    return float(roofline.products_efficiency(m, n, k, multiprocessors))


def products(variant: Variant, samples: int, tp: int = 1, cp: int = 1) -> Iterator[Product]:
    """The products of a rank for so many samples: of each weight's forward pass and of both its gradients.

    Those within attention are left out: its kernels cut them otherwise.
    """
    tokens = samples * variant.sample["seq_len"] // cp
    predicted = samples * variant.sample["max_predictions"] if "max_predictions" in variant.sample else tokens
    head = (-(-variant.sample["vocab_size"] // tp), cast(int, variant.model["hidden_size"]))
    weights = [
        (tokens, *weight) for _ in range(cast(int, variant.model["num_layers"])) for weight in _layer(variant, tp)
    ]
    for rows, out, inputs in [*weights, (predicted, *head)]:
        yield from ((rows, out, inputs), (rows, inputs, out), (out, inputs, rows))


def _layer(variant: Variant, tp: int) -> list[tuple[int, int]]:
    """Outputs and inputs of a layer's weights, as tensor parallelism splits them."""
    model = cast(Mapping[str, int], variant.model)
    hidden, heads = model["hidden_size"], model["num_heads"]
    grouped = model.get("num_kv_heads") or heads
    inner = (model["ffn_size"] or MLP_FACTOR * hidden) // tp
    keyed = [hidden // heads * (heads + 2 * grouped) // tp]
    if "num_kv_heads" not in model:  # BERT projects queries, keys and values one by one
        keyed = [hidden // tp] * 3
    mlp = [(inner, hidden)] * (2 if model.get("gated_mlp") else 1)
    return [*((out, hidden) for out in keyed), (hidden, hidden // tp), *mlp, (hidden, inner)]
