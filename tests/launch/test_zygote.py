"""What a rank's environment says of it."""

from dataclasses import replace
from pathlib import Path

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.launch.agents import agents_environment
from benchsuite.launch.starters import OF_OTHER_STEPS
from benchsuite.launch.zygote import environment_of

ME = RankIdentity(5, 8, 1, Path("/scratch/attempt"), 0.0, master_port=4000, master_addr="10.0.0.1", interface="ib0")


def test_nccl_takes_all_networks_that_nodes_reach_each_other_by_or_chooses() -> None:
    found = environment_of(replace(ME, interfaces=("eth0", "ib0")), {})
    assert found["NCCL_SOCKET_IFNAME"] == "=eth0,ib0" and found["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "NCCL_SOCKET_IFNAME" not in environment_of(ME, {}), "where they are not known"
    found = environment_of(ME, {})
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("5", "1", "8")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "4000")
    assert found["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/scratch/attempt/nccl-collectives-"


def test_what_the_user_has_set_stays() -> None:
    given = {"NCCL_SOCKET_IFNAME": "eth", "TORCH_NCCL_TRACE_BUFFER_SIZE": "10", "RANK": "0"}
    found = environment_of(replace(ME, interfaces=("ib0",)), given)
    assert "NCCL_SOCKET_IFNAME" not in found and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in found
    assert found["RANK"] == "5", "of a job's own tasks"


def test_what_a_job_asked_for_its_tasks_narrows_no_agent(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for name in ("SLURM_GPU_BIND", "SLURM_CPU_BIND", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "single:1")
    found = agents_environment(None, OF_OTHER_STEPS)
    assert "SLURM_GPU_BIND" not in found and "SLURM_CPU_BIND" not in found and found["SLURM_JOB_ID"] == "single:1"
