"""Run the benchmarks and print each claim with its goal: all of them, or the sections named as arguments.

Each section leaves what it printed in bench/results/SECTION.json, which the documentation shows.
IMAGENET_SAMPLE=DIR adds real photographs to compare with, PUBLISHED_TABLES=FILE published measurements to predict.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bench import (
    au,
    comm,
    dlio,
    epochs,
    gate,
    generation,
    gpu,
    jpegs,
    links,
    loaders,
    models,
    nights,
    objects,
    photographs,
    plan,
    planned,
    plans,
    predict,
    probe,
    profile,
    real,
    report,
    screens,
    sessions,
    site,
    staging,
    startup,
    steps,
    stock,
    store,
    verdicts,
    volumes,
    watch,
)
from bench.tables import goal, kept, print_best
from bench.throttle import CannotThrottle
from benchsuite.contract.exit_codes import REGRESSION
from benchsuite.results.store.record import CANNOT_TELL
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.rawspeed import fio

MAX_STEP_RATIO = 1.02
MAX_OWN_RATIO = 1.01
MAX_TRIAL_COST_S = 0.5
MAX_HELP_S = 0.3
MAX_MODEL_RATIO = 1.0
MAX_DECODE_DIFFERENCE = 0.15
MIN_WRITE_RATIO = 0.5
MIN_JPEG_RATIO = 0.9
MIN_COLD_RATIO = 0.95
MAX_STOCK_MEDIAN, MAX_STOCK_APART, MIN_STOCK_NEAR = 0.02, 0.05, 0.9
MIN_RIGHT = 0.95
MAX_FALSE_ALARMS, MIN_FOUND = 0.01, 0.95
MAX_PROFILE_RATIO = 1.05
MAX_PROBE_DIFFERENCE = 0.1
MAX_COMPACT_S = 120.0
MAX_COMPACT_BYTES = 2e9
MAX_QUERY_S = 1.0
MAX_FRAME_S = 2.0
MAX_PRINT_S = {"table": 3.0, "csv": 3.0, "html": 8.0}
MAX_PRINT_BYTES = 400e6
MAX_REPORT_BYTES, MAX_OPEN_S = 6e6, 2.0
MAX_PUBLISH_S = 120.0
MAX_PLAN_S, MAX_PLAN_BYTES = 10.0, 1e9


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"median {np.median(values):.3f} s ({min(values):.3f}..{max(values):.3f}, n={len(values)})"


def main(arguments: list[str]) -> None:
    """Print every figure, side by side with what it is compared to."""
    sections: dict[str, Callable[[Path], None]] = {
        "steps": print_steps,
        "watch": print_watch,
        "models": print_models,
        "gpu": print_gpu,
        "planned": planned.show,
        "startup": print_startup,
        "photographs": print_photographs,
        "au": print_au,
        "generation": print_generation,
        "stock": print_stock,
        "epochs": print_epochs,
        "verdicts": print_verdicts,
        "sessions": print_sessions,
        "loaders": print_loaders,
        "sequences": print_sequences,
        "jpegs": print_jpegs,
        "volumes": print_volumes,
        "dlio": print_dlio,
        "profile": print_profile,
        "probe": print_probe,
        "staging": print_staging,
        "gate": print_gate,
        "nights": print_nights,
        "screens": print_screens,
        "site": print_site,
        "plan": print_plan,
        "store": print_store,
        "report": print_report,
        "predict": predict.show,
        "plans": plans.show,
        "comm": comm.show,
        "links": links.show,
        "objects": objects.show,
    }
    asked = [name for name in arguments if not name.startswith("-")]
    options = " ".join(name for name in arguments if name.startswith("-"))
    unknown = [name for name in asked if name not in sections]
    if unknown:
        sys.exit(f"error: no section {unknown[0]!r}; allowed: {', '.join(sections)}")
    for name in asked or sections:
        with tempfile.TemporaryDirectory(prefix="benchsuite-bench-") as folder, kept(name, options):
            sections[name](Path(folder))


def photographs_in(folder: Path) -> Path:
    """A small dataset of files."""
    generate_dataset(folder / "files", Wanted("resnet50", "tiny", "files"), 256)
    return folder / "files"


def print_steps(folder: Path) -> None:
    """(a)"""
    ratios, direct_us, step_ms = steps.measure(photographs_in(folder))
    print(f"(a) step time of a trial over the shortest plain PyTorch loop (plain step {step_ms:.1f} ms, 1 thread)")
    for name, ratio in ratios.items():
        print(f"    {name}: {ratio}")
        if name.startswith("trial"):
            print(goal(ratio.low <= MAX_STEP_RATIO, f"lower bound <= {MAX_STEP_RATIO}"))
    print(f"    direct cost of clock, counters and heartbeat: {direct_us:.1f} us a step")
    own, bare_ms = steps.own_cost()
    print(f"    own cost of the harness in steps of {bare_ms:.0f} ms: with clock and heartbeat over without")
    for name, ratio in own.items():
        print(f"    {name}: {ratio}")
    print(goal(own["instrumented / bare"].high <= MAX_OWN_RATIO, f"whole interval <= {MAX_OWN_RATIO}"))
    print(f"    overhead_fraction by direct cost: {direct_us / bare_ms / 1e3:.5%}")


def print_watch(folder: Path) -> None:
    """(j)"""
    ratios, direct_us = watch.measure(photographs_in(folder))
    print("(j) a training loop in benchsuite.watch over the same loop without (ResNet-50 tiny, batch 8, 1 thread)")
    for name, ratio in ratios.items():
        print(f"    {name}: {ratio}")
        if name.startswith("watched"):
            print(goal(ratio.low <= MAX_OWN_RATIO, f"lower bound <= {MAX_OWN_RATIO}"))
    for name, cost_us in direct_us.items():
        print(f"    direct cost, {name}: {cost_us:.1f} us a step")


def print_models(_folder: Path) -> None:
    """(g)"""
    print("(g) a step of each tiny model over the same model's by transformers or MONAI, float32, 1 thread")
    for name, (ratio, ours_ms) in models.measure().items():
        print(f"    {name}: {ratio} (ours {ours_ms:.0f} ms)")
        print(goal(ratio.low <= MAX_MODEL_RATIO, f"<= {MAX_MODEL_RATIO}, within its interval"))


def print_gpu(_folder: Path) -> None:
    """(h)"""
    if not torch.cuda.is_available():
        print("(h) reference variants on a CUDA device: not run; torch sees none")
        return
    print(f"(h) reference variants on {torch.cuda.get_device_name()}, bfloat16, compiled, synthetic samples")
    for name, wanted in gpu.GOALS.items():
        found = gpu.trial(wanted.spec)
        value = getattr(found, wanted.figure)
        print(
            f"    {name}: {wanted.figure} {value:.3g}, {found.samples_per_s:,.1f} samples/s, {found.step_s_mean:.4f} s"
        )
        print(goal(value is not None and value >= wanted.least, f"{wanted.figure} >= {wanted.least}"))
    ratio, seconds = gpu.unet3d_ratio()
    print(f"    UNet3D 128^3 step over the plainest loop's: {ratio:.3f} ({seconds:.4f} s)")
    print(goal(ratio <= MAX_STEP_RATIO, f"<= {MAX_STEP_RATIO}"))


def print_report(folder: Path) -> None:
    """(r)"""
    for points in report.STORES:
        print(f"(r) `report` of {report.RECORDS:,} records of {points:,} points")
        for name, one in report.printed(folder / str(points), points).items():
            most_s = MAX_PRINT_S[name]
            print(f"    {name}: {one.seconds:.1f} s, {one.peak_bytes / 1e6:.0f} MB")
            print(goal(one.seconds <= most_s, f"<= {most_s:.0f} s"))
            if name != "html":
                print(goal(one.peak_bytes <= MAX_PRINT_BYTES, f"<= {MAX_PRINT_BYTES / 1e6:.0f} MB"))
    print(f"(r) the HTML report of {report.TRIALS:,} trials of {report.POINTS:,} points")
    found = report.measure(folder)
    if found is None:
        print("    not opened: no Chromium is installed (`make browser` installs it on Debian)")
        return
    print(f"    written in {found.write_s:.1f} s, {found.num_bytes / 1e6:.2f} MB")
    print(goal(found.num_bytes <= MAX_REPORT_BYTES, f"<= {MAX_REPORT_BYTES / 1e6:.0f} MB"))
    print(f"    opened and drawn: {spread(found.open_s)}")
    print(goal(float(np.median(found.open_s)) <= MAX_OPEN_S, f"<= {MAX_OPEN_S} s"))


def print_startup(folder: Path) -> None:
    """(b) and (c)"""
    photographs_in(folder)
    print("(b) a 2-rank tiny trial beyond its own steps, the sweep under way")
    for source, costs in startup.trial_costs(folder, folder).items():
        print(f"    source {source}: {spread(costs)}")
        print(goal(float(np.median(costs)) <= MAX_TRIAL_COST_S, f"<= {MAX_TRIAL_COST_S} s"))
    print(f"    torchrun, 2 ranks, gloo group, one barrier: {spread(startup.torchrun_starts(folder))}")
    times = startup.help_times()
    print(f"(c) benchsuite --help: {spread(times)}")
    print(goal(float(np.median(times)) <= MAX_HELP_S, f"<= {MAX_HELP_S} s"))


def print_photographs(folder: Path) -> None:
    """(d)"""
    sample = os.environ.get("IMAGENET_SAMPLE")
    if not sample:
        print("(d) generated against real photographs: not run; give a folder of ImageNet JPEGs as IMAGENET_SAMPLE=DIR")
        return
    found = photographs.compare(Path(sample))
    print(
        f"(d) generated photographs: mean {found['generated_mean_bytes'] / 1e3:.0f} KB, decode "
        f"{found['generated_ms_per_mp']:.2f} ms/MP; real: {found['real_mean_bytes'] / 1e3:.0f} KB, "
        f"{found['real_ms_per_mp']:.2f} ms/MP; ratio {found['decode_ratio']:.3f}"
    )
    print(goal(abs(found["decode_ratio"] - 1) <= MAX_DECODE_DIFFERENCE, f"within {MAX_DECODE_DIFFERENCE:.0%}"))


def print_au(folder: Path) -> None:
    """(i)"""
    if "--real" in sys.argv:
        return real.show(folder)
    full = "--full" in sys.argv
    print(f"(i) AU of emulated devices beside the truth; load average {os.getloadavg()[0]:.1f}")
    print("| trial | truth | AU | least..most | error |")
    print("|---|---|---|---|---|")
    found = au.measure(folder, au.all_cases(), 1) if full else au.measure(folder, au.some_cases(), 3)
    for one in found:
        values = f"{np.median(one.au):.3f} | {min(one.au):.3f}..{max(one.au):.3f}"
        truth = "readers' clock" if one.by_readers else f"{one.case.truth:.3f}"
        print(f"| {one.case.label} | {truth} | {values} | {one.error:+.3f} |")
    errors = np.abs([one.error for one in found])
    far = int((errors > au.TOLERANCE).sum())
    late = np.median([one.late_s for one in found])
    print(f"    {len(found)} trials: mean error {errors.mean():.4f}, largest {errors.max():.3f}, {far} beyond the goal")
    print(f"    {sum(one.by_readers for one in found)} by the readers' own clock")
    print(goal(far == 0, f"all within {au.TOLERANCE}"))
    print(f"    ranks woke {late * 1e3:.3f} ms late on average in the middle trial")


def print_generation(folder: Path) -> None:
    """(e)"""
    print("(e) writing volumes beside the disk's own streaming speed, both flushed to the disk")
    for name, ratio in generation.measure(folder).items():
        rates = f"{ratio.ours / 1e6:,.0f} MB/s, disk {ratio.disk / 1e6:,.0f} MB/s"
        print(f"    {name}: {rates}, ratio {ratio.ratio:.2f} ({ratio.least:.2f}..{ratio.most:.2f})")
        print(goal(ratio.ratio >= MIN_WRITE_RATIO, f">= {MIN_WRITE_RATIO}"))


def print_profile(folder: Path) -> None:
    """(k)"""
    print("(k) CPU seconds of a loader with its I/O profiled over those without; warm, reading in the training process")
    ratios, direct_us = profile.measure(folder)
    for name, (ratio, null) in ratios.items():
        what = "token" if name in profile.WORKLOADS else "BERT"
        print(f"    {what} sequences, {name}: {ratio}; null run {null.median:.4f} [{null.low:.4f} {null.high:.4f}]")
        print(goal(ratio.high <= MAX_PROFILE_RATIO, f"upper bound <= {MAX_PROFILE_RATIO}"))
    print(f"    noting how a file is read whole (open, fstat, read, close): {direct_us:.1f} us")


def print_loaders(folder: Path) -> None:
    """(f)"""
    text, goals = loaders.report(folder, workers=2)
    print(text)
    for met, what in goals:
        print(goal(met, what))


def print_sequences(folder: Path) -> None:
    """(f5)"""
    print(loaders.report_sequences(folder, workers=2))


def print_probe(folder: Path) -> None:
    """(i)"""
    if not fio.installed():
        print("(i) our own reads beside fio's: not run; fio is not installed")
        return
    print("(i) the own engine of `probe storage` beside fio: the same file, reads and readers, interleaved rounds")
    pairs = list(probe.measure(folder))
    print(probe.table(pairs))
    far = [pair for pair in pairs if abs(pair.ratio - 1) > MAX_PROBE_DIFFERENCE]
    print(goal(not far, f"own / fio within {MAX_PROBE_DIFFERENCE:.0%}: {len(pairs) - len(far)} of {len(pairs)} cells"))


def print_jpegs(folder: Path) -> None:
    """(f2)"""
    print("(f2) warm photographs through two workers over decoding and augmenting them in memory in two processes")
    scene = loaders.image_scene(folder / "warm", jpegs.SAMPLES, 2)
    print_best(jpegs.measure(scene), MIN_JPEG_RATIO)
    print("    DALI over its own plainest use")
    print_best(jpegs.of_dali(scene), 1.0)
    print("    cold: whole epochs with the start of the loader")
    print_best(jpegs.measure_cold(loaders.image_scene(folder / "cold", jpegs.COLD_SAMPLES, 2)), MIN_JPEG_RATIO)


def print_volumes(folder: Path) -> None:
    """(f3)"""
    print("(f3) cold volumes through two workers over preadv of the same files by two threads")
    print_best(volumes.measure(folder, 2), MIN_COLD_RATIO)


def print_dlio(folder: Path) -> None:
    """(f4)"""
    print("(f4) our loaders beside DLIO: the same samples, as many workers, turns in one run")
    if not dlio.interpreter():
        return print("     not run; DLIO_PYTHON names no interpreter that has dlio_benchmark")
    rows = list(dlio.measure(folder))
    print(dlio.table(rows))
    for (extension, cold), wanted in dlio.GOALS.items():
        asked = [row for row in rows if (row.extension, row.cold) == (extension, cold)]
        for num_samples in sorted({row.num_samples for row in asked}):
            least = min(row.best for row in asked if row.num_samples == num_samples)
            what = f"{num_samples:,} of {extension} {'cold' if cold else 'warm'}, best loader / DLIO"
            print(goal(least >= wanted, f"{what} >= {wanted}"))


def print_staging(folder: Path) -> None:
    """(s)"""
    print("(s) utilization of emulated accelerators fed by a throttled shared disk and by node-local copies")
    try:
        lines = staging.measure(folder)
    except CannotThrottle as error:
        print(f"    not run: {error}")
        return
    print(staging.table(lines))
    Path("docs/staging.svg").write_text(staging.figure(lines))


def print_stock(folder: Path) -> None:
    """(k)"""
    print("(k) reader stock beside the plainest script with the same library: samples/s over the script's")
    found = stock.report(folder)
    off = {cell: abs(compared.ratio.median - 1) for cell, compared in found.items()}
    middle = float(np.median([compared.ratio.median for compared in found.values()]))
    near, wrong = sum(apart <= MAX_STOCK_APART for apart in off.values()) / len(off), stock.orders(found)
    print(goal(abs(middle - 1) <= MAX_STOCK_MEDIAN, f"median of all cells within {MAX_STOCK_MEDIAN:.0%}: {middle:.3f}"))
    print(goal(near >= MIN_STOCK_NEAR, f"{MIN_STOCK_NEAR:.0%} of cells within {MAX_STOCK_APART:.0%}: {near:.0%}"))
    print(goal(not wrong, f"the same order where the scripts' rates are apart: {'; '.join(wrong) or 'everywhere'}"))


def print_epochs(folder: Path) -> None:
    """(l)"""
    print("(l) measure.epochs: 1, and cold windows of 24 steps, beside whole epochs, on a disk limited to 15 MB/s")
    columns = ("format", "AU of the epoch", "by epochs: 1", "AU of the windows", "read amplification", "they say")
    print(f"| {' | '.join(columns)} |\n|---|---|---|---|---|---|")
    try:
        found = epochs.report(folder)
    except CannotThrottle as error:
        print(f"    not measured: {error}")
        return
    trials = {
        "epochs: 1": [(cell.truth, cell.epoch) for cell in found],
        "windows": [(cell.truth, window) for cell in found for window in cell.windows],
    }
    for name, pairs in trials.items():
        off = [epochs.off_by(*pair) for pair in pairs]
        near = sum(apart <= epochs.GOAL for apart in off)
        held = sum(apart <= epochs.GOAL + (pair[1].au_epoch_error or 0) for apart, pair in zip(off, pairs, strict=True))
        said = f"{name}: {near} of {len(pairs)} within {epochs.GOAL} of the epoch, {held} within their error and that"
        print(goal(near == len(pairs), said))


def print_verdicts(folder: Path) -> None:
    """(n)"""
    print("(n) causes that were made, and what trials and watch say of them")
    found = verdicts.report(folder)
    told = [one for one in found if one.said not in (None, CANNOT_TELL, verdicts.SHARED_MEMORY)]
    right = sum(one.said in one.cause.expected for one in told)
    abstained = sum(one.said == CANNOT_TELL for one in found)
    print("\n".join(verdicts.matrix(found)))
    print(goal(right >= MIN_RIGHT * len(told), f"{right} of {len(told)} causes that are named are right (goal: 95 %)"))
    print(f"    of {len(found)} causes {abstained} abstentions, {sum(one.said is None for one in found)} not made here")


def print_sessions(folder: Path) -> None:
    """(o)"""
    print("(o) volumes of 15 MB from LMDB, warm, one worker: samples/s in ten sessions")
    columns = ("sessions", "samples/s", "most over least", "plain copy before each", "correlation with it", "caveats")
    print(f"| {' | '.join(columns)} |\n|---|---|---|---|---|---|")
    for found in sessions.report(folder):
        rates, caveats = " ".join(f"{rate:.0f}" for rate in found.rates), ", ".join(found.caveats) or "none"
        beside = f"{found.spread:.2f} | {found.spread_of_copying:.2f} | {found.correlation:.2f}"
        print(f"| {found.condition.name} | {rates} | {beside} | {caveats} |")


def print_store(folder: Path) -> None:
    """(m)"""
    path = folder / "store"
    num_trials = store.make(path)
    size, raw = (store.folder_bytes(path / "segments", name) / 1e9 for name in ("*[0-9].jsonl", "*.samples.jsonl"))
    print(f"(m) {store.NUM_RECORDS:,} records ({size:.1f} GB, and {raw:.1f} GB raw samples) of {num_trials:,} trials")
    done = store.called(path, "compact")
    assert done.num_rows == store.NUM_RECORDS
    parquet = store.folder_bytes(path / "parquet", "*.parquet") / 1e9
    print(
        f"    results compact: {done.seconds:.1f} s, {done.peak_bytes / 1e9:.2f} GB of memory, {parquet:.2f} GB Parquet"
    )
    met = done.seconds <= MAX_COMPACT_S and done.peak_bytes <= MAX_COMPACT_BYTES
    print(goal(met, f"<= {MAX_COMPACT_S:.0f} s, <= {MAX_COMPACT_BYTES / 1e9:.0f} GB"))
    query = store.called(path, "sql", query=store.QUERY)
    assert query.again_s is not None and query.num_trials == num_trials // 2
    print(f"    filter and group by two columns: {query.again_s:.2f} s; first time with imports {query.seconds:.2f} s")
    print(goal(query.again_s <= MAX_QUERY_S, f"<= {MAX_QUERY_S:.0f} s"))
    frame = store.called(path, "frame", columns=store.COLUMNS, where="session = 's3'")
    assert frame.again_s is not None
    what = f"frame() of {frame.num_rows:,} rows, {len(store.COLUMNS)} columns"
    print(f"    {what}: {frame.again_s:.2f} s; first time with imports {frame.seconds:.2f} s")
    print(goal(frame.again_s <= MAX_FRAME_S and frame.num_rows >= 99_000, f"<= {MAX_FRAME_S:.0f} s"))


def print_gate(_folder: Path) -> None:
    """(n)"""
    print("(n) the nightly gate on simulated histories of 100 points, beside asv's own rule; steps of sigma")
    found = gate.measure()
    print(gate.table(found))
    print("    plain noise, by the nights of the baseline where nothing else is known:")
    for num_nights in gate.BASELINES:
        told = zip(gate.PROMISED, gate.after(num_nights), strict=True)
        print(f"    {num_nights}: " + ", ".join(f"{s:g} sigma within {n} nights {share:.1%}" for (s, n), share in told))
    print_halved(max(cell.ours.halved for cell in found.values()))
    alarms = [cell.ours.false_alarms for cell in found.values()]
    print(goal(max(alarms) < MAX_FALSE_ALARMS, f"false alarms on less than {MAX_FALSE_ALARMS:.0%} of nights"))
    for number, (sigmas, within) in enumerate(gate.PROMISED):
        most = {which: cell.best.found[number] for which, cell in found.items()}
        least = {which: MIN_FOUND if share >= MIN_FOUND else MIN_FOUND * share for which, share in most.items()}
        missed = [which for which, cell in found.items() if cell.ours.found[number] < least[which]]
        told = ", ".join(f"{kind} {level:.0%}" for kind, level in missed)
        text = f"{sigmas:g} sigma found within {within} nights in {MIN_FOUND:.0%}; where no rule can, of what one can"
        print(goal(not missed, text + (f" (not: {told})" if missed else "")))


def print_halved(false_alarms: float) -> None:
    """The rule of halved rates; its false alarms in the worst row of the gate's table are known."""
    print(f"    points that fall to {gate.FALLEN:.0%}, found in their first night; by the nights before:")
    for level in gate.HALVED_LEVELS:
        one = gate.halved(level)
        told = ", ".join(f"{n}: {share:.0%}" for n, share in zip(gate.HALVED_AFTER, one.found, strict=True))
        print(f"    plain {level:.0%}: {told}; false alarms on {one.false_alarms:.1%} of nights")
    most = f"false alarms of halved rates on less than {MAX_FALSE_ALARMS:.0%} of nights"
    print(goal(false_alarms < MAX_FALSE_ALARMS, most))


