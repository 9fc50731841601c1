"""The agent in a pod: what the user's container becomes so that training restarts in place.

The agent is the first process of the training container and starts the user's command. It comes with a
Secret, not in the image, so that any image with Python will do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from trainjob.api import AGENT_PORT, BUNDLE_VOLUME, STATE_VOLUME, TrainJob, TrainJobSpec
from trainjob.core.names import Replica, job_labels, pod_name
from trainjob.core.owners import owner_references
from trainjob.core.settings import Bundle
from trainjob.core.templates import render_template
from trainjob.core.tf_config import host
from trainjob.core.token import job_token
from trainjob.core.topology import leader

Manifest = dict[str, Any]

BUNDLE_FOLDER = "/run/trainjob/bundle"
STATE_FOLDER = "/run/trainjob/state"
PROGRAM = "trainjob.pyz"
TOKEN = "token"  # noqa: S105 - the name of a file

DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' own default of `terminationGracePeriodSeconds`."""

_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def has_agent(spec: TrainJobSpec) -> bool:
    """Tell whether the job's pods carry an agent."""
    return spec.restart_strategy == "InPlace"


def bundle_name(job: TrainJob) -> str:
    """Return the name of the job's Secret; another job of the same name has another one."""
    digest = hashlib.sha256(job.metadata.uid.encode()).hexdigest()
    return f"{job.metadata.name}-agent-{digest[:8]}"


def build_bundle_secret(job: TrainJob, bundle: Bundle) -> Manifest:
    """Return the Secret that brings agent, trainer library and token into the job's pods."""
    token = job_token(bundle.key, job.metadata.uid)
    return render_template(
        "bundle.yaml.j2",
        job=job.metadata,
        bundle_name=bundle_name(job),
        labels=job_labels(job.metadata.name),
        owners=owner_references(job),
        data={PROGRAM: _base64(bundle.pyz), TOKEN: _base64(token.encode())},
    )


def wrapped_command(command: list[str]) -> list[str]:
    """Return the command that starts the agent, which starts this command.

    The user's own interpreter runs it where there is one: that it exists is certain.
    """
    first = command[0]
    interpreter = first if _PYTHON.fullmatch(first.rpartition("/")[2]) else "python3"
    return [interpreter, "-I", "-S", f"{BUNDLE_FOLDER}/{PROGRAM}", "--", *command]


def agent_environment(
    job: TrainJob, replica: Replica, incarnation: int, pod_spec: Manifest
) -> dict[str, str]:
    """Return the variables that tell the agent its place and what has happened so far."""
    grace = pod_spec.get("terminationGracePeriodSeconds")
    place = {
        "seat": replica.name,
        "incarnation": incarnation,
        "pod": pod_name(job.metadata.name, job.metadata.uid, replica, incarnation),
        "address": f"{host(job, replica)}:{AGENT_PORT}",
        "leader": f"{host(job, leader(job.spec))}:{AGENT_PORT}",
        "maxRestarts": job.spec.max_restarts,
        "stallTimeoutSeconds": job.spec.stall_timeout_seconds,
        "warmStandby": job.spec.warm_standby,
        "graceSeconds": DEFAULT_GRACE_SECONDS if grace is None else grace,
        "ledger": ledger_of(job, incarnation),
    }
    return {"TRAINJOB_AGENT": json.dumps(place, separators=(",", ":")), "TRAINJOB_STATE_DIR": STATE_FOLDER}


def ledger_of(job: TrainJob, incarnation: int) -> dict[str, int | None]:
    """Return what the controller knows of the job's restarts; agents know later ones themselves."""
    restarts = job.status.restarts
    return {
        # This very start is the agents' to count.
        "attempt": min(job.status.attempt or 0, incarnation - 1),
        "charged": restarts.charged,
        "uncharged": restarts.uncharged,
        "refunded": restarts.refunded,
        "sinceProgress": restarts.since_progress,
        "furthestStep": restarts.furthest_step,
    }


def agent_volumes(job: TrainJob) -> list[Manifest]:
    """Return the volumes of the bundle and of the agent's few small files."""
    return [
        {"name": BUNDLE_VOLUME, "secret": {"secretName": bundle_name(job), "defaultMode": 0o444}},
        {"name": STATE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]


def agent_mounts() -> list[Manifest]:
    """Return where those volumes are mounted."""
    return [
        {"name": BUNDLE_VOLUME, "mountPath": BUNDLE_FOLDER, "readOnly": True},
        {"name": STATE_VOLUME, "mountPath": STATE_FOLDER},
    ]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
