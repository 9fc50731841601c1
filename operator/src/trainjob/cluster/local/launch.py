"""A pod manifest as the one process that it means on this machine."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainjob.api import TRAINER_CONTAINER
from trainjob.cluster.local.environment import Variables, resolve_variables
from trainjob.cluster.local.expansion import expand
from trainjob.cluster.local.place import Place
from trainjob.cluster.local.ports import ReplicaPorts
from trainjob.cluster.local.refusal import CannotRunHere
from trainjob.cluster.local.rewriting import find_hosts, rewrite_addresses, rewrite_paths
from trainjob.cluster.local.volumes import VolumeFolder, mounted_folders, resolve_volumes
from trainjob.core.agent import DEFAULT_GRACE_SECONDS
from trainjob.core.render import TERMINATION_LOG
from trainjob.core.resources import count_gpus

# A year: clocks and timers can't be given every number that a file can hold.
_LONGEST_GRACE_SECONDS = 366 * 24 * 3600

_OF_AN_OUTER_JOB = ("TF_CONFIG", "TRAINJOB_")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One process to start.

    Attributes:
        argv: the program and its arguments.
        env: its whole environment.
        cwd: the folder it starts in.
        folders: what to create before it starts, unless it is there.
        output: where this replica writes, or None when that is not on this machine.
        root: the job's output folder, which all its replicas share, or None likewise.
        grace_seconds: from the request to end until it is killed.
        progress: the file with what the training process reports.
        termination_log: the file with the container's last words.
        has_agent: whether the program is the agent, which starts the user's.
        notes: what differs from a cluster, one line each.
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
    pod: Mapping[str, Any], place: Place, ports: Mapping[str, ReplicaPorts], private: Path
) -> Launch:
    """Translate a pod into a process: pure, the machine speaks through `place`.

    Args:
        pod: the manifest as it would go to a cluster.
        place: this machine.
        ports: the ports of each hostname.
        private: a folder of the pod's own.

    Raises:
        CannotRunHere: the pod needs something that is not to be had here; every such thing is named.
    """
    container = trainer_of(pod)
    variables, volumes = _resolve(pod, container, place, private)
    mounts = mounted_folders(container, volumes, variables.all())
    termination_log = private / "termination-log"
    folders = {path: volume.folder for path, volume in mounts.items()}
    folders[container.get("terminationMessagePath") or TERMINATION_LOG] = termination_log

    def _local(text: str) -> str:
        addressed = rewrite_addresses(text, subdomain=_subdomain(pod), namespace=_namespace(pod), ports=ports)
        return rewrite_paths(addressed, folders)

    written = {name: _local(value) for name, value in variables.written.items()}
    known = variables.all()
    command = [*(container.get("command") or ()), *(container.get("args") or ())]
    cwd, cwd_notes = _working_folder(container, place, _local)
    output = _local_folder(written.get("TRAINJOB_OUTPUT_DIR"))
    state = written.get("TRAINJOB_STATE_DIR") if "TRAINJOB_AGENT" in written else None
    progress = (Path(state) if state else private) / "progress.json"
    env = _environment({**written, **variables.given}, place, _gpu_variables(pod, place))
    return Launch(
        argv=tuple(_local(expand(str(part), known)) for part in command),
        env=env if state else _with_help(env, place, progress),
        cwd=cwd,
        folders=tuple(dict.fromkeys(volume.folder for volume in mounts.values() if volume.ours)),
        output=output,
        root=_root(written, output),
        grace_seconds=_grace_seconds(pod["spec"].get("terminationGracePeriodSeconds")),
        progress=progress,
        termination_log=termination_log,
        has_agent=bool(state),
        notes=(
            *_notes(pod, container, place),
            *_volume_notes(container, volumes),
            *variables.notes,
            *cwd_notes,
        ),
    )


def hostnames_in(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every hostname whose address a pod knows, its own first."""
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
    """Return the pod's hostname, which by Kubernetes' rule is its name unless it has another."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def trainer_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container that trains.

    Raises:
        CannotRunHere: it is missing, says nothing to start, or is not alone.
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
    pod: Mapping[str, Any], container: Mapping[str, Any], place: Place, private: Path
) -> tuple[Variables, dict[str, VolumeFolder]]:
    refused: list[str] = []
    variables, volumes = Variables(), dict[str, VolumeFolder]()
    try:
        variables = resolve_variables(pod, container, place)
    except CannotRunHere as cannot:
        refused += cannot.lines
    try:
        volumes = resolve_volumes(pod["spec"], place, private)
    except CannotRunHere as cannot:
        refused += cannot.lines
    if refused:
        raise CannotRunHere(refused)
    return variables, volumes


def _environment(own: Mapping[str, str], place: Place, gpus: Mapping[str, str]) -> dict[str, str]:
    env = {name: value for name, value in place.environ.items() if not name.startswith(_OF_AN_OUTER_JOB)}
    env.setdefault("PYTHONUNBUFFERED", "1")
    env |= gpus
    env |= own
    env["PATH"] = _joined(place.programs, env.get("PATH"))
    return env


def _with_help(env: Mapping[str, str], place: Place, progress: Path) -> dict[str, str]:
    """Add what an agent would give the training process that it starts."""
    helped = {**env, "TRAINJOB_PROGRESS_FILE": str(progress)}
    if place.bootstrap is not None:
        helped["PYTHONPATH"] = _joined(place.bootstrap, env.get("PYTHONPATH"))
    return helped


def _joined(first: Path, others: str | None) -> str:
    return f"{first}:{others}" if others else str(first)


def _gpu_variables(pod: Mapping[str, Any], place: Place) -> dict[str, str]:
    if not place.gpus:
        return {}
    # A pod that asks for no GPU sees none on a cluster either; -1 hides them all.
    return {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus_of.get(hostname_of(pod), ())) or "-1"}


def _working_folder(
    container: Mapping[str, Any], place: Place, local: Callable[[str], str]
) -> tuple[Path, tuple[str, ...]]:
    asked = container.get("workingDir")
    if not asked:
        return place.job_folder, ()
    folder = place.job_folder / local(asked)
    if place.is_folder(folder):
        return folder, ()
    return place.job_folder, (f"workingDir {asked} is not here: commands start in {place.job_folder}",)


def _grace_seconds(asked: int | None) -> float:
    return float(min(max(DEFAULT_GRACE_SECONDS if asked is None else asked, 0), _LONGEST_GRACE_SECONDS))


def _local_folder(path: str | None) -> Path | None:
    return Path(path) if path and PurePosixPath(path).is_absolute() else None


def _root(env: Mapping[str, str], output: Path | None) -> Path | None:
    checkpoints = _local_folder(env.get("TRAINJOB_CHECKPOINT_DIR"))
    return checkpoints.parent if checkpoints else output


def _notes(pod: Mapping[str, Any], container: Mapping[str, Any], place: Place) -> Iterator[str]:
    if container.get("image"):
        yield f"image {container['image']} is not used: replicas run in the Python environment of trainjob"
    wanted = count_gpus(pod)
    if wanted and not place.gpus:
        yield "GPUs are asked for and none is here: training on the CPU"
    elif wanted and not place.gpus_of.get(hostname_of(pod)):
        yield f"more GPUs are asked for than the {len(place.gpus)} here: training on the CPU"
    elif place.gpus and not wanted and not any(place.gpus_of.values()):
        yield f"GPUs here are not used ({len(place.gpus)}): the job asks for none (limits: nvidia.com/gpu)"
    if place.bootstrap is None:
        yield "the package trainjob-trainer is not installed: Keras scripts run without its repair"


def _volume_notes(container: Mapping[str, Any], volumes: Mapping[str, VolumeFolder]) -> Iterator[str]:
    for name in dict.fromkeys(mount["name"] for mount in container.get("volumeMounts") or ()):
        note = volumes[name].note
        if note:
            yield note


def _subdomain(pod: Mapping[str, Any]) -> str:
    return str(pod["spec"].get("subdomain") or "")


def _namespace(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("namespace") or "default")
