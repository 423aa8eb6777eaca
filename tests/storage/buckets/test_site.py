"""What a site's file says of buckets: how they are reached, by all verbs, and never by which credentials."""

import datetime
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from benchsuite.contract.errors import UserError
from benchsuite.host.site import buckets_variable
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.client import Bucket
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import SITE_VARIABLE, settings, without_credentials
from tests.helpers.commands import ran, written
from tests.helpers.object_store import SECRET, Proxy
from tests.helpers.snapshots import compare_messages
from tests.storage.conftest import Made


def said(folder: Path, buckets: dict[str, Any]) -> dict[str, str]:
    """The variable that a site's file becomes."""
    file = written(folder, "site.yaml", {"buckets": buckets})
    return buckets_variable({"BENCHSUITE_SITE": str(file), "BENCHSUITE_USER_CONFIG": ""})


def test_a_command_finds_a_bucket_by_the_sites_file(
    lying: Made, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lying("files", "image").folder
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    assert isinstance(folder, ObjectPath)
    options = {"endpoint": proxy.endpoint, "region": "us-east-1", "addressing": "path"}
    site = written(
        tmp_path, "site.yaml", {"buckets": {folder.bucket: options, "*": {"endpoint": "http://127.0.0.1:9"}}}
    )
    ended = ran(["data", "verify", str(folder)], {"BENCHSUITE_SITE": str(site)})
    assert ended.returncode == 0, ended.stderr


def test_the_environment_counts_more_and_the_own_name_more_than_all(tmp_path: Path) -> None:
    told = said(tmp_path, {"*": {"endpoint": "https://all", "region": "r"}, "mine": {"addressing": "virtual"}})
    mine = settings("mine", told)
    assert (mine.endpoint, mine.region, mine.verify_tls) == ("https://all", "r", True)
    assert mine.of_obstore("mine")["endpoint"] == "https://mine.all" and mine.virtual
    assert not settings("other", told).virtual and settings("other", told).endpoint == "https://all"
    assert settings("mine", told | {"AWS_ENDPOINT_URL": "https://given"}).endpoint == "https://given"


def test_a_users_file_adds_to_the_sites(tmp_path: Path) -> None:
    site = written(tmp_path, "site.yaml", {"buckets": {"lab": {"endpoint": "https://a", "region": "r"}}})
    user = written(tmp_path, "user.yaml", {"buckets": {"lab": {"endpoint": "https://b"}}})
    told = buckets_variable({"BENCHSUITE_SITE": str(site), "BENCHSUITE_USER_CONFIG": str(user)})
    assert json.loads(told[SITE_VARIABLE]) == {"lab": {"endpoint": "https://b", "region": "r"}}


def test_what_does_not_belong_there_is_refused(tmp_path: Path) -> None:
    cases = [
        {"secret_access_key": SECRET},
        {"aws_session_token": SECRET},
        {"endpoint": f"https://AKID:{SECRET}@store"},
        {"endpoint": "store.example.org"},
        {"addressing": "paths"},
        {"adressing": "path"},
    ]

    def message(options: dict[str, Any]) -> str:
        with pytest.raises(UserError) as caught:
            said(tmp_path, {"lab": options})
        (line,) = caught.value.args
        assert "site.yaml" in line and SECRET not in line
        return line

    compare_messages("bucket_options", cases, message, {str(tmp_path): "FOLDER", SECRET: "SECRET"})


def test_keys_that_a_server_repeats_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "AKIDX", "AWS_CONFIG_FILE": "/dev/null"}
    assert without_credentials("InvalidAccessKeyId: AKIDX", environment) == "InvalidAccessKeyId: ***"


def own_certificate(folder: Path) -> ssl.SSLContext:
    """A server's certificate that nobody vouches for."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    form = serialization.PrivateFormat.PKCS8
    (folder / "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    (folder / "cert").write_bytes(built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


def test_certificates_are_verified_unless_the_site_says_no(
    root: ObjectPath, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = Proxy(port, own_certificate(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", secure.endpoint)
    with pytest.raises(DatasetError, match="the store gave no answer"):
        Bucket(root.bucket).get("x")
    monkeypatch.setenv(SITE_VARIABLE, json.dumps({root.bucket: {"verify_tls": False}}))
    Bucket(root.bucket).put("x", b"y")
    assert bytes(Bucket(root.bucket).get("x").data) == b"y"
    secure.close()
