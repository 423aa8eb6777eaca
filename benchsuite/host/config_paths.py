"""Where the site's and the user's file lie. Imports next to nothing: every verb asks."""

from collections.abc import Mapping
from pathlib import Path

SITE_FILE = "/etc/benchsuite.yaml"


def config_paths(environment: Mapping[str, str]) -> list[Path]:
    """The site's file and the user's, those that exist, in this order; a variable that is empty means no file.

    Raises:
        UserError: a variable names a file that is not there.
    """
    home = environment.get("XDG_CONFIG_HOME") or "~/.config"
    found = []
    for variable, default in (("BENCHSUITE_SITE", SITE_FILE), ("BENCHSUITE_USER_CONFIG", f"{home}/benchsuite.yaml")):
        given = environment.get(variable)
        path = Path(default if given is None else given).expanduser()
        if given and not path.is_file():
            from benchsuite.contract.errors import UserError

            raise UserError(f"{variable}={given}: no such file")
        if given != "" and path.is_file():
            found.append(path)
    return found
