"""Pipes, devices, sockets and links in a circle, where data is looked for: one line, at once."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NAMES = {
    "resnet50": ("x.jpg", "x.tar", "x.h5", "data.mdb", "x.tfrecord"),
    "unet3d": ("a_x.npy", "a.npz", "x.tar", "x.h5", "case_1/imaging.nii.gz", "imagesTr/a.nii.gz"),
    "bert": ("x.h5", "x.tfrecord", "x.txt"),
    "gpt_neox": ("x.npy", "x.txt", "x.bin"),
}
FILES = [(workload, name) for workload, names in NAMES.items() for name in names]
SOON_S = 60
Refused = Callable[..., str]


@pytest.fixture
def refused(run_cli: Callable[..., tuple[int, str, str]]) -> Iterator[Refused]:
    """The one line that a command says; one that reads on is ended by an alarm."""

    def alarmed(*_: object) -> None:
        pytest.fail(f"it still reads after {SOON_S} seconds")

    def run(*words: object) -> str:
        signal.alarm(SOON_S)
        code, _, said = run_cli("data", *words)
        assert code == 2, said
        assert said.count("error:") == 1 and "Traceback" not in said
        return said

    before = signal.signal(signal.SIGALRM, alarmed)
    yield run
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("workload", "name"), FILES)
def test_a_pipe_in_a_source(tmp_path: Path, refused: Refused, workload: str, name: str):
    pipe = tmp_path / "source" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    said = refused("convert", tmp_path / "source", tmp_path / "made", "--workload", workload)
    assert f"{pipe}: a pipe, not a regular file" in said
    assert not (tmp_path / "made").exists()


def test_a_pipe_among_images(tmp_path: Path, dataset_root: Path, refused: Refused):
    source = tmp_path / "source"
    shutil.copytree(dataset_root / "files", source, ignore=shutil.ignore_patterns("*.json", "*.npy"))
    pipe = next(path for path in source.iterdir() if path.is_dir()) / "0001.jpg"
    os.mkfifo(pipe)
    assert f"{pipe}: a pipe, not a regular file" in refused("convert", source, tmp_path / "made")


@pytest.mark.parametrize(("workload", "device"), [("resnet50", "/dev/zero"), ("bert", "/dev/stdin")])
def test_a_device_as_a_source(tmp_path: Path, refused: Refused, workload: str, device: str):
    said = refused("convert", device, tmp_path / "made", "--workload", workload)
    assert device in said


def test_a_link_to_a_device_among_images(tmp_path: Path, refused: Refused):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x.jpg").symlink_to("/dev/zero")
    said = refused("convert", tmp_path / "source", tmp_path / "made")
    assert "x.jpg: a socket or device, not a regular file" in said


def test_a_socket(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "source").mkdir()
    monkeypatch.chdir(tmp_path / "source")  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("x.jpg")
        assert "a socket or device, not a regular file" in refused("convert", "../source", "../made")


@pytest.mark.parametrize("verb", [("convert",), ("verify",), ("stage", "--to")], ids=lambda verb: verb[0])
def test_links_in_a_circle(tmp_path: Path, refused: Refused, verb: tuple[str, ...]):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert str(tmp_path / "a") in refused(verb[0], tmp_path / "a", *verb[1:], tmp_path / "made")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x.jpg").symlink_to("x.jpg")
    assert "source" in refused(verb[0], tmp_path / "source", *verb[1:], tmp_path / "made")


def pipes_of(dataset: Path) -> list[Path]:
    """The files of a dataset that are read: those about it, and one of its data."""
    data = sorted(
        path for path in dataset.rglob("*") if path.is_file() and path.suffix not in (".json", ".npy", ".idx")
    )
    return [dataset / "manifest.json", dataset / "index.npy", data[-1]]


VERBS = {"convert": ("dataset", "made"), "verify": ("dataset",), "stage": ("dataset", "--to", "copies")}
OF_A_DATASET = [
    *((verb, "files", number) for verb in VERBS for number in range(3)),
    *(("verify", format, 2) for format in ("webdataset", "hdf5", "lmdb", "mds", "parquet", "tfrecord")),
]
"""Verb, format, and which of a dataset's files is a pipe: its manifest, index or data."""


@pytest.mark.parametrize(("verb", "format", "number"), OF_A_DATASET)
def test_a_pipe_in_a_dataset(tmp_path: Path, dataset_root: Path, refused: Refused, verb: str, format: str, number: int):
    dataset = tmp_path / "dataset"
    shutil.copytree(dataset_root / format, dataset)
    pipe = pipes_of(dataset)[number]
    pipe.unlink()
    os.mkfifo(pipe)
    said = refused(verb, *(word if word == "--to" else tmp_path / word for word in VERBS[verb]))
    assert pipe.name in said
    assert not (tmp_path / "made").exists()
