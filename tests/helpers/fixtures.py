"""Fixtures that the suite's tests and the planner's share."""

from collections.abc import Callable, Iterator

import pandas as pd
import pytest

from tests.helpers.published_tables import published_file


@pytest.fixture(scope="session", autouse=True)
def no_site_or_user_file() -> Iterator[None]:
    """What this machine's site or user prefers changes no test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BENCHSUITE_SITE", "BENCHSUITE_USER_CONFIG"):
            patch.setenv(name, "")
        yield


@pytest.fixture
def published() -> dict[str, pd.DataFrame]:
    """Published tables by name, where PUBLISHED_TABLES names a JSON file of them."""
    path = published_file()
    from bench.predict import tables

    return tables(path)


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: exit code, stdout, stderr."""
    from benchsuite.cli.app import run_command

    def run(*arguments: object) -> tuple[int, str, str]:
        code = run_command([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run
