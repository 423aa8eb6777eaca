"""The default store of the site's and the user's file, for every verb that has one."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from benchsuite.contract.exit_codes import STORE_VARIABLE


def use_default_store(context: typer.Context) -> None:
    """Let `--store`, where neither it nor BENCHSUITE_STORE is given, be what a site's or user's file says."""
    if os.environ.get(STORE_VARIABLE):
        return
    from benchsuite.host.config_paths import config_paths

    if config_paths(os.environ):
        context.default_map = _stores(getattr(context.command, "commands", {}))


def _stores(commands: Mapping[str, Any]) -> dict[str, Any]:
    """Verb -> defaults of its options, nested as verbs are; looked up when a verb needs it."""
    found: dict[str, Any] = {}
    for name, command in commands.items():
        found[name] = _stores(getattr(command, "commands", {}))
        for option in command.params:
            if option.envvar == STORE_VARIABLE:
                found[name]["store"] = partial(_store, option.default)
    return found


def _store(otherwise: Path | None) -> Path | None:
    from benchsuite.host.site import default_store

    return default_store() or otherwise
