"""The TrainJob that a script stands for: what `trainjob run train.py` and the Python client build."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from trainjob.api import API_VERSION, KIND, TRAINER_CONTAINER
from trainjob.core.names import QUEUE_NAME

# The job's name and its output, from a command line.


_LONGEST_NAME = 42
"""What is left of a pod's name for a job with an evaluator (`api.types.room_for_name`)."""

_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_OUTPUTS = (
    "claim:NAME (a claim in the job's namespace: kubectl get pvc), size:10Gi (a new claim, deleted with the"
    " job) or nfs:SERVER:/FOLDER; a file can also name others (trainjob init)"
)

LOCAL_OUTPUT: Mapping[str, Any] = {"claim": {"claimName": "training"}}
"""The output of a run on this machine that names none: a claim is a folder below the runs there."""


class InvalidOption(ValueError):
    """A value can't be understood; the message says what can be given."""


def name_from(path: str) -> str:
    """Return a valid name for the job of a script: `Train_MNIST v2.py` becomes `train-mnist-v2`."""
    # Letters without their accents; those of other alphabets have no counterpart.
    stem = unicodedata.normalize("NFKD", PurePath(path).stem).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")
    if not name[:1].isalpha():
        name = f"job-{name}".strip("-")
    return name[:_LONGEST_NAME].rstrip("-")


def parse_output(text: str) -> dict[str, Any]:
    """Return `spec.output` for `claim:NAME`, `size:10Gi` or `nfs:SERVER:/FOLDER`.

    Raises:
        InvalidOption: it is none of these.
    """
    kind, _, rest = text.partition(":")
    if kind == "claim" and rest:
        return {"claim": {"claimName": rest}}
    if kind == "size" and _SIZE.fullmatch(rest):
        return {"claim": {"size": rest}}
    # An IPv6 address has colons of its own.
    server, separator, folder = rest.rpartition(":/")
    if kind == "nfs" and server and separator:
        return {"nfs": {"server": server, "path": f"/{folder}"}}
    raise InvalidOption(f"{text!r} is no output: give {_OUTPUTS}")


# The TrainJob of a script.


GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class ScriptJob:
    """A job whose replicas all run one command.

    Attributes:
        name: the job's.
        command: the program, such as `("python", "train.py")`; its paths are relative to the code.
        args: its arguments.
        workers: how many replicas train.
        evaluator: whether one more scores each checkpoint.
        gpus: of each worker.
        image: of the container; None for runs on this machine.
        output: `spec.output`.
        queue: the Kueue queue that admits the pods.
        env: variables of the container.
        cpu: processors that each replica requests, as Kubernetes writes them.
        memory: what each replica requests and may use, as Kubernetes writes it.
        code: `spec.code`, if the code travels in a ConfigMap.
    """

    name: str
    command: Sequence[str]
    args: Sequence[str] = ()
    workers: int = 1
    evaluator: bool = True
    gpus: int = 0
    image: str | None = None
    output: Mapping[str, Any] = field(default_factory=lambda: LOCAL_OUTPUT)
    queue: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: str | None = None
    memory: str | None = None
    code: Mapping[str, str] | None = None


def build_job(job: ScriptJob) -> dict[str, Any]:
    """Return the TrainJob as plain JSON; `trainjob.api.parse` checks it.

    It meets the restricted Pod Security standard, and names a user, since most images run as root.
    """
    metadata: dict[str, Any] = {"name": job.name}
    if job.queue:
        metadata["labels"] = {QUEUE_NAME: job.queue}
    pod = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job)],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "worker": {"replicas": job.workers},
            "evaluator": {"replicas": int(job.evaluator)},
            "output": _copy(job.output),
            **({"code": dict(job.code)} if job.code else {}),
            "template": {"spec": pod},
        },
    }


def _container(job: ScriptJob) -> dict[str, Any]:
    requests = {key: value for key, value in (("cpu", job.cpu), ("memory", job.memory)) if value}
    limits = {"memory": job.memory} if job.memory else {}
    if job.gpus:
        limits[GPU] = str(job.gpus)
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    container: dict[str, Any] = {
        "name": TRAINER_CONTAINER,
        "image": job.image,
        "command": list(job.command),
        "args": list(job.args),
        "env": [{"name": name, "value": value} for name, value in job.env.items()],
        "resources": resources,
    }
    return {
        **{key: value for key, value in container.items() if value},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _copy(value: Any) -> Any:
    """Return a copy as plain dictionaries, since the default is shared."""
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value
