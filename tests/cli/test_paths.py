"""What is no path of this machine is refused wherever a verb takes one, before anything is made."""

from pathlib import Path
from shlex import quote
from typing import Any

import pytest
import yaml

from tests.helpers.commands import filled, ran, written
from tests.helpers.snapshots import compare_messages

URL = "s3://bucket/x"
NOT_HERE = (
    "a bucket is for datasets (data.root, benchsuite data) and for probes (benchsuite probe storage, "
    "probe checkpoint); allowed here: a path of this machine"
)
REFUSED = f"{URL}: {NOT_HERE}"


VERBS = (
    ("sweep", URL),
    ("sweep", "x.yaml", "--store", URL),
    ("sweep", "x.yaml", f"--store={URL}"),
    ("demo", "--store", URL),
    ("trial", URL),
    ("trial", "x.yaml", "--timeline", URL),
    ("doctor", "/tmp", URL),
    ("report", "--store", URL),
    ("report", "--html", URL),
    ("report", "--json", URL),
    ("report", "--svg", URL),
    ("report", "--pdf", URL),
    ("status", URL),
    ("submit", "slurm", "x.yaml", "--out", URL),
    ("data", "convert", "x", "y", "--tokenizer", URL),
    ("data", "stage", "x", "--to", URL),
    ("probe", "comm", "--store", URL),
    ("results", "show", "--store", URL),
    ("results", "darshan", URL),
    ("results", "export", "parquet", "--out", URL),
    ("results", "export", "trace", URL),
    ("compare", URL, "x"),
    ("baseline", "set", "--store", URL),
    ("predict", "--table", URL),
    ("scaling", "--svg", URL),
)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_url_is_refused(run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]):
    monkeypatch.chdir(tmp_path)
    assert run_cli(*words) == (2, "", f"error: {REFUSED}\n")
    assert not list(tmp_path.iterdir())


LOOKS_AT_MANY = ("demo", "doctor")
"""They go on where one path is no good, or make photographs first."""


@pytest.mark.parametrize(
    "words", [words for words in VERBS if not " ".join(words).startswith(LOOKS_AT_MANY)], ids=" ".join
)
@pytest.mark.parametrize("name", ["n" * 300, "/".join(["n" * 200] * 30)], ids=["a name", "a path"])
def test_a_name_no_file_can_have_is_one_line(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], name: str
):
    monkeypatch.chdir(tmp_path)
    code, out, errors = run_cli(*(word.replace(URL, name) for word in words))
    assert (code, out) == (2, "") and errors.startswith("error: ") and errors.count("\n") == 1, (code, out, errors)
    assert not list(tmp_path.iterdir())


NO_UTF_8 = "c\udcffd"


