"""The TrainJobs of a command line: of a script, with changes of a file's job, and of a smoke test."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainjob.api import API_VERSION, KIND, TRAINER_CONTAINER, InvalidTrainJob, read_value
from trainjob.api.errors import mapping_at, objects_at, shown, trainer_of
from trainjob.api.types import TrainJobSpec, longest_name
from trainjob.core.names import QUEUE_NAME
from trainjob_trainer.contract.environment import SMOKE

# The job's name and its output, from a command line.


_LONGEST_NAME = 42
"""What is left of a pod's name for a job with an evaluator (`api.types.room_for_name`)."""

_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_OUTPUTS = (
    "claim:NAME (a claim in the job's namespace: kubectl get pvc), size:10Gi (a new claim, deleted with the "
    "job), nfs:SERVER:/FOLDER or a bucket as s3://BUCKET/FOLDER; a job's file can also name other volumes "
    "(see trainjob init)"
)

LOCAL_OUTPUT: Mapping[str, Any] = {"claim": {"claimName": "training"}}
"""The output of a run on this machine that names none: a claim is a folder below the runs there."""


class InvalidOption(ValueError):
    """A value can't be understood; the message says what can be given."""


def name_from(path: str) -> str:
    """Return a valid name for the job of a script: `Train_MNIST v2.py` becomes `train-mnist-v2`."""
    # Letters without their accents; those of other alphabets have no counterpart.
    stem = unicodedata.normalize("NFKD", Path(path).stem).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")
    if not name[:1].isalpha():
        name = f"job-{name}".strip("-")
    return name[:_LONGEST_NAME].rstrip("-")


