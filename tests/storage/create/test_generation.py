"""Datasets that are generated: the same for the same seed, in few samples at a time, whole or not at all."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import process as executor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from benchsuite.storage import FORMATS
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.create.parallel import in_parallel
from benchsuite.storage.create.photos import MEAN_PNG_BYTES, image_sample
from benchsuite.storage.dataset.kinds import decode_pixels
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, is_dataset, open_dataset, read_manifest
from benchsuite.storage.dataset.sample import Sample, content_digest
from benchsuite.storage.dataset.verify import verify_dataset
from tests.helpers.below import below
from tests.storage.makers import failing_sample, noted_sample
from tests.storage.samples import IMAGE_FORMATS, PARAMS, WORKLOADS, contents, digests, some_samples

KINDS = sorted(PARAMS)
KILLED = ("files", "webdataset", "hdf5", "lmdb")
"""Formats of many files, of shards, of one that a library writes, and of one that it maps."""
OTHER_FORMS = dict(zip(KINDS, ["webdataset", "hdf5", "tokens", "lmdb"], strict=True))


def generated(folder: Path, kind: str, form: str, count: int, seed: int, processes: int) -> Dataset:
    generate_dataset(
        folder,
        Wanted(WORKLOADS[kind], "tiny", form, kind=kind, params=PARAMS[kind]),
        count,
        seed=seed,
        num_workers=processes,
    )
    return verify_dataset(folder)


class TestGenerated:
    @pytest.mark.parametrize(("kind", "other_form"), OTHER_FORMS.items())
    def test_depends_on_the_seed_and_not_on_processes_or_format(
        self, tmp_path: Path, kind: str, other_form: str
    ) -> None:
        one = generated(tmp_path / "1", kind, "files", 6, 4, 1)
        two = generated(tmp_path / "2", kind, other_form, 6, 4, 2)
        other = generated(tmp_path / "3", kind, "files", 6, 5, 1)
        assert one.manifest.dataset_id == two.manifest.dataset_id != other.manifest.dataset_id
        assert one.index["key"].tolist() == two.index["key"].tolist()
        assert one.manifest.params == two.manifest.params

    def test_photographs_are_those_of_the_seed(self, tmp_path: Path) -> None:
        expected = [image_sample(4, index, 2) for index in range(3)]
        assert contents(generated(tmp_path / "set", "image", "files", 3, 4, 1)) == {
            sample.key: (sample.fields["image"], int(sample.fields["label"])) for sample in expected
        }

    @pytest.mark.parametrize("kind", ["volume", "mlm", "tokens"])
    def test_arrays_are_those_of_the_seed(self, tmp_path: Path, kind: str) -> None:
        dataset = generated(tmp_path / "set", kind, "files", 8, 0, 1)
        rows = {dataset.key(row): bytes(dataset.index["digest"][row]).decode() for row in range(8)}
        assert rows == digests(some_samples(8, kind))

    def test_pngs_hold_the_pixels_of_the_jpegs(self, tmp_path: Path) -> None:
        generate_dataset(
            tmp_path / "png", Wanted("resnet50", "tiny", "files"), 3, seed=4, num_workers=1, encoding="png"
        )
        found = contents(verify_dataset(tmp_path / "png"))
        for index in range(3):
            sample = image_sample(4, index, 2)
            png = Sample(sample.key, {"image": found[sample.key][0]})
            assert (tmp_path / "png" / f"{sample.key}.png").is_file()
            assert np.array_equal(decode_pixels(png), decode_pixels(sample))
        assert 0.2 < np.mean([len(image) for image, _ in found.values()]) / MEAN_PNG_BYTES < 3

    def test_the_manifest_says_how(self, dataset_root: Path) -> None:
        manifest = read_manifest(dataset_root / "files")
        assert (manifest.created["how"], manifest.created["seed"]) == ("generate", 3)
        ids = {verify_dataset(dataset_root / name).manifest.dataset_id for name in IMAGE_FORMATS}
        assert ids == {manifest.dataset_id}

    def test_no_samples_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError):
            generate_dataset(tmp_path / "set", Wanted("resnet50", "tiny", "files"), 0, num_workers=1)
        assert not (tmp_path / "set").exists()

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_disk_too_small_is_refused_before_the_first_byte(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        monkeypatch.setattr("benchsuite.storage.create.parallel.ProcessPoolExecutor", None)
        monkeypatch.setattr(Path, "mkdir", lambda path, **options: path.parent.exists() or pytest.fail(f"made {path}"))
        with pytest.raises(DatasetError, match=r"\d [KMG]B free"):
            generated(tmp_path / "set", kind, "files", 200, 0, 1)
        assert list(tmp_path.iterdir()) == []


CODE = """if True:
    import sys
    from pathlib import Path
    from benchsuite.storage.create.convert import Wanted, generate_dataset

    if __name__ == "__main__":
        params = {"patch_size": 8, "mean_bytes": 20000, "stdev_bytes": 5000, "seq_len": 24, "vocab_size": 600}
        progress = lambda done, total: print(done, flush=True)
        wanted = Wanted("any", "tiny", sys.argv[2], sys.argv[3], params)
        generate_dataset(Path(sys.argv[1]), wanted, 5000, progress=progress, num_workers=2)
