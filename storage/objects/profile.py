"""Where settings of object stores come from: the environment, a site's file, the files that all of AWS's clients read.

What comes first in this list counts. Credentials are never a site's.
"""

import json
import os
from collections.abc import Mapping
from configparser import ConfigParser, Error
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SITE_VARIABLE = "BENCHSUITE_BUCKETS"
"""What a site's and a user's file say of buckets, as JSON: so every process that one of ours starts knows it."""
ANY = "*"
"""Stands in the place of a bucket's name for all that are not named."""
_VARIABLES = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_CREDENTIALS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}
_IN_FILES = {**_CREDENTIALS, "endpoint": "endpoint_url", "region": "region"}
_FILES = {
    "AWS_CONFIG_FILE": ("~/.aws/config", "profile "),
    "AWS_SHARED_CREDENTIALS_FILE": ("~/.aws/credentials", ""),
}
"""Where each file lies unless the variable says so, and what stands before the names of its profiles."""


@dataclass(frozen=True)
class Settings:
    """How a bucket is reached; what is None is left to its client."""

    endpoint: str | None = None
    region: str | None = None
    virtual: bool = False
    """Whether the bucket's name stands in the host's, not in the path."""
    verify_tls: bool = True
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials that stand in files; clients read the environment's themselves."""

    def of_obstore(self, bucket: str) -> Any:
        """Options of `obstore.store.S3Store` beside what it reads from the environment itself."""
        found: dict[str, Any] = dict(self.credentials)
        if self.region:
            found["region"] = self.region
        if self.endpoint:
            found["endpoint"] = _hosting(self.endpoint, bucket) if self.virtual else self.endpoint
        if self.virtual:
            found["virtual_hosted_style_request"] = True
        return found

    def client_options(self) -> Any:
        """How obstore connects."""
        plain = (self.endpoint or "").startswith("http://")
        return {"allow_http": plain, "allow_invalid_certificates": not self.verify_tls}

    def to_environment(self) -> None:
        """Tell what other clients read from the environment of this process."""
        told = {"AWS_ENDPOINT_URL_S3": self.endpoint, "AWS_REGION": self.region, "AWS_DEFAULT_REGION": self.region}
        os.environ.update({name: value for name, value in told.items() if value})


def without_credentials(said: str, environment: Mapping[str, str] = os.environ) -> str:
    """What a client of another's says, whose server may repeat a key that it was shown."""
    known = [environment.get(f"AWS_{name.upper()}") for name in _CREDENTIALS]
    known += [_stored(environment).get(name) for name in _CREDENTIALS]
    for each in filter(None, known):
        said = said.replace(each, "***")
    return said


def _hosting(endpoint: str, bucket: str) -> str:
    """An endpoint with the bucket's name in its host, where it does not stand there already."""
    parts = urlsplit(endpoint)
    host = parts.netloc if parts.netloc.startswith(f"{bucket}.") else f"{bucket}.{parts.netloc}"
    return parts._replace(netloc=host).geturl()


def settings(bucket: str, environment: Mapping[str, str] = os.environ) -> Settings:
    """How a bucket is reached."""
    told = {**_stored(environment), **_of_site(bucket, environment)}
    for name, variables in _VARIABLES.items():
        told[name] = next((environment[each] for each in variables if environment.get(each)), told.get(name))
    given = bool(environment.get("AWS_ACCESS_KEY_ID"))  # those of a file do not belong to it
    return Settings(
        told["endpoint"],
        told["region"],
        told.get("addressing") == "virtual",
        told.get("verify_tls", True),
        {} if given else {name: told[name] for name in _CREDENTIALS if name in told},
    )


def _of_site(bucket: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the site says of a bucket, its own words above those for all."""
    said: dict[str, dict[str, Any]] = json.loads(environment.get(SITE_VARIABLE) or "{}")
    return {**said.get(ANY, {}), **said.get(bucket, {})}


def _stored(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the profile says in the config file and in the file of credentials."""
    profile, found = environment.get("AWS_PROFILE") or "default", dict[str, Any]()
    for variable, (usual, prefix) in _FILES.items():
        path = Path(environment.get(variable) or usual).expanduser()
        parser = ConfigParser(interpolation=None)
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, Error, UnicodeDecodeError):
            continue
        section = profile if profile == "default" else f"{prefix}{profile}"
        if parser.has_section(section):
            found |= {name: parser[section][key] for name, key in _IN_FILES.items() if parser[section].get(key)}
    return found
