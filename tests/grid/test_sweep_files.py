"""Sweep files as people and machines write them: what is read, and what is refused at once, in one line, and why."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.contract import yaml_file
from benchsuite.contract.errors import UserError
from benchsuite.contract.yaml_file import parse_override, read_yaml
from benchsuite.grid.expand import load_sweep
from tests.bounded import run_bounded
from tests.helpers.configured import without_settings
from tests.helpers.snapshots import compare_messages

__all__ = ["without_settings"]

BASE = "base: {workload: resnet50, variant: tiny, batch_size: 4, data: {source: synthetic}}\n"
MEASURE = "base: {workload: resnet50, variant: tiny, batch_size: 4, data: {source: synthetic}, measure: "


def bomb() -> str:
    """A dozen lines that stand for 10**9 values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 9)]
    return "\n".join(lines) + "\n"


def big_grid(length: int) -> str:
    axes = ("batch_size", "measure.seed", "measure.steps", "measure.warmup_steps", "data.num_workers")
    return BASE + "grid:\n" + "".join(f"  {key}: {[*range(2, length + 2)]}\n" for key in axes)


REFUSED: dict[str, str | bytes] = {
    "lists 60,000 deep": "[" * 60_000,
    "blocks 1,000 deep": "".join(f"{' ' * at}a:\n" for at in range(1_000)),
    "an anchor in itself": "base: &a [*a]",
    "a billion laughs": bomb() + BASE,
    "a number of 5,000 digits": f"{MEASURE} {{seed: {'9' * 5_000}}}}}",
    "a seed that overflows": f"{MEASURE} {{seed: {2**63}}}}}",
    "a billion ranks": BASE + "grid: {world_size: [1000000000]}",
    "base 60": BASE.replace("batch_size: 4", "batch_size: 1:30"),
    "a date": BASE.replace("batch_size: 4", "batch_size: 2026-01-01"),
    "a word that YAML reads as true": BASE.replace("synthetic", "synthetic, staging: off"),
    "too large a grid": big_grid(40),
    "too many trials": BASE + f"grid: {{measure.seed: {[*range(1000)]}, measure.repeats: [10000]}}",
    "a file of 2 MiB": BASE + "# words\n" * (1 << 18),
    "a file of values": BASE + "exclude:\n" + "- {world_size: 3}\n" * 8_000,
    "no text": b"\x89PNG\r\n\x1a\n\x00\x00",
    "NUL bytes": f"{BASE}question: a\0b",
    "nothing": "",
    "a list": "- 1\n- 2\n",
    "two documents": f"{BASE}---\n{BASE}",
    "a tag": "base: !!python/object:os.system {}",
    "a list as a key": "base: {? [1] : 2}",
    "a key twice": "base: {a: 1, b: 2, a: 3}",
    "a key nested and with dots": f"{MEASURE} {{steps: 3}}, measure.steps: 5}}",
    "no anchor of that name": "base: {<<: *none}",
    "an anchor's name of 900 kB": f"base: *{'x' * 900_000}",
}


def refused(folder: Path, *arguments: object) -> str:
    """What a verb says that ends at once with exit code 2: lines that all are errors."""
    code, out, err = run_bounded(folder, *arguments)
    assert (code, out) == (2, ""), f"exit code {code}: {err[-2000:]}"
    assert all(line.startswith("error: ") for line in err.splitlines()), err[-2000:]
    assert (len(err) < 4_000 and err.isprintable()) or err.count("\n"), err[:4_000]
    return err


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_one_line_at_once_and_in_bounded_memory(tmp_path: Path):
    def message(content: str | bytes) -> str:
        told = refused(tmp_path, "sweep", written(tmp_path, content), "--dry-run")
        assert told.count("\n") == 1, told
        return told

    compare_messages("hostile_sweep_files", REFUSED, message, {str(tmp_path): "FOLDER"})