@pytest.mark.parametrize("words", [words for words in VERBS if words[0] != "data"], ids=" ".join)
def test_bytes_that_are_no_utf_8_are_one_line(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    given = [word.replace(URL, NO_UTF_8) for word in words]
    shown = next(word for word in given if NO_UTF_8 in word).replace(NO_UTF_8, r"c\xffd")
    expected = f"error: b'{shown}': not UTF-8, but records must be; rename it, or link to it\n"
    assert run_cli(*given) == (2, "", expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("sweep", "demo", "--dry-run"), ("submit", "slurm", "demo"), ("nightly", "init", "n")]
)
def test_a_folder_of_such_a_name_is_one_line(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    folder = tmp_path / NO_UTF_8
    folder.mkdir()
    monkeypatch.chdir(folder)
    code, out, err = run_cli(*words)
    assert (code, out) == (2, "")
    assert err.endswith("/c\\xffd': not UTF-8, but records must be; start in another folder\n")
    assert run_cli("report", "--help")[0] == run_cli("list", "formats")[0] == 0


@pytest.mark.parametrize("key", ["data.root", "data.staging_dir"])
def test_bytes_that_are_no_utf_8_in_an_override_are_one_line(run_cli: Any, key: str):
    code, _, err = run_cli("sweep", "demo", "-o", f"{key}=/{NO_UTF_8}", "--dry-run")
    assert code == 2 and f"{key}=/c\\xffd': not UTF-8" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("name", [NO_UTF_8, "a\nb", "it's #1: {x}"])
def test_datasets_of_every_format_may_lie_below_any_name(run_cli: Any, tmp_path: Path, name: str):
    made, all_ = tmp_path / name / "made", tmp_path / name / "all"
    assert run_cli("data", "generate", made, "--samples", "4", "--variant", "tiny")[0] == 0
    assert run_cli("data", "convert", made, all_, "--variant", "tiny", "--format", "all")[0] == 0
    for folder in sorted(all_.iterdir()):
        assert run_cli("data", "verify", made, folder)[0] == 0


@pytest.mark.parametrize("name", ["a\nb", "it's #1: {x}"])
def test_a_root_of_any_name_is_taken_as_it_stands(run_cli: Any, tmp_path: Path, name: str):
    root = tmp_path / name
    assert run_cli("data", "generate", root / "files", "--samples", "8", "--variant", "tiny")[0] == 0
    file = filled(("{sweep}",), tmp_path, tmp_path / "store")[0]
    code, _, err = run_cli("sweep", file, "--dry-run", "-o", f"data.root={root}", "-o", "data.format=files")
    assert "no such folder" not in err and code == 0, err


def test_a_command_to_be_typed_again_is_quoted(run_cli: Any, tmp_path: Path):
    folder = tmp_path / "it's mine"
    code, _, err = run_cli("nightly", "init", folder)
    assert code == 0 and f"next: cd {quote(str(folder))} && benchsuite nightly run\n" in err


def test_a_sites_file_that_no_file_can_be_is_one_line(run_cli: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BENCHSUITE_SITE", "n" * 300)
    assert run_cli("sweep", "demo", "--dry-run") == (2, "", f"error: '{'n' * 99}...: File name too long\n")


def test_each_sort_of_url(run_cli: Any) -> None:
    cases = [
        "file:///data/x",
        "https://example.org/x.tar",
        "gs://b/x",
        "s3://key:word@b/x",
        "S3://bucket/../x",
    ]

    def message(given: str) -> str:
        code, _, err = run_cli("data", "verify", given)
        assert code == 2 and len(err.splitlines()) == 1
        return err

    compare_messages("urls", cases, message)


@pytest.mark.parametrize("key", ["data.root", "data.staging_dir"])
def test_a_url_in_a_sweep_file(run_cli: Any, tmp_path: Path, key: str):
    file = filled(("{sweep}",), tmp_path, tmp_path / "store")[0]
    given, told = (URL, NOT_HERE) if key == "data.staging_dir" else ("gs://b/x", "also s3://bucket/prefix")
    for words in (["-o", f"{key}={given}"], ["-o", f"{key}=[{given}]"]):
        code, _, err = run_cli("sweep", file, "--dry-run", *words)
        assert code == 2 and f"error: {key} {given}: " in err and told in err, err


@pytest.mark.parametrize("key", ["data.root", "data.staging_dir"])
def test_a_name_no_file_can_have_is_refused_when_planning(run_cli: Any, tmp_path: Path, key: str):
    file = filled(("{sweep}",), tmp_path, tmp_path / "store")[0]
    for given, told in (("x" * 300, "a name of 300 bytes"), ("/x" * 2500, "a path of 5,000 bytes")):
        code, _, err = run_cli("sweep", file, "-o", f"{key}={given}", "--store", str(tmp_path / "store"))
        assert code == 2 and err.startswith(f"error: {key} ") and told in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "store").exists()


def test_a_url_as_the_store_of_the_environment(tmp_path: Path):
    ended = ran(["report"], {"BENCHSUITE_STORE": URL}, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.decode()) == (2, f"error: {REFUSED}\n")


def test_a_url_as_the_store_of_a_users_file(tmp_path: Path):
    file = written(tmp_path, "user.yaml", {"store": URL})
    ended = ran(["report"], {"BENCHSUITE_USER_CONFIG": str(file)}, cwd=tmp_path)
    assert ended.returncode == 2 and NOT_HERE.encode() in ended.stderr
    assert not (tmp_path / "s3:").exists()


def test_a_name_with_a_colon_is_a_path(run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert run_cli("data", "generate", "runs:1/x", "--samples", "8", "--variant", "tiny")[0] == 0
    assert run_cli("data", "verify", "runs:1/x")[0] == 0
    assert run_cli("report", "--store", "c:store")[0] == 2


def test_a_zero_byte_in_a_sweep_file_is_one_line(run_cli: Any, tmp_path: Path):
    base = {"workload": "resnet50", "variant": "tiny", "batch_size": 1, "data": {"root": "/da\0ta"}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": base}))
    code, _, err = run_cli("sweep", str(tmp_path / "sweep.yaml"), "--dry-run")
    assert code == 2 and "a path holds no zero byte" in err


def test_a_url_within_a_query_is_none(run_cli: Any, tmp_path: Path):
    code, _, err = run_cli("results", "query", f"select 's3://{'x' * 300}'", "--store", str(tmp_path / "none"))
    assert code == 2 and "no results there" in err, err
