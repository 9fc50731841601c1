"""The translation of a pod manifest into one process of this machine."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainjob.api import AGENT_PORT, OUTPUT_VOLUME, PORT, TRAINER_CONTAINER
from trainjob.cluster.local.machine import (
    CannotRunHere,
    Machine,
    ReplicaPorts,
    VolumeFolder,
    expand,
    mounted_folders,
    resolve_volumes,
)
from trainjob.core.agent import DEFAULT_GRACE_SECONDS
from trainjob.core.manifests import TERMINATION_LOG, count_gpus
from trainjob.core.memory import bytes_of
from trainjob.core.names import LABEL_INDEX, LABEL_ROLE, training_world
from trainjob.core.pods import memory_limit
from trainjob_trainer.contract.environment import OF_A_JOB, call_directly
from trainjob_trainer.contract.replicas import EVALUATOR

LOOPBACK = "127.0.0.1"

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# A path starts where no name, variable or other path precedes it, and ends where its last part ends.
_PATH_START = r"(?:(?<![\w./\-~)}*])|(?<=file://))"
_PATH_END = r"(?![\w.\-])"

_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_KEPT_BY_CLUSTER = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}

# A year: clocks and timers don't accept every number that a file can hold.
_LONGEST_GRACE_SECONDS = 366 * 24 * 3600


def find_hosts(text: str, *, subdomain: str, namespace: str) -> tuple[str, ...]:
    """Return the hostnames whose addresses occur in `text`, each once, in order."""
    hosts = (match.group("host") for match in _address(subdomain, namespace).finditer(text))
    return tuple(dict.fromkeys(hosts))


def rewrite_addresses(text: str, *, subdomain: str, namespace: str, ports: Mapping[str, ReplicaPorts]) -> str:
    """Turn `<host>.<subdomain>.<namespace>.svc:2222` into the loopback address and that host's own port.

    On a cluster every pod has its own address. Here all pods share one and differ only by port, so the ports
    of TensorFlow and the agent are replaced. Other ports stay: the program that listens on one would not know
    of the change. Hosts missing from `ports` stay too.
    """

    def local(match: re.Match[str]) -> str:
        host, port = match.group("host"), match.group("port")
        if host not in ports:
            return match.group()
        if port is None:
            return LOOPBACK
        local = {str(PORT): ports[host].tensorflow, str(AGENT_PORT): ports[host].agent}
        return f"{LOOPBACK}:{local.get(port, port)}"

    return _address(subdomain, namespace).sub(local, text)


def rewrite_paths(text: str, folders: Mapping[str, Path]) -> str:
    """Replace each path under a mounted volume by its counterpart here.

    A mount path counts only at path boundaries: `/output` is found in `--dir=/output/a` and not in
    `/output-2`, `gs://bucket/output` or `$HOME/output`. The longest mount path wins, as in a mount table.

    Args:
        text: an argument or the value of a variable.
        folders: the folder on this machine for each mount path.
    """
    mounts = {path.rstrip("/"): str(folder) for path, folder in folders.items() if path.strip("/")}
    if not mounts:
        return text
    longest_first = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    pattern = re.compile(f"{_PATH_START}({longest_first}){_PATH_END}")
    return pattern.sub(lambda match: mounts[match.group(1)], text)


def _address(subdomain: str, namespace: str) -> re.Pattern[str]:
    domain = re.escape(f".{subdomain}.{namespace}.svc")
    return re.compile(
        rf"(?<![\w.\-])(?P<host>{_LABEL}){domain}(?:\.cluster\.local)?(?![\w\-]|\.\w)(?::(?P<port>\d+))?"
    )


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One process to start.

    Attributes:
        argv: the program and its arguments.
        env: its whole environment.
        cwd: the folder it starts in.
        folders: folders to create before it starts, unless they exist.
        output: the folder this replica writes into, or None if it is not on this machine.
        root: the job's output folder, which all its replicas share, or None likewise.
        grace_seconds: from the request to end until it is killed.
        memory: the bytes that its container may use, or None.
        progress: the file with the progress report of the training process.
        termination_log: the file with the container's termination message.
        has_agent: whether the program is the agent, which starts the user's program.
        notes: the differences from a cluster, one line each.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    folders: tuple[Path, ...]
    output: Path | None
    root: Path | None
    grace_seconds: float
    memory: int | None
    progress: Path
    termination_log: Path
    has_agent: bool
    notes: tuple[str, ...]


def build_launch(
    pod: Mapping[str, Any], machine: Machine, ports: Mapping[str, ReplicaPorts], private: Path
) -> Launch:
    """Translate a pod into a process, with no facts about the machine but those in `machine`.

    Args:
        pod: the manifest for a cluster.
        machine: this machine.
        ports: the ports of each hostname.
        private: the pod's own folder.

    Raises:
        CannotRunHere: the pod needs something that this machine does not have; every such thing is named.
    """
    container = _trainer_of(pod)
    refused: list[str] = []
    written, given = _resolve_variables(pod, container, machine, refused)
    volumes = resolve_volumes(pod["spec"], machine, private, refused)
    if refused:
        raise CannotRunHere(refused)
    uri = written.get("TRAINJOB_OUTPUT_URI")
    if uri and OUTPUT_VOLUME in machine.volumes:
        del written["TRAINJOB_OUTPUT_URI"]
    elif uri and _keeps_files(pod, written):
        note = f"the output is in {uri}; all but its checkpoints is also below {machine.folder / 'output'}"
        volumes[OUTPUT_VOLUME] = VolumeFolder(machine.folder / "output", note)
    variables = {**written, **given}
    mounts = mounted_folders(container, volumes, variables)
    termination_log = private / "termination-log"
    folders = {path: volume.folder for path, volume in mounts.items()}
    folders[container.get("terminationMessagePath") or TERMINATION_LOG] = termination_log

    def local(text: str) -> str:
        addressed = rewrite_addresses(text, **_domain_of(pod), ports=ports)
        return rewrite_paths(rewrite_paths(addressed, folders), machine.instead)

    written = {name: local(value) for name, value in written.items()}
    notes = [*_notes(pod, container, machine, volumes)]
    cwd, working_folder = machine.job_folder, container.get("workingDir")
    if working_folder and machine.is_folder(machine.job_folder / local(working_folder)):
        cwd = machine.job_folder / local(working_folder)
    elif working_folder:
        notes.append(f"workingDir {working_folder} doesn't exist on this machine: commands start in {cwd}")
    command = [*(container.get("command") or ()), *(container.get("args") or ())]
    output = _local_folder(written.get("TRAINJOB_OUTPUT_DIR"))
    checkpoints = _local_folder(written.get("TRAINJOB_CHECKPOINT_DIR"))
    state = written.get("TRAINJOB_STATE_DIR") if "TRAINJOB_AGENT" in written else None
    progress = (Path(state) if state else private) / "progress.json"
    grace = pod["spec"].get("terminationGracePeriodSeconds")
    grace = min(max(DEFAULT_GRACE_SECONDS if grace is None else grace, 0), _LONGEST_GRACE_SECONDS)
    return Launch(
        argv=tuple(local(expand(str(part), variables)) for part in command),
        env=_environment({**written, **given}, pod, machine, None if state else progress),
        cwd=cwd,
        folders=tuple(dict.fromkeys(volume.folder for volume in mounts.values() if volume.ours)),
        output=output,
        root=checkpoints.parent if checkpoints else output,
        grace_seconds=float(grace),
        memory=bytes_of(memory_limit(container)),
        progress=progress,
        termination_log=termination_log,
        has_agent=bool(state),
        notes=tuple(notes),
    )


def _keeps_files(pod: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    """Return whether a replica sends files to the bucket: the writer of checkpoints, and the evaluator."""
    labels = pod["metadata"]["labels"]
    role, index = labels[LABEL_ROLE], labels[LABEL_INDEX]
    writer = "chief" if "chief" in (training_world(env.get("TF_CONFIG", "")) or ()) else "worker"
    return role == EVALUATOR or (role, index) == (writer, "0")


def hostnames_in(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every hostname whose address occurs in a pod, its own first."""
    container = _trainer_of(pod)
    texts = [*(container.get("command") or ()), *(container.get("args") or ())]
    texts += [entry.get("value") or "" for entry in container.get("env") or ()]
    hosts = [host for text in texts for host in find_hosts(str(text), **_domain_of(pod))]
    return tuple(dict.fromkeys([hostname_of(pod), *hosts]))


