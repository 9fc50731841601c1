"""The translation of a pod manifest into one process of this machine."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trainjob.api import AGENT_PORT, PORT, TRAINER_CONTAINER
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
from trainjob_trainer.contract.environment import OF_A_JOB, call_directly

# Addresses and paths of mounted volumes, rewritten for this machine.


LOOPBACK = "127.0.0.1"

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# A path starts where no name, variable or other path precedes it, and ends where its last part ends.
_PATH_START = r"(?:(?<![\w./\-~)}*])|(?<=file://))"
_PATH_END = r"(?![\w.\-])"


def find_hosts(text: str, *, subdomain: str, namespace: str) -> tuple[str, ...]:
    """Return the hostnames whose addresses occur in `text`, each once, in order."""
    found = (match.group("host") for match in _address(subdomain, namespace).finditer(text))
    return tuple(dict.fromkeys(found))


def rewrite_addresses(text: str, *, subdomain: str, namespace: str, ports: Mapping[str, ReplicaPorts]) -> str:
    """Turn `<host>.<subdomain>.<namespace>.svc:2222` into the loopback address and that host's own port.

    On a cluster every pod has its own address. Here all pods share one and differ only by port, so the ports
    of TensorFlow and the agent are replaced. Other ports stay: the program that listens on one would not know
    of the change. Hosts missing from `ports` stay too.
    """

    def _local(match: re.Match[str]) -> str:
        host, port = match.group("host"), match.group("port")
        if host not in ports:
            return match.group()
        if port is None:
            return LOOPBACK
        local = {str(PORT): ports[host].tensorflow, str(AGENT_PORT): ports[host].agent}
        return f"{LOOPBACK}:{local.get(port, port)}"

    return _address(subdomain, namespace).sub(_local, text)


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


# The environment variables of a container on this machine.


_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_KEPT_BY_CLUSTER = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}


@dataclass(frozen=True)
class Variables:
    """The resolved `env` of a container.

    Attributes:
        written: values from the manifest, with references expanded; they hold the cluster's addresses and
            paths.
        given: values from this machine, which need no rewriting.
        notes: what is missing here, one line each.
    """

    written: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def all(self) -> dict[str, str]:
        """Return both kinds together, to expand references."""
        return {**self.written, **self.given}


def resolve_variables(pod: Mapping[str, Any], container: Mapping[str, Any], machine: Machine) -> Variables:
    """Return the variables of `container`; later entries can use and replace earlier ones.

    Raises:
        CannotRunHere: only a cluster has a value, and the caller's environment has no variable of that name.
    """
    written: dict[str, str] = {}
    given: dict[str, str] = {}
    refused: list[str] = []
    for entry in container.get("env") or ():
        name = entry["name"]
        written.pop(name, None)
        source = entry.get("valueFrom")
        if not source:
            value = expand(str(entry.get("value") or ""), {**written, **given})
            given.pop(name, None)
            written[name] = value
            continue
        given.pop(name, None)
        try:
            found = _referenced(name, source, pod, machine)
        except CannotRunHere as cannot:
            refused += cannot.lines
        else:
            given.update({} if found is None else {name: found})
    if refused:
        raise CannotRunHere(refused)
    return Variables(written, given, tuple(_notes_on_env_from(container)))


def _referenced(name: str, source: Mapping[str, Any], pod: Mapping[str, Any], machine: Machine) -> str | None:
    kind = next(iter(source))
    reference = source[kind] or {}
    if kind == "fieldRef":
        known = _pod_field(str(reference.get("fieldPath")), pod, machine)
        if known is not None:
            return known
    if name in machine.environ:
        return machine.environ[name]
    if kind in _KEPT_BY_CLUSTER:
        if reference.get("optional"):
            return None
        what = f"{_KEPT_BY_CLUSTER[kind]} {reference.get('name')} (key {reference.get('key')})"
    else:
        what = f"{kind} {reference.get('fieldPath') or reference.get('resource') or ''}".strip()
    raise CannotRunHere([f"env {name} comes from {what}, which is not here: export {name}=... first"])


def _pod_field(path: str, pod: Mapping[str, Any], machine: Machine) -> str | None:
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    plain = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": machine.node,
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": LOOPBACK,
        "status.podIPs": LOOPBACK,
        "status.hostIP": LOOPBACK,
    }
    return plain.get(path)


def _notes_on_env_from(container: Mapping[str, Any]) -> Iterator[str]:
    for source in container.get("envFrom") or ():
        for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if key in source:
                name = (source[key] or {}).get("name")
                yield f"envFrom: {kind} {name} is not here: export its variables before the start if needed"


# A year: clocks and timers don't accept every number that a file can hold.
_LONGEST_GRACE_SECONDS = 366 * 24 * 3600


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
    container = trainer_of(pod)
    variables, volumes = _resolve(pod, container, machine, private)
    mounts = mounted_folders(container, volumes, variables.all())
    termination_log = private / "termination-log"
    folders = {path: volume.folder for path, volume in mounts.items()}
    folders[container.get("terminationMessagePath") or TERMINATION_LOG] = termination_log

    def _local(text: str) -> str:
        addressed = rewrite_addresses(text, subdomain=_subdomain(pod), namespace=_namespace(pod), ports=ports)
        return rewrite_paths(rewrite_paths(addressed, folders), machine.instead)

    written = {name: _local(value) for name, value in variables.written.items()}
    known = variables.all()
    command = [*(container.get("command") or ()), *(container.get("args") or ())]
    cwd, cwd_notes = _working_folder(container, machine, _local)
    output = _local_folder(written.get("TRAINJOB_OUTPUT_DIR"))
    state = written.get("TRAINJOB_STATE_DIR") if "TRAINJOB_AGENT" in written else None
    progress = (Path(state) if state else private) / "progress.json"
    env = _environment({**written, **variables.given}, machine, _gpu_variables(pod, machine))
    return Launch(
        argv=tuple(_local(expand(str(part), known)) for part in command),
        env=env if state else _with_help(env, machine, progress),
        cwd=cwd,
        folders=tuple(dict.fromkeys(volume.folder for volume in mounts.values() if volume.ours)),
        output=output,
        root=_root(written, output),
        grace_seconds=_grace_seconds(pod["spec"].get("terminationGracePeriodSeconds")),
        progress=progress,
        termination_log=termination_log,
        has_agent=bool(state),
        notes=(
            *_notes(pod, container, machine),
            *_volume_notes(container, volumes),
            *variables.notes,
            *cwd_notes,
        ),
    )


def hostnames_in(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every hostname whose address occurs in a pod, its own first."""
    container = trainer_of(pod)
    texts = [*(container.get("command") or ()), *(container.get("args") or ())]
    texts += [entry.get("value") or "" for entry in container.get("env") or ()]
    found = [
        host
        for text in texts
        for host in find_hosts(str(text), subdomain=_subdomain(pod), namespace=_namespace(pod))
    ]
    return tuple(dict.fromkeys([hostname_of(pod), *found]))