def parse_output(text: str) -> dict[str, Any]:
    """Return `spec.output` for `claim:NAME`, `size:10Gi`, `nfs:SERVER:/FOLDER` or `s3://BUCKET/FOLDER`.

    Raises:
        InvalidOption: it is none of these.
    """
    kind, _, rest = text.partition(":")
    if kind == "claim" and rest:
        return {"claim": {"claimName": rest}}
    if rest.startswith("//"):
        return {"uri": text}
    if kind == "size" and _SIZE.fullmatch(rest):
        return {"claim": {"size": rest}}
    # An IPv6 address has colons of its own.
    server, separator, folder = rest.rpartition(":/")
    if kind == "nfs" and server and separator:
        return {"nfs": {"server": server, "path": f"/{folder}"}}
    raise InvalidOption(f"{text!r} is no output: give {_OUTPUTS}")


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """Return the variables of several `NAME=VALUE`.

    Raises:
        InvalidOption: one is something else.
    """
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise InvalidOption(f"{text!r} is not NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


GPU = "nvidia.com/gpu"


def _option(text: str, default: Any = None, **settings: Any) -> Any:
    """Return a field that is an option of the command line, with its help."""
    return field(default=default, metadata={"help": text, **settings})


@dataclass(frozen=True, kw_only=True)
class ScriptJob:
    """A job whose replicas all run one command; the options of `trainjob run` and `submit` are its fields.

    Attributes:
        command: the program, such as `("python", "train.py")`; its paths are relative to the code.
        args: its arguments.
        evaluator: None for one.
        output: `spec.output`; None for `LOCAL_OUTPUT`.
        cpu, memory: as Kubernetes writes them; of the memory no more may be used.
    """

    command: Sequence[str] = ()
    args: Sequence[str] = ()
    workers: int = _option("For a script: the number of workers (1).", 1, minimum=1)
    evaluator: bool | None = _option(
        "For a script: whether one more replica scores each checkpoint (default: on; off for Horovod)."
    )
    gpus: int = _option("For a script: GPUs of each worker (0).", 0, minimum=0)
    cpu: str | None = _option("For a script: CPUs of each replica, such as 2.", metavar="QUANTITY")
    memory: str | None = _option("For a script: memory of each replica, such as 4Gi.", metavar="QUANTITY")
    image: str | None = _option("For a script: the image for a cluster, any image with TensorFlow.")
    output: Mapping[str, Any] | None = _option(
        "For a script: where results go: claim:NAME, size:10Gi, nfs:SERVER:/FOLDER or s3://BUCKET/FOLDER.",
        metavar="OUTPUT",
        read=parse_output,
    )
    queue: str | None = _option("For a script: the Kueue queue that admits its pods.")
    env: Mapping[str, str] | None = _option(
        "For a script: a variable of its environment.",
        metavar="NAME=VALUE",
        multiple=True,
        read=parse_variables,
    )
    code: Sequence[Path] = _option(
        "A file or folder to send to the cluster with the job, besides the script and the Python files "
        "beside it; folders are on PYTHONPATH.",
        (),
        metavar="PATH",
        multiple=True,
    )
    name: str = _option("For a script: the job's name. For a FILE with several TrainJobs: which one.", "")


_IMPORTS_HOROVOD = re.compile(r"^[ \t]*(import|from)[ \t]+horovod\b", re.MULTILINE)


def wants_evaluator(asked: bool | None, source: str) -> bool:
    """Return whether a job has an evaluator.

    Horovod's ring has no place for one, so a script with this text that imports it has none unless one is
    asked for.
    """
    return not _IMPORTS_HOROVOD.search(source) if asked is None else asked


def restricted_pod() -> dict[str, Any]:
    """Return a pod's security context by the restricted Pod Security standard, with a user."""
    return {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_container() -> dict[str, Any]:
    """Return the same of a container."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def build_job(job: ScriptJob) -> dict[str, Any]:
    """Return the TrainJob as plain JSON; `trainjob.api.parse` checks it.

    It meets the restricted Pod Security standard, and names a user, since most images run as root.
    """
    metadata: dict[str, Any] = {"name": job.name}
    if job.queue:
        metadata["labels"] = {QUEUE_NAME: job.queue}
    requests = {key: value for key, value in (("cpu", job.cpu), ("memory", job.memory)) if value}
    limits = {"memory": job.memory} if job.memory else {}
    if job.gpus:
        limits[GPU] = str(job.gpus)
    container: dict[str, Any] = {
        "name": TRAINER_CONTAINER,
        "image": job.image,
        "command": list(job.command),
        "args": list(job.args),
        "env": [{"name": name, "value": value} for name, value in (job.env or {}).items()],
        "resources": {key: value for key, value in (("requests", requests), ("limits", limits)) if value},
    }
    container = {key: value for key, value in container.items() if value}
    container["securityContext"] = restricted_container()
    pod = {"securityContext": {**restricted_pod(), "fsGroup": 1000}, "containers": [container]}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "worker": {"replicas": job.workers},
            "evaluator": {"replicas": 0 if job.evaluator is False else 1},
            "output": deepcopy(dict(job.output or LOCAL_OUTPUT)),
            "template": {"spec": pod},
        },
    }


# Changes of a TrainJob: `--set FIELD=VALUE`, and arguments of the program.


_STEP = re.compile(r"\.?([A-Za-z0-9_-]+)|\[([^\[\]]+)\]")
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+|\[[^\[\]]+\])*")
_ROLES = ("worker", "chief", "ps", "evaluator")


def set_field(job: dict[str, Any], assignment: str) -> None:
    """Set one field of a TrainJob, or remove it if the value is empty or null.

    A field is written as in messages: `spec.worker.replicas=4`, `metadata.labels[example.com/team]=a`,
    `spec.template.spec.containers[0].image=acme/digits:2` or, by its name, `containers[trainer].image=...`.
    The value is YAML.

    Raises:
        InvalidOption: the field or the value can't be read, or the field leads through something else than
            objects and lists.
    """
    field, separator, text = assignment.partition("=")
    if not separator or not _PATH.fullmatch(field):
        raise InvalidOption(f"{assignment!r} is not FIELD=VALUE, such as spec.worker.replicas=4")
    try:
        value = read_value(text, source=field)
    except InvalidTrainJob as invalid:
        raise InvalidOption("; ".join(error.message for error in invalid.errors)) from invalid
    holder: Any = job
    steps = [name or key for name, key in _STEP.findall(field)]
    for number, step in enumerate(steps, 1):
        if not isinstance(holder, dict | list):
            raise InvalidOption(f"{field}: {shown(holder)} has no field {step!r}")
        key: Any = _index(holder, step, field) if isinstance(holder, list) else step
        if number < len(steps):
            if isinstance(holder, dict) and holder.get(key) is None:
                holder[key] = {}
            holder = holder[key]
        elif value is not None:
            holder[key] = value
        elif isinstance(holder, list) or key in holder:
            del holder[key]


def replace_arguments(job: dict[str, Any], arguments: Sequence[str]) -> None:
    """Give the training container of each pod template these arguments."""
    for container in _training_containers(mapping_at(job, "spec")):
        container["args"] = list(arguments)


def _training_containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for holder in (spec, *(spec.get(role) for role in _ROLES)):
        if container := trainer_of(mapping_at(holder, "template", "spec")):
            yield container


def _index(items: list[Any], step: str, field: str) -> int:
    names = [str(item.get("name")) for item in items if isinstance(item, dict)]
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(items):
        return int(step)
    count = f"{len(items)} item{'' if len(items) == 1 else 's'}"
    more = f": {', '.join(names)}" if names else ""
    raise InvalidOption(f"{field}: there is no [{step}]; the list has {count}{more}")


# A smoke test: a job of its own that takes one step of everything.


_KEPT_SECONDS = 3600


def build_smoke_test(job: Mapping[str, Any], spec: TrainJobSpec, digits: str = "") -> dict[str, Any]:
    """Return the job of a smoke test, which has a name of its own, and so an output folder.

    It isn't restarted, and the cluster deletes it an hour after its end. The digits distinguish it in a
    cluster, where an earlier one may still be.
    """
    suffix = f"-smoke-{digits}" if digits else "-smoke"
    test = deepcopy(dict(job))
    room = longest_name(spec) - len(suffix)
    name = str(mapping_at(test, "metadata").get("name"))
    test["metadata"]["name"] = f"{name[:room].rstrip('-.')}{suffix}"
    test["spec"] |= {"maxRestarts": 0, "ttlSecondsAfterFinished": _KEPT_SECONDS}
    test["spec"]["output"].pop("resume", None)
    for container in _training_containers(test["spec"]):
        variables = [each for _, each in objects_at(container, "env") if each.get("name") != SMOKE]
        container["env"] = [*variables, {"name": SMOKE, "value": "true"}]
    return test


def is_smoke_test(spec: Mapping[str, Any]) -> bool:
    """Return whether a job's spec is that of a smoke test."""
    return any(
        variable == {"name": SMOKE, "value": "true"}
        for container in _training_containers(spec)
        for _, variable in objects_at(container, "env")
    )