def print_screens(_folder: Path) -> None:
    """(m)"""
    print("(m) screens of nodes: between nodes, within one, tails; false accusations; found that are slower by")
    print(
        "| nodes | noise | healthy ones accused | "
        + " | ".join(f"{slower:.0%} slower" for slower in screens.SLOWER)
        + " |"
    )
    print("|---:|---|---:|" + "---:|" * len(screens.SLOWER))
    worst = 0.0
    for nodes, (between, within, tails), (false, *found) in screens.lines():
        worst = max(worst, false)
        noise = f"{between:.1%}, {within:.1%}{', heavy tails' if tails else ''}"
        print(f"| {nodes} | {noise} | {false:.1%} | " + " | ".join(f"{each:.0%}" for each in found) + " |", flush=True)
    print(goal(worst < MAX_FALSE_ALARMS, f"false accusations < {MAX_FALSE_ALARMS:.0%}"))


def print_plan(folder: Path) -> None:
    """(p)"""
    print(f"(p) a plan of {plan.POINTS:,} trials")
    found = plan.measure(folder)
    print(f"    expanded and checked in {found.expand_s:.1f} s; {found.left:,} found left in {found.resume_s:.1f} s")
    print(f"    {found.memory_bytes / 1e9:.2f} GB of memory")
    print(goal(found.expand_s + found.resume_s <= MAX_PLAN_S, f"<= {MAX_PLAN_S:.0f} s in all"))
    print(goal(found.memory_bytes <= MAX_PLAN_BYTES, f"<= {MAX_PLAN_BYTES / 1e9:.0f} GB"))