def hostname_of(pod: Mapping[str, Any]) -> str:
    """Return the pod's hostname, in Kubernetes by default its name."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def trainer_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container that trains.

    Raises:
        CannotRunHere: it is missing, has no command, or is not the only one.
    """
    spec = pod["spec"]
    containers = spec.get("containers") or ()
    refused = [
        f"{kind} {other.get('name')!r} can't run here: only the container {TRAINER_CONTAINER!r} is started"
        for kind, others in (("init container", spec.get("initContainers")), ("container", containers))
        for other in others or ()
        if kind != "container" or other.get("name") != TRAINER_CONTAINER
    ]
    trainer: Mapping[str, Any] | None = next(
        (c for c in containers if c.get("name") == TRAINER_CONTAINER), None
    )
    if trainer is None:
        refused.append(f"there is no container {TRAINER_CONTAINER!r} to run")
    elif not trainer.get("command"):
        refused.append(
            f"container {TRAINER_CONTAINER!r} has no command: here the image's own is not known, so write one"
        )
    if trainer is None or refused:
        raise CannotRunHere(refused)
    return trainer


def _resolve(
    pod: Mapping[str, Any], container: Mapping[str, Any], machine: Machine, private: Path
) -> tuple[Variables, dict[str, VolumeFolder]]:
    refused: list[str] = []
    variables, volumes = Variables(), dict[str, VolumeFolder]()
    try:
        variables = resolve_variables(pod, container, machine)
    except CannotRunHere as cannot:
        refused += cannot.lines
    try:
        volumes = resolve_volumes(pod["spec"], machine, private)
    except CannotRunHere as cannot:
        refused += cannot.lines
    if refused:
        raise CannotRunHere(refused)
    return variables, volumes


