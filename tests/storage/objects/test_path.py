"""Names of objects: joined and split as paths are, and of no use to what wants a file."""

import errno
import pickle
from pathlib import Path

import pytest

from benchsuite.storage.objects.path import ObjectPath, object_path, path_of
from tests.helpers.snapshots import compare_messages


def test_a_name_joins_and_splits_as_a_path_does():
    folder = object_path("s3://bucket/pre/fix/")
    assert str(folder) == f"{folder}" == "s3://bucket/pre/fix"
    assert (folder.bucket, folder.key) == ("bucket", "pre/fix")
    below = folder / "a" / "b_x.npy"
    assert (str(below), below.key, below.name) == ("s3://bucket/pre/fix/a/b_x.npy", "pre/fix/a/b_x.npy", "b_x.npy")
    assert str(below.relative_to(folder)) == "a/b_x.npy"
    assert str(below.with_name("b_y.npy")) == "s3://bucket/pre/fix/a/b_y.npy"
    copy = pickle.loads(pickle.dumps(below))
    assert isinstance(copy, ObjectPath) and copy == below


def test_a_bucket_alone_has_no_key():
    assert object_path("s3://bucket").key == object_path("s3://bucket/").key == ""


def test_what_wants_a_file_of_this_machine_is_refused_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = object_path("s3://bucket/x")
    for use in (open, Path.mkdir, Path.stat, Path.exists, Path.is_file, Path.is_dir, Path.iterdir):
        with pytest.raises(OSError, match="an object of a bucket") as caught:
            list(use(folder) or ())
        assert caught.value.errno == errno.EOPNOTSUPP
    assert not [*tmp_path.iterdir()]


def test_what_no_object_is_called_is_refused() -> None:
    cases = [
        "s3://",
        "s3:///x",
        "s3://b/x",
        "s3://a b/x",
        "s3://bucket/a/../b",
        "s3://bucket/" + "x" * 1025,
    ]

    def message(given: str) -> str:
        with pytest.raises(ValueError) as caught:
            object_path(given)
        return str(caught.value)

    compare_messages("object_names", cases, message, {"x{1025}": "(1025 x)"})


def test_credentials_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(ValueError, match="credentials") as caught:
        object_path("s3://KEY:SECRET@bucket/x")
    assert "SECRET" not in str(caught.value)


def test_other_paths_stay_what_they_are():
    assert type(path_of("/data/x")) is type(Path("/data/x")) and path_of("/data/x") == Path("/data/x")
    assert isinstance(path_of("S3://bucket/x"), ObjectPath)
