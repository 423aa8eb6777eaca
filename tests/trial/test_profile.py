"""What a trial records besides its steps: `--profile`, `--timeline`, and what a store exports of them."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.contract.trial_spec import parse_trial, point_id
from benchsuite.results.store.store import ResultsStore
from benchsuite.trial.io_observer import ACTIVE_STEPS
from benchsuite.trial.kineto import exposed_s, waited_in_compiled_s
from benchsuite.trial.strace import Seen

Cli = Callable[..., tuple[int, str, str]]
BASE: dict[str, Any] = {
    "workload": "resnet50",
    "variant": "nano",
    "batch_size": 4,
    "device": "cpu",
    "threads_per_rank": 1,
    "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1, "ceilings": False},
}
SYNTHETIC = {"source": "synthetic", "root": None}


@pytest.fixture
def trial(dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a trial's file; traces go to the test's folder."""
    monkeypatch.chdir(tmp_path)

    def write(**changes: Any) -> Path:
        data = {"root": str(dataset_root), "num_workers": 1, "prefetch_factor": 1, **changes.pop("data", {})}
        path = tmp_path / "trial.yaml"
        path.write_text(yaml.safe_dump({**BASE, "data": data, **changes}))
        return path

    return write


def record_of(run_cli: Cli, *arguments: object) -> dict[str, Any]:
    code, out, err = run_cli("trial", *arguments, "--format", "json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


class TestIo:
    def test_without_files_there_is_none(self, run_cli: Cli, trial: Callable[..., Path]) -> None:
        """Nor are operators counted where their profile was not asked for."""
        record = record_of(run_cli, trial(data=SYNTHETIC), "--profile", "io")
        assert record["status"] == "ok" and record["io_profile"] is None
        figures = record["figures"]
        assert figures["arithmetic_intensity"] is None and figures["contraction_flops_fraction"] is None

    def test_a_profile_changes_no_id(self) -> None:
        plain = parse_trial({"workload": "resnet50", "batch_size": 4})
        profiled = parse_trial({"workload": "resnet50", "batch_size": 4, "measure": {"profile": "io"}})
        assert point_id(plain, "x") == point_id(profiled, "x")

    def test_calls_are_given_back_where_a_trial_fails(self, run_cli: Cli, trial: Callable[..., Path]) -> None:
        import os

        before = os.open, os.preadv, open
        code, _, _ = run_cli("trial", trial(data={"format": "files", "num_workers": 90}), "--profile", "io")
        assert code != 0
        assert (os.open, os.preadv, open) == before

    def test_an_unknown_profile_is_refused(self, run_cli: Cli, trial: Callable[..., Path]) -> None:
        code, _, err = run_cli("trial", trial(), "--profile", "disk")
        assert code == 2 and "io, strace, torch" in err


class TestStrace:
    def test_a_traced_trial_has_no_utilization(self, run_cli: Cli, trial: Callable[..., Path]) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed: apt-get install strace")
        path = trial(data={"format": "hdf5", "num_workers": 1})
        record = record_of(run_cli, path, "--profile", "strace")
        assert all(record["figures"][name] is None for name in ("au", "au_error", "bottleneck"))
        assert "traced" in record["caveats"]
        assert any(line.startswith("traced: strace cost ") for line in record["caveat_details"])
        profile = record["io_profile"]
        assert profile["by"] == "strace" and profile["cost_s_per_call"] > 0 and profile["workers"] == 1
        assert profile["bytes"]["seen"] > 0.5 * profile["bytes"]["delivered"]

    def test_where_it_is_missing_that_is_said(
        self, run_cli: Cli, trial: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        code, _, err = run_cli("trial", trial(), "--profile", "strace")
        assert code == 2 and "apt-get install strace" in err and len(err.splitlines()) == 1

    def test_lines_of_a_log(self, tmp_path: Path) -> None:
        one = tmp_path / "one"
        one.write_bytes(bytes(300))
        lines = f"""openat(AT_FDCWD</>, "{one}", O_RDONLY|O_CLOEXEC) = 5<{one}> <0.000020>
fstat(5<{one}>, {{st_mode=S_IFREG|0644, st_size=300, ...}}) = 0 <0.000010>
preadv(5<{one}>, [{{iov_base=""..., iov_len=100}}], 1, 0) = 100 <0.000030>
pread64(5<{one}>, ""..., 50, 100) = 50 <0.000030>
read(5<{one}>, ""..., 10) = 10 <0.000030>
lseek(5<{one}>, 200, SEEK_SET) = 200 <0.000005>
read(5<{one}>, ""..., 4096) = 100 <0.000030>
mmap(NULL, 300, PROT_READ, MAP_SHARED, 5<{one}>, 0) = 0x7f00 <0.000009>
close(5<{one}>) = 0 <0.000010>
openat(AT_FDCWD</>, "{tmp_path}/gone", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000020>
read(4<pipe:[1]>, ""..., 8) = 8 <0.100000>
read(5<{one}>, <unfinished ...>""".splitlines()
        seen = Seen(f"{tmp_path}/", {str(one)})
        assert seen.add(lines)
        found = seen.totals()
        counts = {name: (each["count"], each["errors"], each["bytes"]) for name, each in found["operations"].items()}
        assert counts == {
            "open": (2, 1, 0),
            "stat": (1, 0, 0),
            "read": (4, 0, 260),
            "seek": (1, 0, 0),
            "mmap": (1, 0, 300),
            "close": (1, 0, 0),
        }
        assert found["order"] == [1, 1, 2]
        assert found["files"]["opens"] == 1 and found["files"]["size_bytes"] == 300
        assert found["files"]["touched"] == "80"

    def test_reads_as_python_makes_them(self, tmp_path: Path) -> None:
        """os.preadv is preadv2, whose flags stand behind the offset; what is not in memory is EAGAIN and no failure."""
        one = tmp_path / "one"
        one.write_bytes(bytes(300))
        vector = f'preadv2(5<{one}>, [{{iov_base=""..., iov_len=100}}], 1'
        lines = f"""{vector}, 0, RWF_NOWAIT) = -1 EAGAIN (Resource temporarily unavailable) <0.000009>
{vector}, 0, 0) = 100 <0.000030>
{vector}, 100, RWF_NOWAIT) = 50 <0.000030>
{vector}, 150, 0) = 50 <0.000030>
{vector}, 20, 0) = 10 <0.000030>""".splitlines()
        seen = Seen(f"{tmp_path}/", {str(one)})
        assert seen.add(lines)
        found = seen.totals()
        assert found["order"] == [1, 2, 1]
        assert (found["operations"]["read"]["count"], found["operations"]["read"]["errors"]) == (4, 0)


class TestTraces:
    def test_two_ranks_make_one_profile_and_one_timeline(
        self, run_cli: Cli, trial: Callable[..., Path], tmp_path: Path
    ) -> None:
        path, store = trial(data={"format": "files"}, parallelism="ddp", world_size=2), tmp_path / "store"
        words = ("--profile", "io", "--timeline", tmp_path / "out.json", "--store", store)
        code, out, err = run_cli("trial", path, *words)
        assert code == 0, err
        printed = ("I/O of 2 workers of 2 ranks", "operation", "p99", "reads by size", "order: ", "files: ", "kernel, ")
        assert [words for words in printed if words not in out] == []
        (record,) = ResultsStore(store).trials()
        profile = record.io_profile
        assert profile is not None
        assert (profile["ranks"], profile["workers"]) == (2, 2)
        opens = profile["operations"]["open"]["count"]
        assert profile["operations"]["read"]["count"] >= opens == profile["files"]["opens"] > 0
        made = json.loads((tmp_path / "out.json").read_text())
        slices = [event for event in made["traceEvents"] if event["ph"] == "X"]
        assert {event["pid"] for event in slices} == {0, 1}
        parts = [event for event in slices if event["cat"] == "parts of steps"]
        assert {"load", "forward", "backward", "communication", "optimizer"} <= {event["name"] for event in parts}
        steps = [event for event in slices if event["cat"] == "steps"]
        assert sum(event["dur"] for event in parts) == pytest.approx(sum(event["dur"] for event in steps), rel=1e-6)
        assert len(steps) == 2 * (3 * 2 + 2 * 2)
        assert record.traces == []


CLASSES = ("contraction", "normalisation", "element_wise")
OPERATORS = (("bert", "tiny", 1), ("gpt_neox", "tiny", 2))


def check_trace(name: str, *_: str) -> None:
    """PyTorch's profile is written beside."""
    assert Path(name).name == "torch-rank-0.json.gz"
    events = json.loads(gzip.decompress(Path(name).read_bytes()))["traceEvents"]
    assert any("aten::mm" in event.get("name", "") for event in events)
    steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep")}
    assert steps == {f"ProfilerStep#{step}" for step in (3, 4, 5)}, "three steps in a row"


class TestOperators:
    @pytest.mark.parametrize(
        ("workload", "variant", "ranks"),
        [("gpt_neox", "nano", 2), *(pytest.param(*each, marks=pytest.mark.full) for each in OPERATORS)],
    )
    def test_classes_add_up(
        self, run_cli: Cli, trial: Callable[..., Path], tmp_path: Path, workload: str, variant: str, ranks: int
    ) -> None:
        mode = {"parallelism": "ddp", "world_size": ranks} if ranks > 1 else {}
        path = trial(workload=workload, variant=variant, batch_size=2, data=SYNTHETIC, **mode)
        store = tmp_path / "store"
        record = record_of(run_cli, path, "--profile", "torch", "--store", store)
        figures = record["figures"]
        check_trace(*record["traces"])
        (samples,) = [ResultsStore(store).steps(record) for record in ResultsStore(store).trials()]
        assert samples is not None
        counted = [rank["operators"] for rank in samples["ranks"]]
        total = sum(one["flops"] for rank in counted for one in rank.values())
        assert len(counted) == ranks and figures["operator_flops_per_step"] == total
        contractions = sum(rank["contraction"]["flops"] for rank in counted)
        assert contractions == figures["flops_per_sample"] * 2 * ranks, "as counted on the meta device"
        assert figures["contraction_flops_fraction"] == pytest.approx(contractions / total)
        assert sum(figures[f"{name}_flops_fraction"] for name in CLASSES) == pytest.approx(1)
        times = [figures[f"{name}_time_fraction"] for name in (*CLASSES, "other")]
        assert sum(times) == pytest.approx(1) and all(0 < share < 1 for share in times)
        moved = sum(one["num_bytes"] for rank in counted for one in rank.values())
        assert figures["operator_bytes_per_step"] == moved > 3 * 4 * figures["parameters"]
        assert figures["arithmetic_intensity"] == pytest.approx(total / moved)
        assert figures["attained_flops_per_s"] == pytest.approx(total / ranks / figures["step_s_mean"])
        assert figures["roof_flops_per_s"] is None and figures["ridge_intensity"] is None, (
            "nothing is known of this CPU"
        )

    @pytest.mark.full
    def test_a_probe_in_the_store_is_the_roof(self, run_cli: Cli, trial: Callable[..., Path], tmp_path: Path) -> None:
        store = tmp_path / "store"
        assert run_cli("probe", "device", "--device", "cpu", "--seconds", 0.01, "--store", store)[0] == 0
        (probe,) = [record for record in ResultsStore(store).latest() if record.kind == "device"]
        path = trial(workload="bert", variant="tiny", threads_per_rank=probe.spec["threads"], data=SYNTHETIC)
        code, out, err = run_cli("trial", path, "--profile", "torch", "--store", store)
        assert code == 0, err
        assert "operator classes: contraction 9" in out and "% of the roof of" in out
        (record,) = ResultsStore(store).trials()
        figures, peak = record.figures, probe.figures.get("gemm_fp32_tflops") * 1e12
        bandwidth = probe.figures.get("memory_bytes_per_s")
        assert figures.ridge_intensity == pytest.approx(peak / bandwidth)
        roof = min(peak, figures.arithmetic_intensity * bandwidth)  # type: ignore[operator]
        assert figures.roof_flops_per_s == pytest.approx(roof)
        assert figures.roof_fraction == pytest.approx(figures.attained_flops_per_s / roof)  # type: ignore[operator]
        assert figures.roof_source.startswith(f"measured: probe device, {probe.label}")  # type: ignore[union-attr]
        code, out, err = run_cli("report", "--store", store)
        assert code == 0 and f"roof {figures.roof_source}" in out and "operator-level bytes" in out

    @pytest.mark.full
    def test_a_compiled_step_has_no_classes_of_time(self, run_cli: Cli, trial: Callable[..., Path]) -> None:
        path = trial(workload="gpt_neox", variant="nano", batch_size=2, data=SYNTHETIC, compile=True)
        figures = record_of(run_cli, path, "--profile", "torch")["figures"]
        assert figures["contraction_time_fraction"] is None and figures["contraction_flops_fraction"] > 0.5


def kernel(name: str, begin_us: float, duration_us: float) -> dict[str, object]:
    return {"cat": "kernel", "name": name, "ts": begin_us, "dur": duration_us}


def written(folder: Path, events: list[dict[str, object]]) -> Path:
    trace = folder / "torch-rank-0.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return trace


def test_exposed_is_where_nccl_runs_alone(tmp_path: Path) -> None:
    """An all-reduce from 100 to 400 beside a product that ends at 300, one within a product, and one with nothing."""
    events = [
        kernel("sm90_xmma_gemm", 0, 300),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100, 300),
        kernel("sm90_xmma_gemm", 500, 200),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 550, 50),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 800, 50),
        {"cat": "cpu_op", "name": "nccl:all_reduce", "ts": 0, "dur": 5000},
        {"ph": "M", "name": "process_name"},
    ]
    trace = written(tmp_path, events)
    assert exposed_s(trace, ACTIVE_STEPS) == pytest.approx((100 + 50) / 1e6 / ACTIVE_STEPS)


