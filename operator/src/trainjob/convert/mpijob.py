"""The workers of an MPIJob of Horovod's usual form: a launcher with `horovodrun` or `mpirun`, and workers.

A TrainJob has neither launcher nor ssh: each worker runs the program that the launcher starts in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from trainjob.api.errors import mapping_at, objects_at, shown
from trainjob.convert.notes import Notes, Path
from trainjob.convert.pod_templates import find_trainer
from trainjob.convert.replica_specs import ReplicaSet

PATH: Path = ("spec", "mpiReplicaSpecs")
SPEC_FIELDS = frozenset(["mpiReplicaSpecs", "slotsPerWorker", "runLauncherAsWorker"])

# The launcher's command.


_SHELLS = ("sh", "bash")
_LAUNCHERS = ("horovodrun", "mpirun", "mpiexec")
_COUNTS = ("np", "n", "c", "num-proc")
_EXPORTS = ("x",)
_TWO_VALUES = ("mca", "gmca", "genv", "env")
# fmt: off
_ONE_VALUE = frozenset(
    [
        *("H", "host", "hosts", "hostfile", "machinefile", "f", "app", "am", "tune", "configfile"),
        *("rf", "rankfile", "cpu-set", "cpu-list", "cpus-per-proc", "cpus-per-rank", "bind-to"),
        *("map-by", "rank-by", "membind", "ppn", "perhost", "N", "npernode", "npersocket", "wd"),
        *("wdir", "path", "prefix", "stdin", "timeout", "tmpdir", "xterm", "output", "output-filename"),
        *("output-file", "outfile-pattern", "errfile-pattern", "display", "runtime-options"),
        *("personality", "launch-agent", "forward-signals", "preload-files", "report-pid"),
        *("report-uri", "max-restarts", "iface", "launcher", "launcher-exec", "bootstrap"),
        *("bootstrap-exec", "rmk", "genvlist", "envlist", "usize", "order-nodes", "localhost", "p"),
        *("ssh-port", "i", "ssh-identity-file", "network-interface", "network-interfaces"),
        *("start-timeout", "min-np", "max-np", "min-num-proc", "max-num-proc", "host-discovery-script"),
        *("slots", "slots-per-host", "elastic-timeout", "reset-limit", "log-level"),
        *("timeline-filename", "fusion-threshold-mb", "cycle-time-ms", "cache-capacity", "config-file"),
        *("mpi-args", "binding-args", "num-nccl-streams", "thread-affinity", "gloo-timeout-seconds"),
        *("autotune-log-file", "autotune-warmup-samples", "autotune-steps-per-sample"),
        *("autotune-bayes-opt-max-samples", "autotune-gaussian-process-noise"),
        *("stall-check-warning-time-seconds", "stall-check-shutdown-time-seconds"),
    ]
)
_NO_VALUE = frozenset(
    [
        *("allow-run-as-root", "oversubscribe", "nooversubscribe", "nolocal", "noprefix", "pernode"),
        *("bynode", "byslot", "bycore", "bysocket", "bind-to-core", "bind-to-socket", "bind-to-none"),
        *("use-hwthread-cpus", "tag-output", "timestamp-output", "l", "prepend-rank"),
        *("merge-stderr-to-stdout", "display-map", "display-allocation", "display-devel-map"),
        *("display-topo", "report-bindings", "report-child-jobs-separately", "print-rank-map"),
        *("print-all-exitcodes", "show-progress", "index-argv-by-rank", "leave-session-attached"),
        *("debug-daemons", "debug-devel", "d", "get-stack-traces", "do-not-launch", "preload-binary"),
        *("s", "enable-recovery", "disable-recovery", "continuous", "disable-auto-cleanup"),
        *("disable-hostname-propagation", "hetero-nodes", "genvall", "genvnone", "envall", "envnone"),
        *("v", "V", "verbose", "q", "quiet", "info", "gloo", "mpi", "jsrun", "use-gloo", "use-mpi"),
        *("tcp", "disable-cache", "hierarchical-allreduce", "no-hierarchical-allreduce"),
        *("hierarchical-allgather", "no-hierarchical-allgather", "autotune", "no-autotune"),
        *("timeline-mark-cycles", "no-timeline-mark-cycles", "stall-check", "no-stall-check"),
        *("mpi-threads-disable", "no-mpi-threads-disable", "log-hide-timestamp"),
        *("no-log-hide-timestamp", "log-with-timestamp", "prefix-output-with-timestamp"),
    ]
)
# fmt: on
"""The options of Open MPI, MPICH (Hydra) and horovodrun, which take one or two dashes alike."""
_ELASTIC = ("min-np", "max-np", "min-num-proc", "max-num-proc", "host-discovery-script")


@dataclass
class Launch:
    """What the launcher starts.

    Attributes:
        command: the training's own program and arguments.
        count: the number of processes; None if the command doesn't say it.
        env: exported variables; None for the launcher's own value.
        options: the launcher's options, which a TrainJob doesn't have.
    """

    command: list[str] = field(default_factory=list)
    count: int | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)


class UnreadableLaunch(ValueError):
    """The command isn't one of `horovodrun` or `mpirun` that can be understood; the message says why."""


def read_launch(words: Sequence[str]) -> Launch:
    """Return what a launcher's command starts, or raise UnreadableLaunch."""
    words = _without_shell(list(words))
    if not words or PurePosixPath(words[0]).name not in _LAUNCHERS:
        raise UnreadableLaunch("runs neither horovodrun nor mpirun directly")
    launch, rest = Launch(), words[1:]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        name, has_value, value = option.partition("=")
        plain = name.lstrip("-")
        values = [value] if has_value else [rest.pop(0) for _ in range(_values_of(plain, name)) if rest]
        _apply(launch, name, values)
    if not rest:
        raise UnreadableLaunch("names no program after its options")
    launch.command = rest
    return launch