"""


def alive_in_the_end(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are still there after a while; who has ended and waits to be noticed by its new parent is not."""

    def is_alive(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    for _ in range(1000):
        if not any(map(is_alive, processes)):
            return []
        time.sleep(0.02)
    left = [process for process in processes if is_alive(process)]
    for process in left:
        process.kill()
    return left


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form in KILLED else pytest.mark.full) for form in sorted(FORMATS)]
)
def test_killed_in_mid_write_it_leaves_no_dataset_and_no_processes(tmp_path: Path, form: str) -> None:
    target, kind = tmp_path / "out" / "set", "tokens"
    with subprocess.Popen([sys.executable, "-c", CODE, str(target), form, kind], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        for _ in range(20):
            assert parent.stdout.readline()
        workers = below(parent.pid, recursive=True)
        parent.kill()
    assert parent.returncode == -signal.SIGKILL
    assert len(workers) >= 2
    assert alive_in_the_end(workers) == []
    for folder in [target.parent, *target.parent.rglob("*")]:
        assert not is_dataset(folder)
    with pytest.raises(DatasetError, match="no such folder"):
        open_dataset(target)
    assert len(list(target.parent.iterdir())) == 1
    assert generated(target, kind, form, 3, 0, 1).manifest.num_samples == 3
    assert list(target.parent.iterdir()) == [target]


def made_by_now(log: Path) -> int:
    """Samples made once nothing more is added for a while."""
    before = -1
    while (found := len(log.read_text().splitlines())) != before:
        before = found
        time.sleep(0.2)
    return found


class TestInParallel:
    @pytest.mark.parametrize("by_threads", [False, True])
    def test_samples_come_in_order_and_hold_until_the_next_one(self, tmp_path: Path, by_threads: bool) -> None:
        samples = in_parallel(partial(noted_sample, log=str(tmp_path / "log")), 40, 2, by_threads)
        for index, sample in enumerate(samples):
            assert sample.key == f"{index:06d}"
            assert np.all(sample.fields["array"] == index % 251)
            assert sample.digest == content_digest(Sample("", {"array": np.full(4000, index % 251, np.uint8)}))

    @pytest.mark.parametrize("by_threads", [False, True])
    def test_no_more_are_made_than_twice_the_workers_however_slowly_they_are_taken(
        self, tmp_path: Path, by_threads: bool
    ) -> None:
        log = tmp_path / "log"
        samples = in_parallel(partial(noted_sample, log=str(log)), 1000, 2, by_threads)
        for taken in range(1, 4):
            next(samples)
            assert taken <= made_by_now(log) <= taken + 2 * 2
        samples.close()
        assert made_by_now(log) <= 3 + 2 * 2

    @pytest.mark.parametrize("by_threads", [False, True])
    def test_an_interrupted_generation_does_not_make_the_rest_first(self, tmp_path: Path, by_threads: bool) -> None:
        """Ctrl-C or a full disk at sample 1 of a million must not wait for the other 999,999."""
        log = tmp_path / "log"
        samples = in_parallel(partial(noted_sample, log=str(log)), 10**6, 1, by_threads)
        next(samples)
        with pytest.raises(KeyboardInterrupt):
            samples.throw(KeyboardInterrupt)
        assert len(log.read_text().splitlines()) <= 3

    def test_its_end_leaves_no_processes_threads_or_files(self, tmp_path: Path) -> None:
        def own() -> tuple[int, int, int]:
            workers = [child for child in below() if "spawn_main" in " ".join(child.cmdline())]
            return len(workers), threading.active_count(), len(os.listdir("/proc/self/fd"))

        list(in_parallel(partial(noted_sample, log=str(tmp_path / "log")), 5, 1))
        before = own()
        list(in_parallel(partial(noted_sample, log=str(tmp_path / "log")), 5, 2))
        assert all(after <= count for after, count in zip(own(), before, strict=True))

    def test_a_signal_while_it_starts_ends_its_processes_and_is_not_hidden(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The executor cannot join its thread then; SIGHUP at that moment ended `data generate` in a traceback."""

        def struck(_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(executor._ExecutorManagerThread, "start", struck)
        with pytest.raises(KeyboardInterrupt):
            next(in_parallel(partial(noted_sample, log=str(tmp_path / "log")), 5, 2))
        for child in multiprocessing.active_children():
            child.join(20)
        assert not multiprocessing.active_children()

    def test_a_sample_that_cannot_be_made_is_said_after_those_before_it(self) -> None:
        keys = []
        with pytest.raises(DatasetError, match="sample 3 cannot be made"):
            for sample in in_parallel(failing_sample, 10, 2):
                keys.append(sample.key)
        assert keys == ["0", "1", "2"]