def test_waits_within_compiled_graphs_are_those_that_no_mark_sees(tmp_path: Path) -> None:
    """Of 40 us of waiting in a graph 30 are within it; a wait between graphs, and one of another thread, are not."""

    def event(name: str, begin_us: float, duration_us: float, thread: int = 1) -> dict[str, object]:
        return {"ph": "X", "cat": "cpu_op", "name": name, "ts": begin_us, "dur": duration_us, "tid": thread}

    wait, graph = "_c10d_functional::wait_tensor", "## Call CompiledFxGraph abc ##"
    events = [
        event(graph, 0, 100),
        event(wait, 10, 20),
        event(wait, 90, 20),
        event(wait, 200, 50),
        event(graph, 300, 9),
    ]
    events += [event(wait, 20, 30, thread=2), {"ph": "M", "name": "process_name", "tid": 1}]
    assert waited_in_compiled_s(written(tmp_path, events), 3) == pytest.approx(30e-6 / 3)


@pytest.mark.full
def test_a_profile_tells_the_communication_of_compiled_blocks(run_cli: Cli, trial: Callable[..., Path]) -> None:
    split = {"parallelism": "tp", "world_size": 2, "compile": True}
    path = trial(workload="gpt_neox", variant="nano", batch_size=2, data=SYNTHETIC, **split)
    assert record_of(run_cli, path)["figures"]["communication_s"] is None
    figures = record_of(run_cli, path, "--profile", "torch")["figures"]
    assert figures["communication_s"] >= figures["communication_min_s"] > 0


