"""Every page of messages has a test that makes it."""

import re

from tests.helpers.snapshots import FOLDER

COMPUTED = {"bert_h5", "bert_records"}
"""Pages named after the function that writes what is refused."""


def test_no_page_is_left_behind() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.parent.rglob("test_*.py")]
    named = {name for text in texts for name in re.findall(r"compare_messages\(\s*\"(\w+)\"", text)}
    assert {path.stem for path in FOLDER.iterdir()} == named | COMPUTED