def print_nights(folder: Path) -> None:
    """(n2)"""
    print("(n2) the nightly gate on real sessions of this machine, the last ones on one core")
    found = nights.measure(folder)
    print(f"    {found.num_points} points; {found.alarmed} alarms on {found.judged} quiet nights that could be judged")
    print("".join(f"    alarmed: {line}\n" for line in found.false), end="")
    print(goal(found.alarmed <= MAX_FALSE_ALARMS * found.judged, f"on less than {MAX_FALSE_ALARMS:.0%} of nights"))
    print(goal(found.found_after is not None, f"the slow-down found within {nights.SLOWED} nights"))
    print("\n".join(f"    {line}" for line in found.text))


def print_site(folder: Path) -> None:
    """(n3)"""
    print(f"(n3) {site.NIGHTS} nights of a site with asv, from a wheel")
    print(f"    the disk slows on the {site.SLOW_FROM}th, benchsuite changes on the {site.UPGRADED_ON}th")
    repository, found = site.nights(folder)
    alarmed = [night for night in found if night.code == REGRESSION]
    for line in alarmed[0].said if alarmed else []:
        print(f"    {line}")
    first = alarmed[0].number if alarmed else 0
    print(goal(first in (site.SLOW_FROM, site.SLOW_FROM + 1), f"named by the second slow night (on the {first}th)"))
    early = [night.number for night in alarmed if night.number < site.SLOW_FROM]
    print(goal(not early, f"no alarm before (alarms: {early})"))
    last = " ".join(found[-1].said)
    print(goal("benchsuite itself changed" not in last, "the new version, two nights later, is no cause of it"))
    names = [str(entry[0]) for entry in site.regressions(repository)]
    print(goal(any("seconds_per_sample" in name for name in names), f"on asv's page of regressions: {names}"))
    exported_s, published_s = site.many_points(folder / "many")
    print(f"    {site.MANY} points: exported in {exported_s:.0f} s, published in {published_s:.0f} s")
    print(goal(exported_s + published_s <= MAX_PUBLISH_S, f"within {MAX_PUBLISH_S:.0f} s"))


if __name__ == "__main__":
    main(sys.argv[1:])
