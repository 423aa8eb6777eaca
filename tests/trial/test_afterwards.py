"""What ranks count when their steps are done: what cannot be counted is told, and costs nothing else."""

from pathlib import Path
from typing import Any

from benchsuite.contract.rank_samples import RankIdentity, read_result
from benchsuite.trial import afterwards
from tests.helpers.made import made_result


def test_what_a_rank_cannot_count_alone_is_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    me = RankIdentity(0, 1, 0, tmp_path, 0.0)

    def fails() -> dict[str, Any]:
        raise MemoryError("no room")

    found = afterwards._counted(made_result(), me, [fails, lambda: {"copy_bytes_per_s": 2.0}], [])
    assert found.not_counted is not None and "no room" in found.not_counted and found.copy_bytes_per_s == 2.0
    kept = read_result(me.result_path)
    assert kept is not None and kept.status == "ok" and kept.blocks == made_result().blocks
    assert afterwards._counted(made_result(), me, [], []).not_counted is None
