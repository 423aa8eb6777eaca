"""asv's pages without the internet: what they load from there is copied beside them (`pages/`, licences kept).

The copies have the names that asv asks for; those of flot are not minified.
"""

import re
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from benchsuite.contract.errors import UserError

FOLDER = "vendor"
"""Where copies lie in the pages."""
LOADED = re.compile(r'<(script src|link rel="stylesheet" href)="https?://[^"]*/([^"/]+)"[^>]*>')
VERSION = re.compile(r"-\d[\d.]*(?=\.min\.)")


def bundle(html: Path) -> None:
    """Have the pages that `asv publish` wrote load nothing from the internet.

    Raises:
        UserError: this version of asv loads something that is not among the copies.
    """
    index = html / "index.html"
    with as_file(files("benchsuite.nightly") / "pages") as copies:
        index.write_text(
            LOADED.sub(lambda found: _local(found, copies), index.read_text(encoding="utf-8")), encoding="utf-8"
        )
        shutil.copytree(copies, html / FOLDER, dirs_exist_ok=True)


def _local(found: re.Match[str], copies: Path) -> str:
    kind, name = found[1], VERSION.sub("", found[2])
    if not (copies / name).is_file():
        raise UserError(f"asv's pages load {found[2]} from the internet, which is not among the copies: use asv 0.6.6")
    ending = ' onerror="js_load_failure()"' if kind.startswith("script") else ""
    return f'<{kind}="{FOLDER}/{name}"{ending}>'
