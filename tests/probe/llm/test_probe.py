"""`probe checkpoint --model`: real processes write real files, read them cold, and notice a changed bit."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchsuite.contract.errors import UserError
from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.grid.expand import plan_trial
from benchsuite.probe.llm import probe
from benchsuite.probe.llm.files import FRAMEWORKS, Cut, bytes_of
from benchsuite.probe.llm.probe import asked, check_room, expected_of, figures
from benchsuite.probe.llm.rank import Request, Share, content, run_rank
from benchsuite.probe.llm.shapes import shapes_of
from benchsuite.probe.ranks import found_by, leave_request
from benchsuite.storage.observe import page_cache
from tests.storage.samples import file_system

Run = Callable[..., tuple[int, str, str]]


def alone(tmp_path: Path, framework: str) -> Share:
    """Rank 0 of eight, in this process."""
    folder, target = tmp_path / "work", tmp_path / "disk" / "own"
    folder.mkdir()
    target.mkdir(parents=True)
    leave_request(Request(str(target), "nano_llama", framework, Cut(8), 1), folder)
    point = plan_trial(
        {"workload": "gpt_neox", "variant": "nano", "batch_size": 1, "device": "cpu"}
        | {"data": {"source": "synthetic"}}
    )
    run_rank(point.spec, None, RankIdentity(0, 1, 0, folder, time.perf_counter()), [])
    assert [path for path in target.rglob("*") if path.is_file()] == []
    ((line),) = found_by(folder, 0)
    return Share(**line)


@pytest.mark.parametrize("framework", FRAMEWORKS)
class TestOneRank:
    def test_files_hold_the_tensors(self, tmp_path: Path, framework: str):
        files = FRAMEWORKS[framework](shapes_of("nano_llama"), Cut(8), 0)
        share = alone(tmp_path, framework)
        num_parts = sum(len(parts) for parts in files.values())
        assert share.num_files == len(files)
        assert bytes_of(files) < share.num_bytes < bytes_of(files) + 4096 * (num_parts + len(files))
        assert share.durable_s > 0 and share.read_s > 0
        if file_system(tmp_path) not in ("tmpfs", "ramfs"):
            assert share.resident_before_read == 0

    def test_a_bit_that_changes_on_the_disk_is_noticed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str
    ):
        real = page_cache.evict
        parts = [part for found in FRAMEWORKS[framework](shapes_of("nano_llama"), Cut(8), 0).values() for part in found]
        bits = (
            content(max(parts, key=lambda part: part.num_bytes), 0, 0).reshape(-1).view(torch.uint8).numpy().tobytes()
        )

        def damaging(paths: list[Path]) -> None:
            found = next(path for path in paths if bits in path.read_bytes())
            changed = bytearray(found.read_bytes())
            changed[changed.index(bits) + len(bits) // 2] ^= 1
            found.write_bytes(changed)
            real(paths)

        monkeypatch.setattr(page_cache, "evict", damaging)
        with pytest.raises(UserError, match=r"disk: what rank 0 read is not what it wrote: "):
            alone(tmp_path, framework)


class TestVerb:
    def test_two_of_eight_ranks_and_the_rest_computed(self, tmp_path: Path, run_cli: Run):
        store = tmp_path / "store"
        words = ["--model", "nano_llama", "--ranks", 8, "--subset", 2, "--mode", "sharded", "--repeats", 2]
        code, out, err = run_cli("probe", "checkpoint", tmp_path, *words, "--store", store, "--format", "json")
        assert code == 0, err
        record = json.loads(out)
        found, computed = record["figures"], record["samples"]["computed"]
        assert computed["parameters"] == 213_568
        assert found["computed_full_bytes"] == sum(computed["by_rank"]) == 12 * 213_568
        assert [len(rank["written"]) for rank in record["samples"]["ranks"]] == [2, 2]
        here = sum(computed["by_rank"][:2])
        assert here < found["checkpoint_bytes"] < 2 * here
        whole = found["checkpoint_durable_s"] * found["computed_full_bytes"] / here
        assert found["computed_full_durable_s"] == pytest.approx(whole)
        assert record["spec"]["world_size"] == 8 and record["spec"]["subset"] == 2
        assert [path.name for path in tmp_path.iterdir()] == ["store"]
        code, out, _ = run_cli("results", "show", "--kind", "checkpoint", "--store", store)
        assert code == 0 and "nano_llama" in out and "8 fsdp" in out

    def test_in_words(self, tmp_path: Path, run_cli: Run):
        words = ["--model", "nano_llama", "--ranks", 2, "--framework", "megatron", "--tp", 2, "--repeats", 1]
        code, out, err = run_cli("probe", "checkpoint", tmp_path, *words)
        assert code == 0, err
        computed, measured, full, trust = out.splitlines()[:4]
        assert computed.startswith(
            "-> computed: nano_llama has 213,568 parameters; megatron on 2 ranks (tp 2, pp 1, dp 1)"
        )
        assert computed.endswith(" of tensors, 1.498 MB to 1.499 MB a rank in 2 files"), computed
        assert measured.startswith("measured: 4 files of 2 ranks, ") and " of it headers of the tensors), " in measured
        assert "±" not in out, "there is one repeat"
        assert full.startswith("computed, not measured: all 2 ranks are durable after ")
        assert trust.startswith("trust: 1 of 1 read back equal in every bit; ")

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["--model", "nano_llama", "--save", "rank0"], "--save rank0 with --model: allowed: sharded"),
            (["--model", "nano_llama", "--workload", "bert"], "--workload is allowed only without --model"),
            (["--subset", 2], "--subset is allowed only with --model"),
            (["--model", "nano_llama", "--ranks", 2, "--subset", 3], "--subset 3: allowed: 1 to 2, the ranks"),
        ],
    )
    def test_what_does_not_go_together(self, tmp_path: Path, run_cli: Run, words: list[object], line: str):
        code, out, err = run_cli("probe", "checkpoint", tmp_path, *words)
        assert (code, out) == (2, "") and err.startswith(f"error: {line}"), err


class TestRoom:
    def test_a_disk_that_is_too_small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        wanted = asked("llama3-8b", "fsdp", 8, 2, (None, None), 1, 60.0)
        monkeypatch.setattr(probe.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 13_000_000_000}))
        monkeypatch.setattr(probe, "memory_bytes", lambda: (10**12, 10**12))
        with pytest.raises(UserError) as error:
            check_room(wanted, expected_of(wanted), tmp_path)
        assert str(error.value) == (
            f"{tmp_path}: the files of 2 of 8 ranks take 24.33 GB, its disk has 12.93 GB free; "
            "--subset 1 takes 12.17 GB"
        )

    def test_a_memory_that_is_too_small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        wanted = asked("llama3-405b", "fsdp", 512, 1, (None, None), 1, 60.0)
        monkeypatch.setattr(probe.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**12}))
        monkeypatch.setattr(probe, "memory_bytes", lambda: (8 * 10**9, 8 * 10**9))
        with pytest.raises(UserError, match=r"take 9\.6\d+ GB, this host's memory has 8 GB free; one rank takes 9\.6"):
            check_room(wanted, expected_of(wanted), tmp_path)


def test_full_size_is_computed_from_tensors_and_the_slowest_rank():
    wanted = asked("nano_llama", "fsdp", 8, 2, (None, None), 1, 60.0)
    one = {"num_bytes": 100, "num_files": 1, "durable_s": 2.0, "read_s": 1.0, "resident_before_read": 0.0}
    expected = expected_of(wanted)
    found = figures([[one], [one | {"durable_s": 4.0}]], expected)
    assert (found.checkpoint_bytes, found.checkpoint_durable_s, found.checkpoint_write_bytes_per_s) == (200, 4.0, 50.0)
    assert found.computed_full_durable_s == pytest.approx(4.0 * 8 / 2)
    assert found.computed_scaled_durable_s == pytest.approx(4.0)