def _without_shell(words: list[str]) -> list[str]:
    if len(words) == 3 and PurePosixPath(words[0]).name in _SHELLS and words[1] in ("-c", "-lc", "-ec"):
        text = words[2].replace("\\\n", " ").strip().removeprefix("exec ")
        if any(sign in text for sign in ";&|$<>`\n"):
            raise UnreadableLaunch("is a shell script of more than one plain command")
        try:
            return shlex.split(text)
        except ValueError as error:
            raise UnreadableLaunch(f"can't be split into words ({error})") from error
    return words


def _values_of(name: str, option: str) -> int:
    if name in (*_COUNTS, *_EXPORTS) or name in _ONE_VALUE:
        return 1
    if name in _TWO_VALUES:
        return 2
    if name in _NO_VALUE:
        return 0
    raise UnreadableLaunch(f"has the unknown option {option}, so the program's beginning isn't known")


def _apply(launch: Launch, name: str, values: list[str]) -> None:
    plain = name.lstrip("-")
    if plain in _COUNTS and values and values[0].isdecimal():
        launch.count = int(values[0])
    elif plain in _EXPORTS and values:
        variable, has_value, value = values[0].partition("=")
        launch.env[variable] = value if has_value else None
    elif plain in ("genv", "env") and len(values) == 2:
        launch.env[values[0]] = values[1]
    else:
        launch.options.append(" ".join([name, *values]))


# The workers.


def read_workers(spec: Mapping[str, Any], notes: Notes) -> dict[str, ReplicaSet]:
    """Return the MPIJob's workers, which run what the launcher starts; refuse what can't be read."""
    launcher, worker = (mapping_at(spec, "mpiReplicaSpecs", name) for name in ("Launcher", "Worker"))
    for name, entry in (("Launcher", launcher), ("Worker", worker)):
        if not isinstance(mapping_at(entry, "template").get("spec"), Mapping):
            notes.refuse(
                (*PATH, name, "template"), "required: a launcher and workers become the TrainJob's workers"
            )
    if notes.refusals:
        return {}
    place = find_trainer(launcher["template"]["spec"])
    containers: Path = (*PATH, "Launcher", "template", "spec", "containers")
    container = launcher["template"]["spec"]["containers"][place] if place is not None else {}
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    where = containers if place is None else (*containers, place, "command")
    try:
        launch = read_launch([str(word) for word in words])
    except UnreadableLaunch as problem:
        notes.refuse(
            where, f"{problem}: write the program that each worker is to run after `mpirun` or `horovodrun`"
        )
        return {}
    _note_launcher(launch, where, notes)
    template = _with_program(worker["template"], launch, container, notes)
    count = _count(spec, worker.get("replicas"), launch, notes)
    policy = launcher.get("restartPolicy") or "OnFailure"
    return {"worker": ReplicaSet("Worker", "worker", count, policy, template, PATH)}


def _note_launcher(launch: Launch, where: Path, notes: Notes) -> None:
    program = shlex.join(launch.command)
    notes.note(where, f"becomes the command of each worker, without its launcher: {program}")
    notes.note(
        (*PATH, "Launcher"), "left out: agents start the processes, and there is neither launcher nor ssh"
    )
    if launch.options:
        notes.note(where, f"left out: {', '.join(launch.options)}; ranks and rendezvous come from the job")
    if any(option.lstrip("-").startswith(_ELASTIC) for option in launch.options):
        notes.note(
            where,
            "elastic Horovod becomes restarts in place: the script resumes from its own checkpoint, and "
            "spec.worker.minReplicas is the fewest workers that may continue",
        )


def _with_program(
    template: Mapping[str, Any], launch: Launch, launcher: Mapping[str, Any], notes: Notes
) -> dict[str, Any]:
    """Return the workers' template with the training's command and the exported variables."""
    made = deepcopy(dict(template))
    index = find_trainer(made["spec"])
    if index is None:
        return made  # the conversion of the template refuses it
    container = made["spec"]["containers"][index]
    path: Path = (*PATH, "Worker", "template", "spec", "containers", index)
    if container.get("command") or container.get("args"):
        notes.note((*path, "command"), "left out: it serves ssh, which isn't needed")
    container.pop("args", None)
    container["command"] = launch.command
    known = {str(variable.get("name")): variable for _, variable in objects_at(launcher, "env")}
    own = {str(variable.get("name")) for _, variable in objects_at(container, "env")}
    added = [
        {"name": name, "value": value} if value is not None else known[name]
        for name, value in launch.env.items()
        if name not in own and (value is not None or name in known)
    ]
    if added:
        container["env"] = [*(container.get("env") or []), *added]
    return made


def _count(spec: Mapping[str, Any], replicas: Any, launch: Launch, notes: Notes) -> Any:
    """Return the number of workers: one for each process of the MPIJob."""
    slots: Any = 1 if spec.get("slotsPerWorker") is None else spec["slotsPerWorker"]
    if not _is_count(slots):
        notes.refuse(("spec", "slotsPerWorker"), f"must be a number from 1, got {shown(slots)}")
        return 1
    if spec.get("runLauncherAsWorker") is True:
        notes.note(
            ("spec", "runLauncherAsWorker"), "left out: the number of processes is that of the command"
        )
    pods = 1 if replicas is None else replicas
    if not _is_count(pods):
        return pods
    count = launch.count or pods * slots
    if count != pods:
        notes.note(
            (*PATH, "Worker", "replicas"),
            f"becomes {count}: a worker is a pod with one process, where the MPIJob has {pods} pods for"
            f" {count} processes; divide the pod's GPUs, CPUs and memory accordingly",
        )
    return count


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
