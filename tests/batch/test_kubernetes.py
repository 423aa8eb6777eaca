"""A sweep as an Indexed Job: valid by Kubernetes' own schema, and what it would run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

Run = Callable[..., tuple[int, str, str]]
VERSION = "1.36"
SWEEP = {
    "name": "scaling",
    "base": {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": 4,
        "parallelism": "ddp",
        "data": {"source": "synthetic"},
    },
    "grid": {"world_size": [4, 8], "parallelism": ["ddp"]},
}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted(run_cli: Run, shared: Path, *words: str) -> tuple[int, str, str]:
    asked = ["--directive", "image=site/benchsuite:0.2", "--directive", f"claim=scratch:{shared}"]
    return run_cli("submit", "kubernetes", "mine.yaml", "--store", shared / "store", *asked, "--dry-run", *words)


def documents(run_cli: Run, shared: Path, *words: str) -> list[dict[str, Any]]:
    code, out, err = submitted(run_cli, shared, *words)
    assert code == 0, err
    found = [*yaml.safe_load_all(Path(out.removeprefix("written: ").strip()).read_text())]
    for document in found:
        kubernetes_validate.validate(document, VERSION, strict=True)
    return found


def test_pods_are_nodes_and_meet_by_torchrun(run_cli: Run, shared: Path) -> None:
    service, job = documents(run_cli, shared, "--gres", "gpu:4", "--cpus-per-rank", "8", "--time", "02:00:00")
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["clusterIP"] == "None" and service["metadata"]["name"] == name
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["activeDeadlineSeconds"] == 7200
    (container,) = spec["template"]["spec"]["containers"]
    assert container["image"] == "site/benchsuite:0.2"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4, "cpu": 32}
    command = container["command"]
    assert command[:2] == ["torchrun", "--nnodes=2"] and f"--rdzv-endpoint={name}-0.{name}:29400" in command
    words = command[command.index("--no-python") + 1 :]
    assert words[:3] == ["benchsuite", "sweep", str(shared / "mine.yaml")] and "--session" in words
    assert spec["template"]["spec"]["subdomain"] == name


def test_one_pod_needs_no_meeting(run_cli: Run, shared: Path) -> None:
    _, job = documents(run_cli, shared, "--gres", "gpu:8")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["benchsuite", "sweep"] and job["spec"]["completions"] == 1


def test_a_sweep_that_stopped_early_goes_on_and_a_failure_ends_the_job(run_cli: Run, shared: Path) -> None:
    _, job = documents(run_cli, shared)
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [75]
    assert rule["onExitCodes"]["operator"] == "NotIn" and job["spec"]["backoffLimit"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--directive", "claim=scratch"], "claim=scratch: give NAME:/PATH"),
        (["--directive", "claim=scratch:/elsewhere"], "not below /elsewhere, so no pod sees it"),
        (["--directive", "imag=x"], "imag"),
    ],
)
def test_mistakes(run_cli: Run, shared: Path, words: list[str], said: str) -> None:
    code, out, err = submitted(run_cli, shared, *words)
    assert (code, out) == (2, "") and said in err and len(err.strip().splitlines()) == 1


def test_it_is_not_submitted(run_cli: Run, shared: Path) -> None:
    code, _, err = run_cli(
        "submit", "kubernetes", "mine.yaml", "--directive", "image=x", "--directive", f"claim=a:{shared}"
    )
    assert code == 2 and "kubectl apply -f" in err
    code, _, err = run_cli("submit", "kubernetes", "mine.yaml", "--dry-run")
    assert code == 2 and "--directive image=..." in err