def _environment(own: Mapping[str, str], machine: Machine, gpus: Mapping[str, str]) -> dict[str, str]:
    env = {name: value for name, value in machine.environ.items() if not name.startswith(OF_A_JOB)}
    env.setdefault("PYTHONUNBUFFERED", "1")
    env |= gpus
    env |= own
    env["PATH"] = _joined(machine.programs, env.get("PATH"))
    return env


def _with_help(env: Mapping[str, str], machine: Machine, progress: Path) -> dict[str, str]:
    """Add the variables that an agent would set for its training process."""
    return {
        **env,
        "TRAINJOB_PROGRESS_FILE": str(progress),
        **call_directly([LOOPBACK], env),
        "PYTHONPATH": _joined(machine.bootstrap, env.get("PYTHONPATH")),
    }


def _joined(first: Path, others: str | None) -> str:
    return f"{first}:{others}" if others else str(first)


def _gpu_variables(pod: Mapping[str, Any], machine: Machine) -> dict[str, str]:
    if not machine.gpus:
        return {}
    # As on a cluster, a pod that requests no GPU sees none; -1 hides them all.
    return {"CUDA_VISIBLE_DEVICES": ",".join(machine.gpus_of.get(hostname_of(pod), ())) or "-1"}


def _working_folder(
    container: Mapping[str, Any], machine: Machine, local: Callable[[str], str]
) -> tuple[Path, tuple[str, ...]]:
    asked = container.get("workingDir")
    if not asked:
        return machine.job_folder, ()
    folder = machine.job_folder / local(asked)
    if machine.is_folder(folder):
        return folder, ()
    return machine.job_folder, (f"workingDir {asked} is not here: commands start in {machine.job_folder}",)


def _grace_seconds(asked: int | None) -> float:
    return float(min(max(DEFAULT_GRACE_SECONDS if asked is None else asked, 0), _LONGEST_GRACE_SECONDS))


def _local_folder(path: str | None) -> Path | None:
    return Path(path) if path and PurePosixPath(path).is_absolute() else None


def _root(env: Mapping[str, str], output: Path | None) -> Path | None:
    checkpoints = _local_folder(env.get("TRAINJOB_CHECKPOINT_DIR"))
    return checkpoints.parent if checkpoints else output


def _notes(pod: Mapping[str, Any], container: Mapping[str, Any], machine: Machine) -> Iterator[str]:
    if container.get("image"):
        yield f"image {container['image']} is not used: replicas run in the Python environment of trainjob"
    wanted = count_gpus(pod)
    if wanted and not machine.gpus:
        yield "GPUs are asked for and none is here: training on the CPU"
    elif wanted and not machine.gpus_of.get(hostname_of(pod)):
        yield f"more GPUs are asked for than the {len(machine.gpus)} here: training on the CPU"
    elif machine.gpus and not wanted and not any(machine.gpus_of.values()):
        yield f"GPUs here are not used ({len(machine.gpus)}): the job asks for none (limits: nvidia.com/gpu)"


def _volume_notes(container: Mapping[str, Any], volumes: Mapping[str, VolumeFolder]) -> Iterator[str]:
    for name in dict.fromkeys(mount["name"] for mount in container.get("volumeMounts") or ()):
        note = volumes[name].note
        if note:
            yield note


def _subdomain(pod: Mapping[str, Any]) -> str:
    return str(pod["spec"].get("subdomain") or "")


def _namespace(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("namespace") or "default")
