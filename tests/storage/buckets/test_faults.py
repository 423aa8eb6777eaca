"""What networks and stores do wrong is tried again within bounds, or told in one line: never are wrong bytes read."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError
from benchsuite.storage.dataset.sample import content_digest
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.objects import client
from benchsuite.storage.objects.client import MAX_TRIES, ObjectMissing, bucket_of
from benchsuite.storage.objects.path import ObjectPath
from tests.helpers.object_store import SECRET, Fault, Proxy
from tests.storage.conftest import Made
from tests.storage.samples import digests, small_shards, some_samples, store

READ = (("files", "image"), ("webdataset", "image"), ("tfrecord", "volume"), ("hdf5", "mlm"), ("tokens", "tokens"))
PASSING = ("slow_down", "cut", "too_long", "slow", "garbage", "silent")
"""Faults after which another try helps, or that are none."""
LASTING = {
    "slow_down": r"HTTP 503 SlowDown \(tried 6 times\)",
    "cut": r"the answer ended before it was whole \(tried 6 times\)",
    "too_long": r"the answer ended before it was whole \(tried 6 times\)",
    "garbage": r"the store gave no answer \(tried 6 times\)",
    "silent": r"the store gave no answer \(tried 6 times\)",
    "expired": "not allowed: HTTP 403 ExpiredToken$",
    "vanished": "no such object$",
    "lost_redirect": "sends the request elsewhere without saying where",
}
DATA = {"files": ".jpg", "webdataset": ".tar", "tfrecord": ".tfrecord", "hdf5": ".h5", "tokens": ".bin"}
"""What names of files that hold samples end with."""


def crossed(faults: Iterable[str]) -> list[Any]:
    """Each fault with a reader of whole objects or of ranges, by turns, each reader with one; the rest is `full`."""
    cases = []
    for number, fault in enumerate(faults):
        for place, (name, kind) in enumerate(READ):
            needed = name == ("files", "hdf5")[number % 2] or place == number
            cases.append(pytest.param(name, kind, fault, marks=() if needed else pytest.mark.full))
    return cases


def read(dataset: Dataset) -> dict[str, str]:
    return {sample.key: content_digest(sample) for sample in in_order(dataset)}


@pytest.mark.parametrize(("name", "kind", "fault"), crossed(PASSING))
def test_what_passes_is_tried_again(lying: Made, proxy: Proxy, name: str, kind: str, fault: str) -> None:
    dataset = lying(name, kind)
    asked = proxy.count("GET", DATA[name])
    proxy.faults.append(Fault(fault, within=DATA[name], times=1 if fault == "slow" else 2, seconds=0.1))
    assert read(dataset) == digests(some_samples(8, kind))
    assert proxy.faults[0].times == 0, "it struck"
    if fault != "slow":
        proxy.faults.clear()
        asked, before = proxy.count("GET", DATA[name]), asked
        read(dataset)
        assert asked - before == proxy.count("GET", DATA[name]) - asked + 2


@pytest.mark.parametrize(("name", "kind", "fault"), crossed(LASTING))
def test_what_lasts_is_told_in_one_line(lying: Made, proxy: Proxy, name: str, kind: str, fault: str) -> None:
    dataset = lying(name, kind)
    proxy.faults.append(Fault(fault, within=DATA[name]))
    with pytest.raises(DatasetError) as caught:
        read(dataset)
    said = str(caught.value)
    assert re.search(LASTING[fault], said) and said.startswith(f"{dataset.folder}") and "\n" not in said, said
    for told in (said, repr(caught.value.__cause__), repr(caught.value.__context__ and "")):
        assert SECRET not in told and "AKID" not in told


@pytest.mark.parametrize(("name", "kind"), READ)
def test_a_short_body_that_says_it_is_whole_is_noticed(lying: Made, proxy: Proxy, name: str, kind: str) -> None:
    dataset = lying(name, kind)
    proxy.faults.append(Fault("too_short", within=DATA[name]))
    with pytest.raises(DatasetError):
        read(dataset)
    with pytest.raises(DatasetError):
        verify_dataset(dataset.folder)


def test_a_redirect_is_followed_on_the_same_host(lying: Made, proxy: Proxy) -> None:
    dataset = lying("files", "image")
    proxy.elsewhere = proxy.endpoint
    proxy.faults.append(Fault("redirect", within=".jpg", times=3))
    assert read(dataset) == digests(some_samples(8, "image"))
    assert proxy.faults[0].times == 0


def test_a_redirect_to_another_host_is_followed_without_credentials(lying: Made, proxy: Proxy) -> None:
    dataset = lying("files", "image")
    proxy.faults.append(Fault("redirect", within=".jpg"))
    with pytest.raises(DatasetError, match=r"not allowed: HTTP 403$"):
        read(dataset)


def test_tries_are_bounded(root: ObjectPath, proxy: Proxy) -> None:
    bucket_of(root).put((root / "x").key, b"content")
    before = proxy.count("GET", "/x")
    proxy.faults.append(Fault("slow_down"))
    with pytest.raises(DatasetError):
        bucket_of(root).get((root / "x").key)
    assert proxy.count("GET", "/x") - before == MAX_TRIES


@pytest.mark.full
def test_a_silent_server_is_not_waited_for_forever(
    root: ObjectPath, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SILENT_S", 1)
    monkeypatch.setattr(client, "MAX_TRIES", 2)
    bucket = client.Bucket(root.bucket)
    bucket.put("x", b"content")
    proxy.faults.append(Fault("slow", seconds=2))
    with pytest.raises(DatasetError, match="the store gave no answer"):
        bucket.get("x")


@pytest.mark.parametrize(("name", "kind"), READ[1:])
def test_an_object_that_changes_under_its_reader_is_noticed(
    root: ObjectPath, proxy: Proxy, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges of one object are never mixed with those of another that has taken its name."""
    dataset = store(some_samples(8, kind), kind, root / name, name, small_shards(name))
    path = next(root / name / info.path for info in dataset.manifest.files if info.path.endswith(DATA[name]))
    content = bytes(bucket_of(path).get(path.key).data)
    head = client.Bucket.head

    def then_changed(self: client.Bucket, key: str) -> client.ObjectInfo:
        found = head(self, key)
        if key == path.key:
            self.put(key, os.urandom(len(content)))
        return found

    monkeypatch.setattr(client.Bucket, "head", then_changed)
    with pytest.raises(DatasetError, match="changed meanwhile: HTTP 412"):
        read(dataset)


