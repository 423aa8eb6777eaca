"""Lustre's stripes: parsed from what `lfs` printed elsewhere, asked by a real process, advised with the arithmetic."""

import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchsuite.host import doctor, environment
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.observe import lustre
from benchsuite.storage.observe.lustre import ALL, Component, advice, layout_of, num_osts, parsed, stripes_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "lustre"
MIB = 1 << 20


def printed(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "components"),
    [
        ("file", [Component(1, MIB, None, "raid0")]),
        ("striped", [Component(4, MIB, None, "raid0")]),
        ("folder", [Component(1, MIB, None, "0")]),
        ("folder_pool", [Component(1, MIB, "ddn_hdd", "raid0")]),
        ("mirrored", [Component(2, 4 * MIB, "flash", "raid0"), Component(6, 4 * MIB, "archive", "raid0")]),
        (
            "progressive",
            [Component(2, MIB, None, "raid0", 0, 16 * MIB), Component(ALL, MIB, None, "raid0", 16 * MIB, None)],
        ),
        ("compressed", [Component(1, 4 * MIB, None, "raid0,compress")]),
    ],
)
def test_what_lfs_printed(name: str, components: list[Component]):
    assert parsed(printed(name)) == components


def test_what_is_no_layout():
    assert parsed("lfs getstripe: cannot get lov name: Inappropriate ioctl for device (25)\n") == []
    assert parsed("") == [] and num_osts("") is None
    assert parsed("    lcme_dstripe_count:  2\n") == [], "erasure coding's counts are not the file's"
    assert num_osts(printed("df")) == 5, "the lines that are there; MDTs are not counted"


def fake_lfs(folder: Path, monkeypatch: pytest.MonkeyPatch, file: str = "file", code: int = 0) -> Path:
    """An `lfs` that prints what was printed elsewhere, and notes its arguments."""
    folder.mkdir()
    program, log = folder / "lfs", folder / "asked"
    cases = {"getstripe -d": "folder_pool", "getstripe": file, "df": "df"}
    lines = [f'  "{words} "*) cat {shlex.quote(str(FIXTURES / name))}.txt;;' for words, name in cases.items()]
    program.write_text(
        "\n".join(["#!/bin/sh", f'printf "%s\\n" "$@" >> {log}', 'case "$* " in', *lines, "esac", f"exit {code}"])
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


class TestAsked:
    def test_a_folders_largest_file_and_what_new_ones_get(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        log = fake_lfs(tmp_path / "bin", monkeypatch, "striped")
        data = tmp_path / "$(touch made); 'data'"
        (data / "deep").mkdir(parents=True)
        (data / "small").write_bytes(b"1")
        (data / "deep" / "large").write_bytes(b"12345")
        found = layout_of(data)
        assert found is not None
        assert [one["stripe_count"] for one in found["components"]] == [4]
        assert [one["pool"] for one in found["new_files"]] == ["ddn_hdd"]
        assert found["osts"] == 5
        asked = log.read_text().splitlines()
        assert asked == ["getstripe", str(data / "deep" / "large"), "getstripe", "-d", str(data), "df", str(data)]
        assert not (tmp_path / "made").exists() and not Path("made").exists(), "no shell sees the path"

    def test_null_without_lfs_and_where_it_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert layout_of(tmp_path) is None
        fake_lfs(tmp_path / "bin", monkeypatch, code=1)
        assert layout_of(tmp_path) is None

    def test_a_server_that_does_not_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "lfs").write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / "lfs").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(lustre, "TIMEOUT_S", 0.2)
        assert layout_of(tmp_path) is None


class TestRecorded:
    def test_null_on_other_file_systems(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        fake_lfs(tmp_path / "bin", monkeypatch)
        assert environment.file_system(tmp_path)["lustre"] is None

    def test_with_the_file_system_of_a_dataset(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        fake_lfs(tmp_path / "bin", monkeypatch, "progressive")
        mount = SimpleNamespace(fstype="lustre", mountpoint=str(tmp_path), device="10.0.0.1@tcp:/fs", opts="rw")
        monkeypatch.setattr(environment, "mount_of", lambda _: mount)
        data = tmp_path / "data"
        generate_dataset(data, Wanted("gpt_neox", "nano", "tokens", "tokens", {"seq_len": 16, "vocab_size": 128}), 64)
        found = environment.file_system(data)["lustre"]
        assert [one["stripe_count"] for one in found["components"]] == [2, ALL]
        (line,) = [one.text for one in doctor._path(data) if "stripe" in one.text or "OSTs of" in one.text]
        assert f"{data}: all OSTs of 1 MiB, 2 components" in line


class TestAdvice:
    ONE, FOUR = [Component(1, MIB, None, "raid0")], [Component(4, MIB, None, "raid0")]

    def test_few_large_files_reach_few_osts(self):
        assert advice(self.ONE, 72, 4, 20e9, 16) == (
            "4 files of 20,000.0 MB, each on 1 of 72 OSTs: 16 readers of 4 files at once reach 4 x 1 = 4 OSTs; "
            "stripe count 4 reaches 16"
        )
        assert advice(self.FOUR, 72, 4, 20e9, 16) is None

    def test_many_files_need_no_stripes(self):
        assert advice(self.ONE, 72, 100_000, 110e3, 64) is None
        assert advice(self.FOUR, 8, 168, 147e6, 16) == (
            "168 files of 147.0 MB, each on 4 of 8 OSTs: 16 files read at once reach 8 OSTs with stripe count 1 "
            "already; more stripes cost each open 4 servers"
        )

    def test_a_file_smaller_than_its_stripes_lies_on_fewer_osts(self):
        assert stripes_of(self.FOUR, 110e3, 72) == 1
        assert stripes_of(self.FOUR, 2.5 * MIB, 72) == 3
        assert advice(self.FOUR, 72, 100_000, 110e3, 64) is None

    def test_composite_layouts_count_as_far_as_a_file_reaches(self):
        progressive = parsed(printed("progressive"))
        assert stripes_of(progressive, 1e6, 72) == 1
        assert stripes_of(progressive, 10e6, 72) == 2
        assert stripes_of(progressive, 1e9, 72) == 72
        assert stripes_of([Component(0, MIB, None, "mdt", 0, None)], 1e5, 72) == 0
        assert advice([Component(0, MIB, None, "mdt", 0, None)], 72, 10, 1e5, 4) is None
