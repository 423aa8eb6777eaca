"""Fixtures of the tests of buckets: one real server behind one proxy for all, and datasets that all of them read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.objects import client
from benchsuite.storage.objects.path import ObjectPath, object_path
from tests.helpers.object_store import Proxy, credentials, new_bucket, server
from tests.storage.conftest import Made
from tests.storage.samples import small_shards, some_samples, store

COUNT = 8
"""Samples of a dataset that all read."""


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    with server() as listening:
        yield listening


@pytest.fixture(scope="session")
def shared(port: int) -> Iterator[Proxy]:
    made = Proxy(port)
    yield made
    made.close()


@pytest.fixture
def proxy(shared: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The proxy without faults, and an environment in which clients find it; tries follow one another quickly."""
    shared.begin()
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"):  # stock readers of tests before may have left them
        monkeypatch.delenv(name, raising=False)
    for name, value in credentials(shared.endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.001)
    return shared


@pytest.fixture
def root(proxy: Proxy) -> ObjectPath:
    """A prefix of a new bucket."""
    return object_path(f"s3://{new_bucket(proxy.endpoint)}/some/prefix")


@pytest.fixture(scope="session")
def found() -> dict[object, Dataset]:
    return {}


@pytest.fixture
def lying(proxy: Proxy, found: dict[object, Dataset]) -> Made:
    """Make, once for all tests, a dataset in a bucket; nobody may change it."""

    def make(name: str, kind: str, options: dict[str, int | str] | None = None, count: int = COUNT) -> Dataset:
        options = small_shards(name) if options is None else options
        wanted = (name, kind, tuple(sorted(options.items())), count)
        if wanted not in found:
            folder = object_path(f"s3://{new_bucket(proxy.endpoint)}/shared/{name}-{kind}")
            found[wanted] = store(some_samples(count, kind), kind, folder, name, options)
        return found[wanted]

    return make