def hostname_of(pod: Mapping[str, Any]) -> str:
    """Return the pod's hostname, in Kubernetes by default its name."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _domain_of(pod: Mapping[str, Any]) -> dict[str, str]:
    return {
        "subdomain": str(pod["spec"].get("subdomain") or ""),
        "namespace": str(pod["metadata"].get("namespace") or "default"),
    }


def _trainer_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container that trains; CannotRunHere: it has no command, or isn't the only one."""
    spec = pod["spec"]
    trainer: Mapping[str, Any] | None = None
    others = [f"init container {other.get('name')!r}" for other in spec.get("initContainers") or ()]
    for container in spec.get("containers") or ():
        if container.get("name") == TRAINER_CONTAINER:
            trainer = container
        else:
            others.append(f"container {container.get('name')!r}")
    refused = [f"{one} can't run here: only the container {TRAINER_CONTAINER!r} is started" for one in others]
    if trainer is None:
        refused.append(f"there is no container {TRAINER_CONTAINER!r} to run")
    elif not trainer.get("command"):
        refused.append(
            f"container {TRAINER_CONTAINER!r} has no command, and the image's own isn't known on this "
            "machine: write one"
        )
    if trainer is None or refused:
        raise CannotRunHere(refused)
    return trainer


def _resolve_variables(
    pod: Mapping[str, Any], container: Mapping[str, Any], machine: Machine, refused: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the container's variables; later entries can use and replace earlier ones.

    The first ones are written in the manifest, with references expanded: they hold the cluster's addresses
    and paths. The others have values of this machine, which need no rewriting. `refused` gets a line for each
    value that only a cluster has, if the caller's environment has no variable of that name.
    """
    written: dict[str, str] = {}
    given: dict[str, str] = {}
    for entry in container.get("env") or ():
        name, source = entry["name"], entry.get("valueFrom")
        written.pop(name, None)
        earlier = {**written, **given}
        given.pop(name, None)
        if not source:
            written[name] = expand(str(entry.get("value") or ""), earlier)
            continue
        kind = next(iter(source))
        reference = source[kind] or {}
        value = _pod_field(str(reference.get("fieldPath")), pod, machine) if kind == "fieldRef" else None
        value = machine.environ.get(name) if value is None else value
        if value is not None:
            given[name] = value
        elif kind not in _KEPT_BY_CLUSTER or not reference.get("optional"):
            what = f"{kind} {reference.get('fieldPath') or reference.get('resource') or ''}".strip()
            if kind in _KEPT_BY_CLUSTER:
                what = f"{_KEPT_BY_CLUSTER[kind]} {reference.get('name')} (key {reference.get('key')})"
            refused.append(
                f"env {name} comes from {what}, which this machine doesn't have: export {name}=... first"
            )
    return written, given


def _pod_field(path: str, pod: Mapping[str, Any], machine: Machine) -> str | None:
    metadata, spec = pod["metadata"], pod["spec"]
    if keyed := _KEYED.fullmatch(path):
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": machine.node,
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP"), LOOPBACK),
    }
    return fields.get(path)


def _environment(
    own: Mapping[str, str], pod: Mapping[str, Any], machine: Machine, progress: Path | None
) -> dict[str, str]:
    """Return the whole environment; with `progress` also what an agent would set for its training process."""
    env = {name: value for name, value in machine.environ.items() if not name.startswith(OF_A_JOB)}
    env.setdefault("PYTHONUNBUFFERED", "1")
    if machine.gpus:
        # As on a cluster, a pod that requests no GPU sees none; -1 hides them all.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(machine.gpus_of.get(hostname_of(pod), ())) or "-1"
    env |= own
    env["PATH"] = _joined(machine.programs, env.get("PATH"))
    if progress is not None:
        env |= {"TRAINJOB_PROGRESS_FILE": str(progress), **call_directly([LOOPBACK], env)}
        env["PYTHONPATH"] = _joined(machine.bootstrap, env.get("PYTHONPATH"))
    return env


def _joined(first: Path, others: str | None) -> str:
    return f"{first}:{others}" if others else str(first)


def _local_folder(path: str | None) -> Path | None:
    return Path(path) if path and PurePosixPath(path).is_absolute() else None


def _notes(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    machine: Machine,
    volumes: Mapping[str, VolumeFolder],
) -> Iterator[str]:
    """Return the differences from a cluster."""
    if container.get("image"):
        yield f"image {container['image']} is not used: replicas run in the Python environment of trainjob"
    gpus, here = count_gpus(pod), len(machine.gpus)
    if gpus and not here:
        yield "the job requests GPUs and this machine has none: training on the CPU"
    elif gpus and not machine.gpus_of.get(hostname_of(pod)):
        yield f"the job requests more GPUs than the {here} of this machine: training on the CPU"
    elif here and not gpus and not any(machine.gpus_of.values()):
        yield f"GPUs here are not used ({here}): the job requests none (limits: nvidia.com/gpu)"
    for name in dict.fromkeys(mount["name"] for mount in container.get("volumeMounts") or ()):
        if note := volumes[name].note:
            yield note
    for source in container.get("envFrom") or ():
        for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if key in source:
                name = (source[key] or {}).get("name")
                yield (
                    f"envFrom: {kind} {name} doesn't exist on this machine: export its variables before the "
                    "start if needed"
                )