class TestStore:
    @pytest.fixture
    def store(self, run_cli: Cli, trial: Callable[..., Path], tmp_path: Path) -> Path:
        """A sweep of two formats and loaders, profiled."""
        base = yaml.safe_load(trial(data={"shuffle_buffer": 4}).read_text())
        pairs = {"data.format": ["files", "hdf5"], "data.loader": ["torch", "threads"]}
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"name": "profiled", "base": base, "zip": pairs}))
        code, _, err = run_cli("sweep", tmp_path / "sweep.yaml", "--profile", "io", "--store", tmp_path / "store")
        assert code == 0, err
        return tmp_path / "store"

    def test_profiles_and_traces_of_stored_trials(self, run_cli: Cli, store: Path, tmp_path: Path) -> None:
        records = [record for record in ResultsStore(store).latest() if record.io_profile]
        assert [record.spec["data"]["format"] for record in records] == ["files", "hdf5"]
        for record in records:
            profile = record.io_profile
            assert profile is not None
            assert profile["by"] == "wrappers" and profile["workers"] == (record.spec["data"]["loader"] == "torch")
            assert profile["operations"]["read"]["count"] == sum(profile["read_sizes"].values()) > 0
            assert profile["bytes"]["delivered"] >= profile["operations"]["read"]["bytes"] * 0.5
            assert 0 < profile["metadata_fraction"] < 1
            assert record.figures.au is not None and "traced" not in record.caveats
        assert not {"io_profile", "traces"} & set(ResultsStore(store).frame())
        assert len(ResultsStore(store).sql("select label from trials")) == 2
        wanted = records[0].trial_id
        code, out, _ = run_cli("results", "profile", wanted, "--store", store)
        assert code == 0 and out.startswith(wanted) and "kernel, workers" in out
        assert "I/O of 1 worker of 1 rank" in out
        code, out, _ = run_cli("results", "profile", "--store", store, "--format", "json")
        assert json.loads(out) == records[-1].io_profile
        for names in ([tmp_path / "last.json"], [wanted, tmp_path / "first.json"]):
            code, _, err = run_cli("results", "export", "trace", *names, "--store", store)
            assert code == 0 and "ui.perfetto.dev" in err
            assert json.loads(Path(names[-1]).read_text())["traceEvents"]
        code, _, err = run_cli("results", "export", "trace", "none", tmp_path / "x.json", "--store", store)
        assert code == 2 and "none" in err and len(err.splitlines()) == 1


def test_what_the_profile_costs_is_measured_for_every_format() -> None:
    from bench import profile
    from benchsuite.storage import FORMATS, load

    assert {*profile.FORMATS} == {*FORMATS} and profile.FORMATS[0] == "files"
    for name in profile.FORMATS:
        _, known = profile._samples(name)
        assert known["kind"] in load(FORMATS, name).kinds, name
