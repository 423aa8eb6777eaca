"""The command line: schemas and datasets."""

import json
from pathlib import Path

import pytest

from storage.format import read_manifest
from tests.benchsuite.test_cli import Run, error_line, in_folder

__all__ = ["in_folder"]


class TestSchemas:
    @pytest.mark.parametrize(
        ("name", "field"), [("trial", "workload"), ("sweep", "grid"), ("record", "figures"), ("manifest", "dataset_id")]
    )
    def test_schema(self, run_cli: Run, name: str, field: str):
        code, out, err = run_cli("schema", name)
        assert (code, err) == (0, "")
        assert field in json.loads(out)["properties"]


class TestData:
    def test_generate_convert_and_verify(self, run_cli: Run, tmp_path: Path):
        files, tar = tmp_path / "files", tmp_path / "tar"
        code, out, err = run_cli("data", "generate", files, "--variant", "tiny", "--samples", 6, "--seed", 1)
        assert (code, out) == (0, ""), "what was made is told on stderr"
        assert "6 samples" in err
        assert read_manifest(files).num_samples == 6
        shards = ("--format", "webdataset", "--shard-samples", 4, "--variant", "tiny")
        assert run_cli("data", "convert", files, tar, *shards)[0] == 0
        assert [info.num_samples for info in read_manifest(tar).files] == [4, 2]
        code, out, _ = run_cli("data", "verify", tar)
        assert code == 0 and out.startswith("ok: ") and "6 samples" in out
        code, out, _ = run_cli("data", "verify", files, tar)
        assert code == 0 and "same 6 samples" in out
        assert "exists already" in error_line(run_cli, "data", "generate", files, "--samples", 6)

    def test_verify_names_what_is_wrong(self, run_cli: Run, dataset_root: Path, tmp_path: Path):
        target = tmp_path / "tar"
        assert run_cli("data", "convert", dataset_root / "files", target, "--format", "webdataset")[0] == 0
        shard = next(target.glob("*.tar"))
        shard.write_bytes(shard.read_bytes()[:-512])
        assert shard.name in error_line(run_cli, "data", "verify", target)

    def test_verify_tells_unlike_datasets_apart(self, run_cli: Run, dataset_root: Path, tmp_path: Path):
        assert run_cli("data", "generate", tmp_path / "other", "--samples", 2, "--seed", 9)[0] == 0
        assert "differ" in error_line(run_cli, "data", "verify", dataset_root / "files", tmp_path / "other")
