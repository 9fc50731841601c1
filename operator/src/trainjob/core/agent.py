"""The agent in a pod, with which training restarts in place: its source, command and environment."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainjob.api import (
    AGENT_PORT,
    BUNDLE_VOLUME,
    CODE_VOLUME,
    STATE_VOLUME,
    Code,
    ObjectMeta,
    TrainJob,
    TrainJobSpec,
)
from trainjob.core.agent_reports import restart_counts
from trainjob.core.names import Replica, host, leader, pod_name
from trainjob.core.settings import Bundle
from trainjob_trainer.contract.files import CODE, TOKEN

# The token that a job's agents and the controller share.


def job_token(key: bytes, uid: str) -> str:
    """Return the job's token, 64 hex digits; it can't be derived without the controller's key.

    Args:
        key: the controller's key.
        uid: the job's uid.
    """
    return hmac.new(key, uid.encode(), hashlib.sha256).hexdigest()


# The agent is the first process of the training container and starts the user's command. Its program is in
# a ConfigMap that all jobs of a namespace share, not in the image, so that any image with Python works. The
# job's token is in a Secret of its own (ADR 0018).


Manifest = dict[str, Any]

BUNDLE_FOLDER = "/run/trainjob/bundle"
STATE_FOLDER = "/run/trainjob/state"
PROGRAM = "trainjob.pyz"

CODE_FOLDER = "/run/trainjob/code"
"""Where the agent unpacks the code: the working directory, unless the container names another one."""

_CODE_SPACE = "1Gi"
"""For the code, at most 50 MB, and for what a script writes beside it."""

DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' default of `terminationGracePeriodSeconds`."""

PROGRAM_PREFIX = "trainjob-agent-"

CHECKED_START = """\
import hashlib, sys
mounted, copy, digest = sys.argv[1:4]
with open(mounted, "rb") as file:
    program = file.read()
if hashlib.sha256(program).hexdigest() != digest:
    sys.exit(mounted + " is not the program that this pod was created for: its ConfigMap was replaced")
with open(copy, "wb") as file:
    file.write(program)
sys.argv[:4] = [mounted]
sys.path.insert(0, copy)
from trainjob_trainer.agent.main import main
sys.exit(main())
"""
"""What such a pod runs first. It is part of the pod's spec, which can't change; a ConfigMap can be replaced.

The program runs from a copy: another one may be mounted later, when the kubelet has restarted.
"""

_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def has_agent(spec: TrainJobSpec) -> bool:
    """Return whether the job's pods have an agent."""
    return spec.restart_strategy == "InPlace"


@dataclass(frozen=True)
class AgentSource:
    """Where a pod's agent and its token come from.

    Attributes:
        secret: the name of the Secret with the job's token.
        digest: SHA-256 of the program, in hex; its ConfigMap is named after it. Empty in local
            runs, which have the program as a file.
        token_digest: SHA-256 of the token, in hex; empty in local runs.
    """

    secret: str
    digest: str = ""
    token_digest: str = ""


def agent_source(meta: ObjectMeta, bundle: Bundle) -> AgentSource:
    """Return the current source of agents, for a job without living pods of another version."""
    token = job_token(bundle.key, meta.uid)
    return AgentSource(
        secret_name(meta, bundle.key), bundle.digest, hashlib.sha256(token.encode()).hexdigest()
    )


def secret_name(meta: ObjectMeta, key: bytes) -> str:
    """Return the name of the job's Secret; it can't be guessed without the controller's key.

    Otherwise a user could create a Secret of that name first, and the controller, which can't read it, would
    take it for its own.
    """
    digest = hmac.new(key, f"secret of {meta.uid}".encode(), hashlib.sha256).hexdigest()
    return f"{meta.name}-agent-{digest[:16]}"


def program_name(digest: str) -> str:
    """Return the name of the ConfigMap with this program."""
    return PROGRAM_PREFIX + digest


def read_source(pod_spec: Mapping[str, Any]) -> AgentSource | None:
    """Return where the agent of an existing pod comes from, or None if it has no agent."""
    volume = next((v for v in pod_spec.get("volumes") or () if v.get("name") == BUNDLE_VOLUME), None)
    if volume is None:
        return None
    secret = digest = ""
    for each in (volume.get("projected") or {}).get("sources") or ():
        secret = (each.get("secret") or {}).get("name", "") or secret
        name = (each.get("configMap") or {}).get("name", "")
        # The job's code comes from another ConfigMap.
        digest = digest or (name.removeprefix(PROGRAM_PREFIX) if name.startswith(PROGRAM_PREFIX) else "")
    return AgentSource(secret, digest)


def programs_in_use(
    jobs: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], digest: str
) -> set[tuple[str, str]]:
    """Return namespace and name of each program that a pod or a job may still need.

    A pod that hasn't ended needs its own program. A job that hasn't ended may get pods with the current one.

    Args:
        jobs: TrainJobs, as Kubernetes has them.
        pods: pods, as Kubernetes has them.
        digest: SHA-256 of the current program, in hex.
    """
    used = set()
    for pod in pods:
        source = read_source(pod.get("spec") or {})
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if source is not None and source.digest and not ended:
            used.add((pod["metadata"]["namespace"], program_name(source.digest)))
    for job in jobs:
        ended = (job.get("status") or {}).get("completionTime") is not None
        if not ended and (job.get("spec") or {}).get("restartStrategy") != "Recreate":
            used.add((job["metadata"]["namespace"], program_name(digest)))
    return used


