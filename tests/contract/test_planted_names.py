"""What others put at the names of claims, plans, invitations and scratch, in a store or folder that they may write."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.contract.scratch import OWNER, PREFIX, remove_abandoned
from benchsuite.launch.rendezvous import Invitation, read_invitation, write_invitation
from benchsuite.launch.work_folder import work_folder
from benchsuite.runner import status
from benchsuite.runner.claims import Claims, HeldElsewhere, Holder, Holding, read_claim, running_claims
from benchsuite.storage.dataset.partial import this_process
from tests.planted import CONTENT, KINDS, NEEDS_ROOT, NOBODY, open_umask, plant

__all__ = ["open_umask"]
ELSEWHERE = Holder("n0417", 4711, "991", "another boot", 1)
PLAN: Any = SimpleNamespace(sweep=SimpleNamespace(name="mine"), points=[])


def claims(store: Path, lease_s: float = 0.2) -> Claims:
    return Claims(store / "claims" / "s", lease_s, ELSEWHERE)


class TestClaims:
    @pytest.mark.parametrize("kind", [*KINDS, "folder"])
    def test_what_is_no_claim_is_waited_out_as_one_that_is_being_written(self, tmp_path: Path, kind: str) -> None:
        mine = claims(tmp_path)
        mine.folder.mkdir(parents=True)
        planted = plant(mine.folder / "t.0", kind, tmp_path / "mine")
        assert read_claim(mine.folder / "t.0") is None and running_claims(mine.folder) == {}
        assert mine.find_unseen({"t": ""}) == set()
        found = mine.take("t")
        while isinstance(found, HeldElsewhere):
            assert found.claim is None
            found = mine.take("t")
        assert isinstance(found, Holding) and found.taken_over
        found.finish()
        planted.is_untouched()

    def test_a_beat_is_written_through_no_link(self, tmp_path: Path) -> None:
        """Everyone may read the token, and put a link at any name that is made from it."""
        mine = claims(tmp_path)
        holding = mine.take("t")
        assert isinstance(holding, Holding)
        claim = read_claim(mine.folder / "t.0")
        assert claim is not None
        planted = plant(mine.folder / f".t.0-{claim.token}", "link", tmp_path / "mine")
        holding.finish()
        planted.is_untouched()
        done = read_claim(mine.folder / "t.0")
        assert done is not None and done.state == "done"
        assert not (mine.folder / "t.0").is_symlink()

    @NEEDS_ROOT
    def test_another_members_claim_counts(self, tmp_path: Path) -> None:
        """A group shares a store."""
        mine = claims(tmp_path, 60)
        assert isinstance(mine.take("t"), Holding)
        os.chown(mine.folder / "t.0", NOBODY, NOBODY)
        found = claims(tmp_path, 60).take("t")
        assert isinstance(found, HeldElsewhere) and found.claim is not None and found.claim.holder == ELSEWHERE

    def test_names_that_are_no_claims_are_passed_over(self, tmp_path: Path) -> None:
        mine = claims(tmp_path)
        mine.folder.mkdir(parents=True)
        for name in ("t.²", "t.٣", "t.", ".5"):
            (mine.folder / name).touch()
        assert running_claims(mine.folder) == {} and isinstance(mine.take("t"), Holding)

    def test_a_claim_through_a_link_is_none(self, tmp_path: Path) -> None:
        mine = claims(tmp_path)
        mine.folder.mkdir(parents=True)
        holding = claims(tmp_path / "other").take("t")
        assert isinstance(holding, Holding)
        (mine.folder / "t.0").symlink_to(tmp_path / "other" / "claims" / "s" / "t.0")
        assert running_claims(mine.folder) == {}


class TestPlans:
    @pytest.mark.parametrize("kind", [*KINDS, "folder"])
    def test_what_is_no_plan_is_passed_over(self, tmp_path: Path, kind: str) -> None:
        status.keep_plan(tmp_path, "s", PLAN)
        folder = tmp_path / status.PLANS / "s"
        planted = plant(folder / "other.0123456789abcdef.json", kind, tmp_path / "labels")
        assert status.kept_plans(tmp_path, "s") == {"mine": {}}
        planted.is_untouched()

    @pytest.mark.parametrize(
        "text", ["[" * 60_000, '{"a":' * 60_000, "[1]", "[[[], 1]]", '{"a": 1}', '["ab"]', "9" * 5000]
    )
    def test_a_damaged_plan_is_passed_over(self, tmp_path: Path, text: str) -> None:
        status.keep_plan(tmp_path, "s", PLAN)
        (tmp_path / status.PLANS / "s" / "other.0123456789abcdef.json").write_text(text)
        assert status.kept_plans(tmp_path, "s") == {"mine": {}}

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_plan_is_written_through_no_link(self, tmp_path: Path, kind: str) -> None:
        status.keep_plan(tmp_path, "s", PLAN)
        (path,) = (tmp_path / status.PLANS / "s").iterdir()
        path.unlink()
        planted = plant(path, kind, tmp_path / "mine")
        status.keep_plan(tmp_path, "s", PLAN)
        planted.is_untouched()
        assert json.loads(path.read_bytes()) == {} and not path.is_symlink()

    @NEEDS_ROOT
    def test_another_members_plan_counts(self, tmp_path: Path) -> None:
        status.keep_plan(tmp_path, "s", PLAN)
        (path,) = (tmp_path / status.PLANS / "s").iterdir()
        os.chown(path, NOBODY, NOBODY)
        assert status.kept_plans(tmp_path, "s") == {"mine": {}}


class TestInvitations:
    INVITATION = Invitation("t" * 32, ("10.0.0.1",), 4711)

    @pytest.mark.parametrize("kind", [*KINDS, pytest.param("another's", marks=NEEDS_ROOT)])
    def test_only_ones_own_is_followed(self, tmp_path: Path, kind: str) -> None:
        """Whoever wrote it could have the agent run what he wants."""
        path = tmp_path / "meetings" / "7.json"
        path.parent.mkdir()
        planted = plant(path, kind, tmp_path / "mine")
        if kind in ("link", "hard link"):
            planted.mine.write_text(self.INVITATION.text())
        with pytest.raises(UserError) as error:
            read_invitation(path)
        assert str(error.value).startswith(f"{path}: ") and str(error.value).endswith(": not used")
        if kind in ("link", "hard link"):
            planted.mine.write_bytes(CONTENT)
        write_invitation(path, self.INVITATION)
        planted.is_untouched()
        assert read_invitation(path) == self.INVITATION
        assert (path.stat().st_mode & 0o777, [each.name for each in path.parent.iterdir()]) == (0o600, ["7.json"])

    def test_one_that_cannot_be_left_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "7.json").mkdir()
        with pytest.raises(UserError, match=r"7\.json: Is a directory"):
            write_invitation(tmp_path / "7.json", self.INVITATION)


class TestScratch:
    @pytest.mark.parametrize("kind", KINDS)
    def test_an_owner_that_is_no_file_is_not_believed(self, tmp_path: Path, kind: str) -> None:
        folder = tmp_path / f"{PREFIX}0"
        folder.mkdir()
        planted = plant(folder / OWNER, kind, tmp_path / "mine")
        host, pid, _ = this_process().split("-")
        if kind in ("link", "hard link"):
            planted.mine.write_text(f"{host}-{pid}-1")
        remove_abandoned(tmp_path)
        assert folder.exists()


def test_nobody_else_may_write_a_trials_work_folder(tmp_path: Path, open_umask: None) -> None:
    with work_folder(tmp_path, "t") as folder:
        assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("kind", KINDS)
def test_staging_says_so_in_one_line(
    dataset_root: Path, tmp_path: Path, run_cli: Callable[..., tuple[int, str, str]], kind: str
) -> None:
    assert run_cli("data", "stage", dataset_root / "webdataset", "--to", tmp_path)[0] == 0
    (copy,) = tmp_path.iterdir()
    shutil.rmtree(copy)
    lock = copy.with_name(f".{copy.name}.lock")
    planted = plant(lock, kind, tmp_path / "mine")
    code, out, err = run_cli("data", "stage", dataset_root / "webdataset", "--to", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {lock}: ") and err.count("\n") == 1
    planted.is_untouched()
    assert not copy.exists()
