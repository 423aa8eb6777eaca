"""The registries: what is there, what is said about what is not, and what importing costs."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from benchsuite import storage
from benchsuite.storage import FORMATS, KINDS, LOADERS, format_of, load, names
from benchsuite.storage.dataset.manifest import DatasetError


@pytest.mark.parametrize("registry", [FORMATS, LOADERS, KINDS])
def test_every_name_loads(registry: storage.Registry) -> None:
    for name in registry:
        assert load(registry, name) is not None


def test_an_unknown_name_lists_those_allowed() -> None:
    with pytest.raises(DatasetError, match=r"'fils'.*files, hdf5, lmdb, mds, parquet, tfrecord, tokens, webdataset"):
        load(FORMATS, "fils")


def test_a_missing_library_comes_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchsuite.storage.nowhere", None)
    with pytest.raises(DatasetError, match="pip install nowhere"):
        load({"new": ("benchsuite.storage.nowhere:NEW", "pip install nowhere")}, "new")


def test_third_parties_add_through_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("zarr", "benchsuite.storage.formats.files:FILES", "benchsuite.formats")
    monkeypatch.setattr(storage, "entry_points", lambda group: [entry] if group == "benchsuite.formats" else [])
    assert names(FORMATS, "benchsuite.formats") == [*sorted(FORMATS), "zarr"]
    assert format_of("zarr").name == "files"
    assert names(FORMATS) == sorted(FORMATS)


def test_planning_imports_neither_torch_nor_webdataset() -> None:
    code = (
        "import sys; from benchsuite.storage import FORMATS, load; import benchsuite.storage.dataset.spec;"
        "[load(FORMATS, name) for name in FORMATS];"
        "assert not {'torch', 'webdataset', 'h5py', 'lmdb', 'pyarrow', 'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
