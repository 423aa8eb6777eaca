"""How fast a device could run a trial's step: the roof at its intensity, and how well tiles fit its products.

A measured roof takes precedence over a published one: `benchsuite probe device --store` on the same host, in the same
store.
"""

import math
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
    """The most that a device, or a rank's share of a host's cores, can do."""

    peak_flops: float
    bytes_per_s: float
    source: str


def with_roof(spec: TrialSpec, record: TrialRecord, store: ResultsStore | None) -> TrialRecord:
    """Return the record with the roof above its step.

    It is unchanged where its operators were not counted, and where no roof is known. `store` holds the probes that
    measured a roof; None: only a published one counts.
    """
    figures = record.figures
    if figures.arithmetic_intensity is None or figures.attained_flops_per_s is None:
        return record
    roof = _measured_roof(spec, record, store) or _published_roof(spec, record)
    if roof is None:
        return record
    attainable = float(roofline.attainable_flops(figures.arithmetic_intensity, roof.peak_flops, roof.bytes_per_s))
    roof_figures = {
        "ridge_intensity": float(roofline.ridge_intensity(roof.peak_flops, roof.bytes_per_s)),
        "roof_flops_per_s": attainable,
        "roof_fraction": figures.attained_flops_per_s / attainable,
        "roof_source": roof.source,
    }
    return record.model_copy(update={"figures": figures.model_copy(update=roof_figures)})


def _published_roof(spec: TrialSpec, record: TrialRecord) -> Roof | None:
    """Return the roof of the device's data sheet; None where it is no CUDA device, or its figures are not known."""
    name = next((str(device["name"]) for device in record.env.get("devices") or ()), None)
    peak, bandwidth = peak_flops(name, spec.precision), memory_bytes_per_s(name)
    if spec.device != "cuda" or peak is None or bandwidth is None:
        return None
    return Roof(peak, bandwidth, f"published: {name}")


def _measured_roof(spec: TrialSpec, record: TrialRecord, store: ResultsStore | None) -> Roof | None:
    """Return the roof that the last probe of the host's devices measured; None where the store has no such probe.

    On a CPU the ranks of the host share its cores and its memory, so the probe must have used as many threads as all of
    them, and a rank's roof is its share.
    """
    if store is None or not store.exists():
        return None
    ranks = 1 if spec.device == "cuda" else math.ceil(spec.ranks / max(1, len(record.env.get("nodes") or ())))
    threads = None if spec.device == "cuda" else ranks * (spec.threads_per_rank or 0)
    probes = [probe for probe in store.latest() if _is_probe_of(probe, spec, record)]
    gemm = f"gemm_{'bf16' if spec.precision == 'pure_bf16' else spec.precision}_tflops"
    for probe in sorted(probes, key=lambda probe: probe.finished_at, reverse=True):
        peak, bandwidth = probe.figures.get(gemm), probe.figures.get("memory_bytes_per_s")
        if peak and bandwidth and threads in (None, probe.spec.get("threads")):
            shared = f", shared by {counted(ranks, 'rank')}" if ranks > 1 else ""
            source = f"measured: probe device, {probe.label}, {probe.started_at[:10]}{shared}"
            return Roof(peak * 1e12 / ranks, bandwidth / ranks, source)
    return None


def _is_probe_of(probe: Record, spec: TrialSpec, record: TrialRecord) -> bool:
    """Return whether a record is a probe of the trial's host that ended well, on a device of the trial's kind."""
    if probe.kind != "device" or probe.status != "ok":
        return False
    same_kind = str(probe.spec.get("device")).partition(":")[0] == spec.device
    return same_kind and probe.env.get("host") == record.env.get("host")


Product = tuple[int, int, int]
"""M, N and K of (M x K) times (K x N)."""


def with_tiles(record: TrialRecord, spec: TrialSpec, samples: Mapping[str, Any] | None) -> TrialRecord:
    """Return the record with its `tile_efficiency`; unchanged where that cannot be computed."""
    ranks = (samples or {}).get("ranks") or [{}]
    efficiency = tile_efficiency(spec, ranks[0].get("num_multiprocessors"))
    if efficiency is None:
        return record
    figures = record.figures.model_copy(update={"tile_efficiency": efficiency})
    return record.model_copy(update={"figures": figures})


def tile_efficiency(spec: TrialSpec, multiprocessors: int | None) -> float | None:
    """Return the useful share of tiles of 256 x 128 in the products of a step, on so many multiprocessors.

    None where their number is not known, in fp32, whose products have other tiles, in a pipeline, and for models
    without a list of products: workloads of other packages, images, volumes, and mixtures of experts, whose router
    deals the rows.
    """
    facts = FACTS.get(spec.workload)
    if multiprocessors is None or facts is None or spec.precision == "fp32":
        return None
    variant = spec.variant_in(facts.variants)
    if "num_heads" not in variant.model or variant.model.get("num_experts"):
        return None
    layout = spec.layout
    samples = spec.rank_batch // (spec.grad_accum * layout.microbatches)
    if layout.pp > 1:  # stages have different layers, and only the last one has the head
        return None
    m, n, k = zip(*products(variant, max(1, samples), layout.tp, layout.cp), strict=True)
    return float(roofline.products_efficiency(m, n, k, multiprocessors))


def products(variant: Variant, samples: int, tp: int = 1, cp: int = 1) -> Iterator[Product]:
    """Yield the products of a rank for so many samples: one of each weight's forward pass, and two of its gradients.

    Products within attention are left out, because its kernels have other tiles.
    """
    tokens = samples * variant.sample["seq_len"] // cp
    predicted = samples * variant.sample["max_predictions"] if "max_predictions" in variant.sample else tokens
    head = (math.ceil(variant.sample["vocab_size"] / tp), cast(int, variant.model["hidden_size"]))
    num_layers = cast(int, variant.model["num_layers"])
    layer = [(tokens, outputs, inputs) for outputs, inputs in _layer_weights(variant, tp)]
    for rows, out, inputs in [*layer * num_layers, (predicted, *head)]:
        yield from ((rows, out, inputs), (rows, inputs, out), (out, inputs, rows))


def _layer_weights(variant: Variant, tp: int) -> list[tuple[int, int]]:
    """Return outputs and inputs of each weight of a layer, as tensor parallelism splits them."""
    model = cast(Mapping[str, int], variant.model)
    hidden, heads = model["hidden_size"], model["num_heads"]
    kv_heads = model.get("num_kv_heads") or heads
    ffn = (model["ffn_size"] or MLP_FACTOR * hidden) // tp
    qkv = [hidden // heads * (heads + 2 * kv_heads) // tp]
    if "num_kv_heads" not in model:  # BERT projects queries, keys and values one by one
        qkv = [hidden // tp] * 3
    mlp = [(ffn, hidden)] * (2 if model.get("gated_mlp") else 1)
    return [*((out, hidden) for out in qkv), (hidden, hidden // tp), *mlp, (hidden, ffn)]
