"""The command line: schemas and datasets."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.dataset.manifest import read_manifest
from benchsuite.storage.dataset.shards import shards
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.dataset.verify import verify_dataset
from tests.cli.test_app import Run, error_line, in_folder
from tests.helpers.snapshots import compare_messages
from tests.storage.samples import flip, jpeg
from tests.storage.sources.made import tar
from tests.storage.sources.test_sequences import pair

__all__ = ["in_folder"]


class TestSchemas:
    @pytest.mark.parametrize(
        ("name", "field"), [("trial", "workload"), ("sweep", "grid"), ("record", "figures"), ("manifest", "dataset_id")]
    )
    def test_schema(self, run_cli: Run, name: str, field: str):
        code, out, err = run_cli("schema", name)
        assert (code, err) == (0, "")
        schema = json.loads(out)
        records = [schema["$defs"][part["$ref"].rpartition("/")[2]] for part in schema.get("oneOf", [])]
        assert all(field in part["properties"] for part in records or [schema])


class TestData:
    def test_generate_convert_and_verify(self, run_cli: Run, tmp_path: Path):
        files, tar = tmp_path / "files", tmp_path / "tar"
        code, out, err = run_cli("data", "generate", files, "--variant", "tiny", "--samples", 6, "--seed", 1)
        assert (code, out) == (0, ""), "what was made is told on stderr"
        assert "6 samples" in err
        assert read_manifest(files).num_samples == 6
        sharded = ("--format", "webdataset", "-o", "shard_samples=4", "--variant", "tiny")
        assert run_cli("data", "convert", files, tar, *sharded)[0] == 0
        assert [info.num_samples for info in shards(read_manifest(tar))] == [4, 2]
        code, out, _ = run_cli("data", "verify", tar)
        assert code == 0 and out.startswith("ok: ") and "6 samples" in out
        code, out, _ = run_cli("data", "verify", files, tar)
        assert code == 0 and "same 6 samples" in out

    def test_every_format_at_once(self, run_cli: Run, tmp_path: Path):
        """What is there already is kept."""
        files, all_ = tmp_path / "files", tmp_path / "all"
        run_cli("data", "generate", files, "--variant", "tiny", "--samples", 100, "--seed", 1)
        for kept in (0, 7):
            code, out, err = run_cli("data", "convert", files, all_, "--variant", "tiny", "--format", "all")
            assert (code, out) == (0, "") and err.count("there already, kept") == kept
        assert {path.name for path in all_.iterdir()} == {
            "files",
            "webdataset",
            "hdf5",
            "lmdb",
            "mds",
            "parquet",
            "tfrecord",
        }
        assert len({read_manifest(path).dataset_id for path in [files, *all_.iterdir()]}) == 1
        sizes = [info.num_samples for info in shards(read_manifest(all_ / "webdataset"))]
        assert len(sizes) == 16 and set(sizes) == {6, 7}
        code, _, err = run_cli(
            "data", "convert", files, tmp_path / "two", "--variant", "tiny", "--format", "files,hdf5"
        )
        assert code == 0 and {path.name for path in (tmp_path / "two").iterdir()} == {"files", "hdf5"}, err
        os.utime(files, (time.time() + 5, time.time() + 5))
        _, _, err = run_cli("data", "convert", files, all_, "--variant", "tiny", "--format", "all")
        assert f"{files} is newer: remove {all_ / 'files'} to convert it anew" in err

    def test_verify_names_what_is_wrong(self, run_cli: Run, dataset_root: Path, tmp_path: Path):
        target = tmp_path / "tar"
        assert run_cli("data", "convert", dataset_root / "files", target, "--format", "webdataset")[0] == 0
        shard = next(target.glob("*.tar"))
        shard.write_bytes(shard.read_bytes()[:-512])
        assert shard.name in error_line(run_cli, "data", "verify", target)

    def test_verify_names_all_that_is_wrong(self, run_cli: Run, tmp_path: Path):
        folder = tmp_path / "set"
        run_cli("data", "generate", folder, "--variant", "tiny", "--samples", 6, "--seed", 1)
        gone, changed, *_ = images = sorted(folder.rglob("*.jpg"))
        gone.unlink()
        flip(changed, 200)
        code, out, err = run_cli("data", "verify", folder)
        *told, last = err.splitlines()
        assert (code, out, len(told)) == (2, "", 2)
        assert any(line.startswith(f"{gone}: No such file") for line in told)
        assert any(line.startswith(f"{changed}: ") and line.endswith("checksum is not the index's") for line in told)
        assert last == f"error: {folder}: 2 problems"
        assert len(images) == 6

    def test_verify_looks_at_both(self, run_cli: Run, tmp_path: Path):
        sets = [tmp_path / "a", tmp_path / "b"]
        for folder in sets:
            run_cli("data", "generate", folder, "--variant", "tiny", "--samples", 3, "--seed", 1)
            next(folder.rglob("*.jpg")).unlink()
        err = run_cli("data", "verify", *sets)[2]
        assert [line.partition(": No such file")[1] != "" for line in err.splitlines()] == [True, True, False]
        assert err.endswith(f"error: {sets[0]} and {sets[1]}: 2 problems\n")

    def test_many_problems_are_counted(self, run_cli: Run, tmp_path: Path):
        folder = tmp_path / "set"
        run_cli("data", "generate", folder, "--variant", "tiny", "--samples", 33, "--seed", 1)
        for image in sorted(folder.rglob("*.jpg"))[:25]:
            flip(image, 200)
        lines = run_cli("data", "verify", folder)[2].splitlines()
        assert len(lines) == 22 and lines[20:] == ["and 5 more", f"error: {folder}: 25 problems"]

    def test_convert_names_every_image_that_is_not_whole_and_writes_nothing(self, run_cli: Run, tmp_path: Path):
        source, target = tmp_path / "photos", tmp_path / "new"
        source.mkdir()
        for number in range(8):
            (source / f"{number}.jpg").write_bytes(jpeg(number))
        for number in (2, 5):
            (source / f"{number}.jpg").write_bytes(b"no image")
        code, out, err = run_cli("data", "convert", source, target, "--variant", "tiny")
        *told, last = [line for line in err.splitlines() if not line.startswith("converting")]
        assert (code, out) == (2, "")
        assert [line.partition(": ")[0] for line in told] == [str(source / "2.jpg"), str(source / "5.jpg")]
        hint = "--on-error skip leaves out what cannot be read"
        assert last == f"error: {source}: 2 problems; nothing was written; {hint}"
        assert [path.name for path in tmp_path.iterdir()] == ["photos"]
        (source / "5.jpg").unlink()
        code, out, err = run_cli("data", "convert", source, target, "--variant", "tiny")
        assert (code, out) == (2, "") and f"error: {source / '2.jpg'}: not a whole JPEG" in err.splitlines()[-1]

    def test_convert_leaves_out_what_cannot_be_read_where_it_may(self, run_cli: Run, tmp_path: Path):
        source, target = tmp_path / "photos", tmp_path / "new"
        (source / ".ipynb_checkpoints").mkdir(parents=True)
        for number in range(8):
            (source / f"{number}.jpg").write_bytes(b"no image" if number == 5 else jpeg(number))
            (source / f"{number}.json").write_text(json.dumps({"width": 500, "kind_id": number % 2}))
        (source / ".ipynb_checkpoints" / "0.jpg").write_bytes(jpeg(0))
        words = ("data", "convert", source, target, "--variant", "tiny")
        assert "width (500), kind_id (0); give --label-field NAME" in error_line(run_cli, *words)
        words = (*words, "--label-field", "kind_id")
        assert error_line(run_cli, *words, "--max-errors", "1").endswith("goes with --on-error skip\n")
        skip = (*words, "--on-error", "skip")
        assert "allowed: a share of the samples such as 0.1%" in error_line(run_cli, *skip, "--max-errors", "many")
        code, _, err = run_cli(*skip)
        assert code == 2 and "--max-errors 1% leaves out at most 0 of 8 samples, and more cannot be read" in err
        code, out, err = run_cli(*skip, "--max-errors", "20%")
        assert (code, out) == (0, "")
        assert "note: 1 hidden or system file is left out" in err
        assert f"note: 1 error: what could not be read is left out; {target / 'skipped.txt'} says what and why" in err
        manifest = read_manifest(target)
        assert (manifest.num_samples, manifest.num_classes) == (7, 2)
        assert (target / "skipped.txt").read_text().startswith(f"{source / '5.jpg'}: not a whole JPEG: ")
        assert run_cli("data", "verify", target)[0] == 0

    def test_convert_keeps_what_comes_before_a_cut_where_it_may(self, run_cli: Run, tmp_path: Path):
        source, target = tmp_path / "in", tmp_path / "new"
        source.mkdir()
        for name, numbers in (("a.tar", range(4)), ("b.tar", range(4, 8))):
            tar(source / name, [(f"{number}.jpg", jpeg(number)) for number in numbers])
        content = (source / "a.tar").read_bytes()
        size = content.index(b"3.jpg") + 600
        (source / "a.tar").write_bytes(content[:size])
        where = f"{source / 'a.tar'}: cut short after 3 samples (at byte {size}, inside member '3.jpg')"
        words = ("data", "convert", source, target, "--variant", "tiny", "--format", "hdf5")
        line = error_line(run_cli, *words)
        assert line == f"error: {where}; what followed is unknown; --on-error skip leaves out what cannot be read\n"
        assert not target.exists()
        code, out, err = run_cli(*words, "--on-error", "skip", "--max-errors", "1")
        assert (code, out) == (0, "")
        assert f"note: 1 error: what could not be read is left out; {target / 'skipped.txt'} says what and why" in err
        assert (target / "skipped.txt").read_text() == f"{where}; what followed is unknown\n"
        assert read_manifest(target).num_samples == 7
        assert run_cli("data", "verify", target)[0] == 0

    def test_verify_takes_the_same_tokens_of_another_width_as_the_same(self, run_cli: Run, tmp_path: Path):
        tokens = np.arange(1000) % 500
        for dtype, form in (("u2", "tokens"), ("i4", "webdataset")):
            words = ("--workload", "gpt_neox", "--variant", "tiny", "--format", form)
            assert run_cli("data", "convert", pair(tmp_path / dtype, tokens, dtype), tmp_path / form, *words)[0] == 0
        expected = f"ok: {tmp_path / 'tokens'} and {tmp_path / 'webdataset'} hold the same 7 samples\n"
        assert run_cli("data", "verify", tmp_path / "tokens", tmp_path / "webdataset")[:2] == (0, expected)

    def test_verify_tells_unlike_datasets_apart(self, run_cli: Run, dataset_root: Path, tmp_path: Path):
        assert run_cli("data", "generate", tmp_path / "other", "--samples", 2, "--seed", 9)[0] == 0
        assert "differ" in error_line(run_cli, "data", "verify", dataset_root / "files", tmp_path / "other")


class TestKinds:
    @pytest.mark.parametrize(
        ("workload", "format", "kind"),
        [("unet3d", "hdf5", "volume"), ("bert", "tfrecord", "mlm"), ("gpt_neox", "tokens", "tokens")],
    )
    def test_every_workloads_samples(self, run_cli: Run, tmp_path: Path, workload: str, format: str, kind: str):
        made, other = tmp_path / "made", tmp_path / "other"
        asked = ("--workload", workload, "--variant", "tiny")
        assert run_cli("data", "generate", made, *asked, "--format", format, "--samples", 5)[0] == 0
        manifest = read_manifest(made)
        assert (manifest.kind, manifest.num_samples, manifest.format) == (kind, 5, format)
        assert run_cli("data", "convert", made, other, *asked, "--format", "lmdb")[0] == 0
        code, out, _ = run_cli("data", "verify", made, other)
        assert (code, out) == (0, f"ok: {made} and {other} hold the same 5 samples\n")

    def test_format_options_are_kept_in_the_manifest(self, run_cli: Run, tmp_path: Path):
        options = ("-o", "file_samples=2", "-o", "compression=lzf", "--format", "hdf5")
        code, _, err = run_cli(
            "data", "generate", tmp_path / "set", "--workload", "unet3d", "--variant", "tiny", "--samples", 5, *options
        )
        assert code == 0 and "3 files" in err
        assert read_manifest(tmp_path / "set").options == {"file_samples": 2, "compression": "lzf"}

    def test_png_images(self, run_cli: Run, tmp_path: Path):
        made = tmp_path / "set"
        assert run_cli("data", "generate", made, "--variant", "tiny", "--samples", 3, "--encoding", "png")[0] == 0
        assert len(list(made.rglob("*.png"))) == 3
        assert read_manifest(made).fields[0].dtype == "png"
        assert run_cli("data", "verify", made)[0] == 0

    def test_text(self, run_cli: Run, tmp_path: Path):
        text = tmp_path / "book.txt"
        text.write_bytes(b"It was a dark and stormy night. " * 21)
        asked = ("--workload", "gpt_neox", "--variant", "tiny", "--format", "tokens")
        code, _, err = run_cli("data", "convert", text, tmp_path / "set", *asked)
        assert code == 0, err
        stored = np.fromfile(tmp_path / "set" / "tokens.bin", np.uint16)
        assert bytes(stored.astype(np.uint8)) == text.read_bytes()[: 5 * 128 + 1]
        assert f"the last {(21 * 32) % 128} tokens fill no sequence" in err


def test_what_cannot_be_converted(run_cli: Run, tmp_path: Path) -> None:
    """Of images, of tokens in two vocabularies, and of a stream of tokens that no dataset is."""
    pair(tmp_path / "stream", np.ones(400, int))
    tokens = ("--workload", "gpt_neox", "--variant")
    for name, count, words in (
        ("images", 3, ("--variant", "tiny")),
        ("tokens", 3, (*tokens, "tiny")),
        ("wide", 2, (*tokens, "reference")),
    ):
        assert run_cli("data", "generate", name, *words, "--samples", count)[0] == 0
    there = sorted(tmp_path.iterdir())
    cases = [
        "generate images --samples 6",
        "generate new --samples 3 --variant tiny -o array=npz",
        "convert images images/new --variant tiny",
        "convert images new --workload bert --variant tiny",
        "convert images new --variant tiny --tokenizer /nope.json",
        "convert images new --variant tiny --format all -o shard_samples=2",
        "convert images images --variant tiny --format all",
        "convert images new --workload resnet5 --format all",
        "convert tokens new --workload gpt_neox --label-field x",
        "convert tokens new --workload gpt_neox",
        "convert tokens new --workload gpt_neox --variant tiny --tokenizer /nope.json",
        "convert stream.bin new --workload gpt_neox --variant tiny --tokenizer /nope.json",
        "convert wide new --workload gpt_neox --variant pythia-70m",
    ]

    def message(words: str) -> str:
        line = error_line(run_cli, "data", *words.split())
        assert sorted(tmp_path.iterdir()) == there, "nothing was written"
        return line

    compare_messages("data_convert", cases, message, {f"{tmp_path}/": ""})
    assert run_cli("data", "convert", "wide", "new", *tokens, "pythia-6.9b")[0] == 0, "a larger vocabulary holds them"


class TestStage:
    def test_a_copy_is_made_found_and_removed(self, dataset_root: Path, tmp_path: Path, run_cli: Run) -> None:
        source = dataset_root / "webdataset"
        manifest = read_manifest(source)
        copy = tmp_path / f"resnet50-webdataset-{manifest.dataset_id[:12]}"
        code, out, _ = run_cli("data", "stage", source, "--to", tmp_path)
        assert code == 0
        size = in_units(int(manifest.created["num_bytes"] or 0))
        assert out.startswith(f"{copy}: {manifest.created['num_files']} files, {size}, every digest verified\n")
        assert "B/s" in out and "page cache: source left as found; copy 100%, clean" in out
        verify_dataset(copy)
        code, out, _ = run_cli("data", "stage", source, "--to", tmp_path, "--format", "json")
        again = json.loads(out)
        assert code == 0 and again["reused"] and again["folder"] == str(copy)
        assert (again["copied_bytes"], again["seconds"], again["bytes_per_s"]) == (0, None, None)
        assert run_cli("data", "stage", source, "--to", tmp_path, "--remove")[:2] == (0, f"{copy}: removed\n")
        assert list(tmp_path.iterdir()) == []
        assert "nothing to remove" in run_cli("data", "stage", source, "--to", tmp_path, "--remove")[1]

    def test_json_says_what_it_took(self, dataset_root: Path, tmp_path: Path, run_cli: Run) -> None:
        found = json.loads(run_cli("data", "stage", dataset_root / "lmdb", "--to", tmp_path, "--format", "json")[1])
        assert found["verified"] and not found["reused"]
        assert found["copied_bytes"] == found["num_bytes"] > 0
        assert found["bytes_per_s"] == found["copied_bytes"] / found["seconds"]
        # a copy can be removed by its own name, too
        assert run_cli("data", "stage", found["folder"], "--remove")[0] == 0
        assert list(tmp_path.iterdir()) == []

    def test_mistakes_are_one_line(self, dataset_root: Path, tmp_path: Path, run_cli: Run) -> None:
        code, out, err = run_cli("data", "stage", tmp_path)
        assert (code, out) == (2, "") and err.startswith("error: ") and "not a dataset" in err
        (tmp_path / "file").touch()
        code, out, err = run_cli("data", "stage", dataset_root / "files", "--to", tmp_path / "file")
        assert (code, out) == (2, "") and err.splitlines()[-1].startswith("error: ") and "file" in err