def test_a_mistake_that_all_points_have_is_told_once(tmp_path: Path):
    """And it is not looked for in all of them."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"{BASE}grid: {{parallelism: [{', '.join(['ddpp'] * 19_000)}]}}")
    told = refused(tmp_path, "sweep", path, "--dry-run").splitlines()
    assert "parallelism 'ddpp' is unknown; nearest: ddp" in told[0] and len(told) == 2
    assert told[1] == "error: and perhaps more mistakes: mend these first"


def test_many_points_and_many_exclusions_are_planned_at_once(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    excluded = "".join(f"- {{measure.seed: {seed}, batch_size: {seed % 40 + 1}}}\n" for seed in range(3_000))
    seeds, sizes = [*range(200)], [*range(1, 41)]
    path.write_text(f"{BASE}grid: {{measure.seed: {seeds}, batch_size: {sizes}}}\nexclude:\n{excluded}")
    code, out, err = run_bounded(tmp_path, "sweep", path, "--dry-run", "--store", tmp_path / "store")
    assert code == 0, err
    assert out.count("excluded by the file") == 1 and "and 196 more: excluded by the file" in out


@pytest.mark.parametrize("case", ["lists 60,000 deep", "an anchor in itself", "a billion laughs", "no text"])
def test_a_trial_is_read_the_same_way(tmp_path: Path, case: str):
    path = written(tmp_path, REFUSED[case])
    assert refused(tmp_path, "trial", path) == refused(tmp_path, "sweep", path, "--dry-run")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (a_folder, "a folder, not a regular file"),
        (os.mkfifo, "a pipe, not a regular file"),
        (a_link_to("/dev/zero"), "a socket or device, not a regular file"),
        (a_link_to("nowhere.yaml"), "No such file"),
    ],
)
@pytest.mark.parametrize("verb", ["sweep", "trial"])
def test_what_is_no_file(tmp_path: Path, verb: str, make: Callable[[Path], None], words: str):
    make(tmp_path / "mine.yaml")
    assert f"mine.yaml: {words}" in refused(tmp_path, verb, tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"grid={'[' * 5_000}", "16 levels"),
        (f"{'a.' * 5_000}b=1", "16 levels"),
        ("batch_size=1:30", "batch_size '1:30'"),
        ("=3", "unknown key ''"),
    ],
)
def test_overrides_are_read_the_same_way(tmp_path: Path, text: str, words: str):
    (tmp_path / "mine.yaml").write_text(BASE)
    told = refused(tmp_path, "sweep", tmp_path / "mine.yaml", "--dry-run", "-o", text)
    assert words in told and told.count("\n") == 1


def test_so_are_variables_and_the_sites_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.yaml").write_text(BASE)
    monkeypatch.setenv("BENCHSUITE_MEASURE__SEED", "&a [*a]")
    assert "BENCHSUITE_MEASURE__SEED" in refused(tmp_path, "sweep", tmp_path / "mine.yaml", "--dry-run")
    monkeypatch.delenv("BENCHSUITE_MEASURE__SEED")
    (tmp_path / "site.yaml").write_text("base: &a {data: *a}")
    monkeypatch.setenv("BENCHSUITE_SITE", str(tmp_path / "site.yaml"))
    assert "site.yaml: not YAML: anchor 'a'" in refused(tmp_path, "sweep", tmp_path / "mine.yaml", "--dry-run")


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "read.yaml").write_text(text)
    return read_yaml(tmp_path / "read.yaml")


class TestMergeKeys:
    COMMON = "a: &a {x: 1, y: {z: 2}}\nb: &b {x: 3, w: 4}\n"

    @pytest.mark.parametrize(
        ("merged", "expected"),
        [
            ("{<<: *a}", {"x": 1, "y": {"z": 2}}),
            ("{<<: *a, x: 9}", {"x": 9, "y": {"z": 2}}),
            ("{x: 9, <<: *a}", {"x": 9, "y": {"z": 2}}),
            ("{<<: [*a, *b]}", {"x": 1, "y": {"z": 2}, "w": 4}),
            ("{<<: [*b, *a], y: 5}", {"x": 3, "y": 5, "w": 4}),
            ("{<<: {x: 7}, v: *b}", {"x": 7, "v": {"x": 3, "w": 4}}),
            ("&c {<<: *a, x: 8}\nd: {<<: *c, y: 1}", {"x": 8, "y": {"z": 2}}),
        ],
    )
    def test_give_way_to_what_is_written_out(self, tmp_path: Path, merged: str, expected: dict[str, Any]):
        assert read(tmp_path, f"{self.COMMON}c: {merged}")["c"] == expected

    def test_one_that_overrides_a_merged_key_may_be_merged_again(self, tmp_path: Path):
        found = read(tmp_path, f"{self.COMMON}c: &c {{<<: *a, x: 8}}\nd: {{<<: *c, y: 1}}\ne: {{<<: [*c, *b]}}")
        assert found["d"] == {"x": 8, "y": 1} and found["e"] == {"x": 8, "y": {"z": 2}, "w": 4}
        assert found["c"] == {"x": 8, "y": {"z": 2}}

    def test_a_sweep_is_the_same_with_and_without_them(self, tmp_path: Path):
        shared = "include:\n  - &one {world_size: 2, parallelism: ddp, data.num_workers: 1}\n"
        merged = f"{BASE}{shared}  - {{<<: *one, data.num_workers: 2}}\n"
        written = f"{BASE}{shared}  - {{world_size: 2, parallelism: ddp, data.num_workers: 2}}\n"
        (tmp_path / "a.yaml").write_text(f"name: s\n{merged}")
        (tmp_path / "b.yaml").write_text(f"name: s\n{written}")
        assert load_sweep(tmp_path / "a.yaml", []) == load_sweep(tmp_path / "b.yaml", [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("12:00:00", "12:00:00"),
        ("2026-11-20", "2026-11-20"),
        ("2026-11-20 10:00:00", "2026-11-20 10:00:00"),
        ("007", "007"),
        ("0", 0),
        ("-12", -12),
        ("1_000", 1000),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1.0e+3", 1000.0),
        (".inf", float("inf")),
        ("yes", True),
        ("off", False),
        ("true", True),
        ("~", None),
        ("", None),
        ("'007'", "007"),
        ("=", "="),
        ("[1, a]", [1, "a"]),
        ("{dp: 2, 3: x}", {"dp": 2, "3": "x"}),
        ("2**63", "2**63"),
        ("/data/run #1: it's/{a}", "/data/run #1: it's/{a}"),
        ("/data/a\nb", "/data/a\nb"),
        ("data\n  set", "data\n  set"),
        ("[1,\n a]", [1, "a"]),
    ],
)
def test_values(text: str, value: Any):
    key, found = parse_override(f"key={text}")
    assert (key, found, type(found)) == ("key", value, type(value))


def test_keys_are_text_as_they_stand(tmp_path: Path):
    assert read(tmp_path, "{1: a, on: b, 1.50: c, ~: d}") == {"1": "a", "on": "b", "1.50": "c", "~": "d"}


def test_a_name_may_look_like_a_date(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(f"name: 2026-11-20\n{BASE}")
    assert load_sweep(tmp_path / "mine.yaml", []).name == "2026-11-20"


def test_a_byte_order_mark_is_no_content(tmp_path: Path):
    (tmp_path / "mine.yaml").write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load_sweep(tmp_path / "mine.yaml", []).base["batch_size"] == 4


MISTAKES = {
    "gird": {"world_size": [1]},
    "scaling": "weeak",
    "base": {
        "workload": "resnet51",
        "batchsize": 4,
        "precision": "bf61",
        "parallelism": {"ttp": 2, "pp": 0},
        "data": {"cahce": "cold", "format": "webdatset", "source": "synthetic"},
        "measure": {"steps": "many", "repeats": 0},
    },
    "grid": {"data.loadr": ["torch"], "device": ["cpu", "gpu", "cdua"], "batch_size": []},
    "zip": {"world_size": [1, 2], "measure.seed": [1, -2, 3]},
    "include": [{"optimizer": "adamww"}, {"data": {"staging": "lasy"}}, {}],
}


class TestAllMistakes:
    def test_are_told_in_one_go_the_nearest_name_first(self, tmp_path: Path):
        def message(verb: str, *options: str) -> str:
            base = MISTAKES["base"] if verb == "trial" else MISTAKES
            lines = refused(tmp_path, verb, written(tmp_path, yaml.safe_dump(base)), *options)
            assert len(lines.splitlines()) == len(set(lines.splitlines()))
            return lines

        compare_messages("all_mistakes", {"sweep": ("sweep", "--dry-run"), "trial": ("trial",)}, message)

    def test_of_a_sites_file_each_with_its_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "mine.yaml").write_text(BASE)
        (tmp_path / "site.yaml").write_text("base: {batchsize: 3, precision: bf61}\n")
        monkeypatch.setenv("BENCHSUITE_SITE", str(tmp_path / "site.yaml"))
        lines = refused(tmp_path, "sweep", tmp_path / "mine.yaml", "--dry-run").splitlines()
        assert len(lines) == 2 and all(line.startswith(f"error: {tmp_path}/site.yaml: base: ") for line in lines)

    def test_of_many_the_first_are_told_and_the_others_counted(self, tmp_path: Path):
        (tmp_path / "mine.yaml").write_text(BASE + "grid: {" + ", ".join(f"key{at}: [1]" for at in range(500)) + "}")
        lines = refused(tmp_path, "sweep", tmp_path / "mine.yaml", "--dry-run").splitlines()
        assert len(lines) == 31 and lines[-1] == "error: and more mistakes: mend these first"

    def test_a_key_that_is_missing_since_it_is_misspelt_is_told_once(self, tmp_path: Path):
        (tmp_path / "mine.yaml").write_text("base: {worklaod: resnet50, batch_size: 4}")
        told = refused(tmp_path, "sweep", tmp_path / "mine.yaml", "--dry-run")
        assert told.count("\n") == 1 and "unknown key 'worklaod'; nearest: workload" in told

    def test_a_value_of_any_size_is_told_in_a_line(self):
        with pytest.raises(UserError) as caught:
            yaml_file.with_parts({"base": ["x" * 100_000]})
        assert len(str(caught.value)) < 300