def test_samples_before_one_that_is_gone_are_given_out(root: ObjectPath) -> None:
    """Whatever a thread asks for together."""
    dataset = store(some_samples(12, "image"), "image", root / "files", "files", {})
    gone = root / "files" / dataset.index["file"][7].decode()
    bucket_of(gone).delete([gone.key])
    seen: list[int] = []
    with pytest.raises(ObjectMissing, match=f"{re.escape(str(gone))}: no such object"):
        for sample in in_order(dataset):
            seen.append(sample.index)
    assert seen == [*range(7)]


def test_what_is_not_there(root: ObjectPath) -> None:
    with pytest.raises(ObjectMissing, match="no such object"):
        bucket_of(root).get("nothing")
    with pytest.raises(client.BucketMissing, match="no such bucket"):
        client.Bucket("no-bucket-of-that-name").get("x")
    with pytest.raises(DatasetError, match="ends 3 bytes before byte 10"):
        bucket_of(root).put("seven", b"1234567")
        bucket_of(root).get_range("seven", 2, 10)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"AWS_ENDPOINT_URL": "key:word@example"}, r"the endpoint \(AWS_ENDPOINT_URL\) is no http:// or https:// URL$"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "half of the credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, r"the store gave no answer \(tried 6 times\)$"),
    ],
)
def test_settings_that_lead_nowhere(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], said: str
) -> None:
    for name, value in changes.items():
        monkeypatch.delenv(name)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(DatasetError, match=said) as caught:
        client.Bucket("another").get("x")
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_role_that_is_refused_is_no_answer_of_the_store(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Without credentials the library asks for the machine's role, and what is asked may be a proxy."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with refusing(status) as endpoint:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", endpoint)
        said = r"x: no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE$"
        with pytest.raises(DatasetError, match=said) as caught:
            client.Bucket("another").get("x")
    assert not isinstance(caught.value, ObjectMissing)


@contextmanager
def refusing(status: int) -> Iterator[str]:
    """A server that answers all with this status."""

    class Refuses(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"resolve_deny: denied destination")

        do_GET = do_PUT

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