def wrapped_command(command: list[str], digest: str = "") -> list[str]:
    """Return the command that starts the agent, which starts the user's command.

    If the user's command begins with a Python interpreter, that one runs the agent: it certainly exists.

    Args:
        command: the user's command.
        digest: SHA-256 of the only program that may run, in hex; empty if any mounted one may.
    """
    program = f"{BUNDLE_FOLDER}/{PROGRAM}"
    start = ["-c", CHECKED_START, program, f"{STATE_FOLDER}/{PROGRAM}", digest] if digest else [program]
    return [interpreter_of(command), "-I", "-S", *start, "--", *command]


def interpreter_of(command: Sequence[str]) -> str:
    """Return the Python interpreter that the command begins with, or `python3`."""
    first = command[0] if command else ""
    return first if _PYTHON.fullmatch(first.rpartition("/")[2]) else "python3"


_NO_PROGRAM = re.compile(r"""(?:exec: "|executable file `)([^"`]+)["`](?=.*(?:not found|no such file))""")


def python_hint(spec: TrainJobSpec, message: str) -> str:
    """Return what to do if a runtime's message says that the agent's Python isn't in the image."""
    missing = _NO_PROGRAM.search(message)
    if missing is None or not has_agent(spec) or not _PYTHON.fullmatch(missing[1].rpartition("/")[2]):
        return ""
    return (
        f": the agent, which starts the command, needs {missing[1]} (3.9 or later) in the image; for an image"
        " without Python set spec.restartStrategy: Recreate"
    )


def agent_environment(
    job: TrainJob, replica: Replica, incarnation: int, pod_spec: Manifest, token_digest: str = ""
) -> dict[str, str]:
    """Return the agent's environment variables: its replica, its settings and the restarts so far."""
    grace, code = pod_spec.get("terminationGracePeriodSeconds"), job.spec.code
    # The agents count this start and later restarts themselves.
    counts = restart_counts(min(job.status.attempt or 0, incarnation - 1), job.status.restarts)
    place = {
        "replica": replica.name,
        "incarnation": incarnation,
        "pod": pod_name(job.metadata.name, job.metadata.uid, replica, incarnation),
        "address": f"{host(job, replica)}:{AGENT_PORT}",
        "leader": f"{host(job, leader(job.spec))}:{AGENT_PORT}",
        "maxRestarts": job.spec.max_restarts,
        "stallTimeoutSeconds": job.spec.stall_timeout_seconds,
        "memoryGrows": job.spec.worker.max_allowed is not None,
        "warmStandby": job.spec.warm_standby,
        "graceSeconds": DEFAULT_GRACE_SECONDS if grace is None else grace,
        "restarts": counts.to_json(),
        **({"tokenDigest": token_digest} if token_digest else {}),
        **({"code": {"digest": code.digest, "folder": CODE_FOLDER}} if code else {}),
    }
    return {"TRAINJOB_AGENT": json.dumps(place, separators=(",", ":")), "TRAINJOB_STATE_DIR": STATE_FOLDER}


def agent_volumes(source: AgentSource, code: Code | None = None) -> list[Manifest]:
    """Return the volumes with the program, the token and the code, and those for what the agent writes."""
    token = {"secret": {"name": source.secret, "items": [{"key": TOKEN, "path": TOKEN}]}}
    sources: list[Manifest] = [token]
    if source.digest:
        sources.insert(0, _files_of(program_name(source.digest), PROGRAM))
    if code:
        sources.append(_files_of(code.config_map, CODE))
    content: Manifest = {"projected": {"defaultMode": 0o444, "sources": sources}}
    if sources == [token]:  # a local run, which lays it out
        content = {"secret": {"secretName": source.secret, "defaultMode": 0o444}}
    volumes: list[Manifest] = [
        {"name": BUNDLE_VOLUME, **content},
        {"name": STATE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "2Mi"}},
    ]
    if code:
        volumes.append({"name": CODE_VOLUME, "emptyDir": {"sizeLimit": _CODE_SPACE}})
    return volumes


def _files_of(config_map: str, key: str) -> Manifest:
    return {"configMap": {"name": config_map, "items": [{"key": key, "path": key}]}}


def agent_mounts(code: Code | None = None) -> list[Manifest]:
    """Return the mounts of these volumes."""
    mounts: list[Manifest] = [
        {"name": BUNDLE_VOLUME, "mountPath": BUNDLE_FOLDER, "readOnly": True},
        {"name": STATE_VOLUME, "mountPath": STATE_FOLDER},
    ]
    if code:
        mounts.append({"name": CODE_VOLUME, "mountPath": CODE_FOLDER})
    return mounts
