"""A sweep as an Indexed Job of Kubernetes, whose pods meet by torchrun: a manifest, which is not submitted.

A pod is a node of the sweep. Its store, data and sweep file lie in a volume that all pods see.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from benchsuite.batch.job_script import Job
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.exit_codes import REQUEUE
from benchsuite.host.site import JobSpec

PORT = 29400
NEEDED = {"image": "of the containers", "claim": "a volume claim and where it is mounted, such as scratch:/scratch"}
OPTIONS = (*NEEDED, "namespace")
MAX_NAME = 52
"""The longest name of a Job: its pods' names, which end with their number, are host names of 63 letters at most."""


def manifest(job: Job, spec: JobSpec) -> str:
    """The Service by which the pods find each other, and the Job, as YAML.

    Raises:
        UserError: something that Kubernetes needs is missing, or asked for and not known here.
    """
    asked = _asked(spec.options)
    claim, _, mount = asked["claim"].partition(":")
    if not mount.startswith("/"):
        raise UserError(f"--directive claim={asked['claim']}: give NAME:/PATH, such as scratch:/scratch")
    outside = [path for path in (job.store, job.folder) if not path.is_relative_to(mount)]
    if outside:
        raise UserError(f"{outside[0]}: not below {mount}, so no pod sees it; run this from there, with --store there")
    name = _name(job.name)
    about = {"name": name, **({"namespace": asked["namespace"]} if "namespace" in asked else {})}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {"clusterIP": "None", "selector": {"batch.kubernetes.io/job-name": name}, "ports": [{"port": PORT}]},
    }
    inner = _job(job, spec, name, asked["image"])
    pod = inner["template"]["spec"]
    pod["volumes"].append({"name": "shared", "persistentVolumeClaim": {"claimName": claim}})
    pod["containers"][0]["volumeMounts"].append({"name": "shared", "mountPath": mount})
    found = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": inner}
    return yaml.safe_dump_all([service, found], sort_keys=False)


def _asked(options: Mapping[str, str | None]) -> dict[str, str]:
    """What is asked for by --directive.

    Raises:
        UserError: one is missing, or not known.
    """
    for name in options:
        if name not in OPTIONS:
            raise refuse("--directive", name, OPTIONS)
    for name, what in NEEDED.items():
        if not options.get(name):
            raise UserError(f"kubernetes needs --directive {name}=...: {what}")
    return {name: value for name, value in options.items() if value}


def _name(name: str) -> str:
    """A name as host names are."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower())[:MAX_NAME].strip("-")


def _job(job: Job, spec: JobSpec, name: str, image: str) -> dict[str, Any]:
    """The Job. A sweep that stopped early (75) is started again; any other code ends the job."""
    gpus = {"nvidia.com/gpu": spec.gpus_per_node} if spec.gpus_per_node else {}
    cores = {"cpu": spec.cpus_per_rank * job.ranks_per_node} if spec.cpus_per_rank else {}
    container = {
        "name": "benchsuite",
        "image": image,
        "command": _command(job, name),
        "workingDir": str(job.folder),
        "env": [{"name": key, "value": value} for key, value in _environment(job).items()],
        "resources": {"limits": gpus | cores},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    codes = {"containerName": "benchsuite", "operator": "NotIn", "values": [REQUEUE]}
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": spec.max_requeues * job.nodes,
        **({"activeDeadlineSeconds": spec.time_s} if spec.time_s else {}),
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]},
        "template": {"spec": pod},
    }


def _environment(job: Job) -> dict[str, str]:
    return {**job.environment, "BENCHSUITE_STORE": str(job.store)}


def _command(job: Job, name: str) -> list[str]:
    """The sweep; over several pods as torchrun starts it, which meet at the first."""
    if job.nodes == 1:
        return job.words
    meeting = f"{name}-0.{name}:{PORT}"
    torchrun = ["torchrun", f"--nnodes={job.nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    return [*torchrun, f"--rdzv-endpoint={meeting}", f"--rdzv-id={name}", "--no-python", *job.words]
