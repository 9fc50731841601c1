"""The environment variables that a job sets for its processes, and defaults without a job."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainjob_trainer.contract.environment import SMOKE
from trainjob_trainer.contract.files import find_link, output_folders
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task, of_the_job

# Changes of the user's process that can be switched off; docs/contract.md describes them.


WITHOUT = "TRAIN_WITHOUT"
_SWITCHED = (
    *("memory", "garbage"),
    *("start", "refusals", "strategy", "numbers", "iterators", "order", "reduce", "losses", "fit"),
    *("random", "saving", "horovod"),
)
"""`garbage` is the import hook's; from `start` on they are the rows of `patches.py`."""


def is_without(change: str, env: Mapping[str, str]) -> bool:
    """Return whether the user has switched this change off."""
    return change in map(str.strip, env.get(WITHOUT, "").split(","))


STRATEGY = "TRAIN_STRATEGY"
"""With `own` a script of several workers trains with the strategies that it makes, or with none."""


# The settings of a training: a TrainJob changes one by its container's `env`, as in TRAIN_EPOCHS=30.


class Setting(NamedTuple):
    """What a setting means, its type and default, its smallest value, and the values that it may have."""

    meaning: str
    kind: type
    default: Any = None
    least: int | None = None
    among: Sequence[str] = ()


SETTINGS = {
    "global_batch": Setting(
        "examples a step, over all workers; with parameter servers each worker's", int, least=1
    ),
    "epochs": Setting("passes over the training data", int, 1, least=1),
    "steps_per_epoch": Setting(
        "steps of an epoch, which endless data needs; data that ends is repeated", int, least=1
    ),
    "seed": Setting("of initial weights, dropout and the order of examples", int, 42),
    "shuffle": Setting("reshuffle the training examples each epoch; not for data in batches", bool, True),
    "checkpoint_every": Setting("steps between checkpoints; by default the time decides", int, least=1),
    "keep": Setting("checkpoints to keep; the final one stays anyway", int, 3, least=1),
    "export": Setting(
        "write the trained model to <output>/model, as model.keras and saved_model", bool, True
    ),
    "on_nan": Setting(
        "when a loss or a gradient is NaN or infinite: stop, skip that step on all workers, or ignore it",
        str,
        "stop",
        among=("stop", "skip", "ignore"),
    ),
    "compare_weights": Setting(
        "before each checkpoint compare the workers' weights, and go back to the last one if they differ",
        bool,
        True,
    ),
    "compare_data": Setting("compare what the workers read, and end training if it differs", bool, True),
    "output": Setting(
        "folder for all that is written, ./output/<script> by default; in a job it is the job's", str
    ),
    "resume": Setting(
        "continue the training in the output; false starts over in a new folder beside it", bool, True
    ),
    "resume_data": Setting(
        "after a restart, reread all data that the order of rows depends on (exact), or at most the current "
        "epoch (epoch), whose rows then differ from a run without the restart",
        str,
        "exact",
        among=("exact", "epoch"),
    ),
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def setting(name: str, env: Mapping[str, str], in_code: Any = None) -> Any:
    """Return a setting's value: the environment's, else the code's unless that is None, else the default.

    Raises InvalidConfiguration for a value that it can't have.
    """
    _, kind, default, least, among = SETTINGS[name]
    variable = f"TRAIN_{name.upper()}"
    where: str
    value: Any
    where, value = (variable, env[variable]) if env.get(variable) else (name, in_code)
    if value is None:
        return default
    if where is variable and kind is bool and value.lower() in _TRUE + _FALSE:
        value = value.lower() in _TRUE
    if where is variable and kind is int and value.removeprefix("-").isdecimal():
        value = int(value)
    is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if is_kind and (least is None or value >= least) and (not among or value in among):
        return value
    wanted = {bool: "true or false", str: "a string", int: "a whole number"}[kind]
    if least is not None:
        wanted = f"a whole number of at least {least}"
    if among:
        wanted = f"one of {', '.join(map(repr, among))}"
    raise InvalidConfiguration(f"{where}: must be {wanted}, got {value!r}")


# A smoke test: each replica takes one step of everything.


def is_smoke(env: Mapping[str, str]) -> bool:
    """Return whether this process is part of a smoke test: one step, and one batch of each evaluation."""
    return bool(env.get("TRAINJOB_OUTPUT_DIR")) and env.get(SMOKE) == "true"


# The generation of this process, for fencing.


VARIABLE = "TRAINJOB_GENERATION"
_TEXT = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, order=True)
class Generation:
    """A pair that is compared by the writer's pod first, then by the start within it.

    Attributes:
        incarnation: of the writer's pod, one more than its predecessor's.
        attempt: how many times the training replicas have been started.
    """

    incarnation: int
    attempt: int

    @classmethod
    def parse(cls, text: str) -> Generation:
        """Parse `<incarnation>.<attempt>`; raises InvalidConfiguration for other texts."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise InvalidConfiguration(f"{VARIABLE}: must be <incarnation>.<attempt>, got {text!r}")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"{self.incarnation}.{self.attempt}"


@dataclass(frozen=True)
class Environment:
    """The TRAINJOB_* variables, with the defaults of a plain `python train.py`.

    Attributes:
        name: the job's name.
        uid: the job's UID, empty without a job.
        attempt: 1 for the first start of the training replicas.
        output_dir: the folder that this replica may write into.
        checkpoint_dir: the checkpoints, the same for every role.
        log_dir: TensorBoard events of this replica.
        generation: of this start, which fences off the writers of earlier ones; None without a job.
        reported_step: step that an earlier attempt in this pod reported to the agent; None without one.
        reported_checkpoint: step of the checkpoint last reported as the newest, in this pod or, on a volume
            that outlives pods, in an earlier one; None without one.
        has_agent: an agent has started this process, and ends it when its grace period is over.
        spec: digest of the job's spec; empty where the program may change while the spec stays.
        namespace: the job's; empty without a job, and from controllers of earlier versions.
        output_uri: the address of `output_dir` in the bucket that keeps it, such as `s3://bucket/digits`;
            empty if the folder itself is kept.
    """

    name: str
    uid: str
    attempt: int
    output_dir: Path
    checkpoint_dir: Path
    log_dir: Path
    generation: Generation | None = None
    reported_step: int | None = None
    reported_checkpoint: int | None = None
    has_agent: bool = False
    spec: str = ""
    namespace: str = ""
    output_uri: str = ""

    @classmethod
    def from_environment(
        cls,
        env: Mapping[str, str],
        task: Task,
        program: str = "",
        output: str | Path | None = None,
        *,
        resume: bool = True,
    ) -> Environment:
        """Read TRAINJOB_*; without them the output folder is `./output/<script>`.

        The evaluator's own folder is `<root>/evaluator`, beside the checkpoints.

        Args:
            env: the process's environment.
            task: the process's replica.
            program: the script that the interpreter runs, as in `sys.argv[0]`.
            output: the folder instead of `./output/<script>`; a job sets its own.
            resume: whether to continue a training in the folder; if not, the next free one of `train`,
                `train-2`, `train-3` is used. A job decides this itself.

        Raises:
            InvalidConfiguration: TRAINJOB_ATTEMPT is not a number from 1, TRAINJOB_REPORTED_STEP or
                TRAINJOB_REPORTED_CHECKPOINT is not one from 0, TRAINJOB_GENERATION is no pair of numbers, the
                output is not a folder, or one of its own folders is a link, or several processes without a
                job need a new one; or TRAIN_WITHOUT or TRAIN_STRATEGY names something unknown, or TRAIN_SMOKE
                is set without a job.
        """
        env = of_the_job(env)
        left_out = [name.strip() for name in env.get(WITHOUT, "").split(",")]
        unknown = next((name for name in left_out if name and name not in _SWITCHED), None)
        if unknown:
            raise InvalidConfiguration(
                f"{WITHOUT}: must be some of {', '.join(_SWITCHED)}, separated by commas, got {unknown!r}"
            )
        if env.get(STRATEGY, "own") not in ("", "own"):
            raise InvalidConfiguration(f"{STRATEGY}: must be own, or not be set, got {env[STRATEGY]!r}")
        smoke = env.get(SMOKE, "")
        if smoke not in ("", "true", "false"):
            raise InvalidConfiguration(f"{SMOKE}: must be true or false, got {smoke!r}")
        if smoke == "true" and not env.get("TRAINJOB_OUTPUT_DIR"):
            raise InvalidConfiguration(
                f"{SMOKE}: only a job has a smoke test, with an output of its own: `trainjob run FILE "
                "--smoke`"
            )
        for variable in ("TRAINJOB_OUTPUT_DIR", "TRAINJOB_CHECKPOINT_DIR", "TRAINJOB_LOG_DIR"):
            if "://" in env.get(variable, ""):
                raise InvalidConfiguration(
                    f"{variable}: must be a folder, got {env[variable]}; a bucket is spec.output.uri "
                    "(TRAINJOB_OUTPUT_URI)"
                )
        own = Path(env.get("TRAINJOB_OUTPUT_DIR") or _own_folder(task, program, output, resume=resume))
        own = own.absolute()
        folders = output_folders(str(own.parent if task.is_evaluator else own), task.type)
        if link := find_link((folders.checkpoints, folders.logs, Path(folders.logs).parent)):
            raise InvalidConfiguration(link)
        return cls(
            name=env.get("TRAINJOB_NAME") or "local",
            uid=env.get("TRAINJOB_UID", ""),
            attempt=_parse_number(env, "TRAINJOB_ATTEMPT", least=1) or 1,
            output_dir=own,
            checkpoint_dir=Path(env.get("TRAINJOB_CHECKPOINT_DIR") or folders.checkpoints).absolute(),
            log_dir=Path(env.get("TRAINJOB_LOG_DIR") or folders.logs).absolute(),
            generation=Generation.parse(env[VARIABLE]) if env.get(VARIABLE) else None,
            reported_step=_parse_number(env, "TRAINJOB_REPORTED_STEP", least=0),
            reported_checkpoint=_parse_number(env, "TRAINJOB_REPORTED_CHECKPOINT", least=0),
            has_agent=bool(env.get("TRAINJOB_STATE_DIR")),
            spec=env.get("TRAINJOB_SPEC", ""),
            namespace=env.get("TRAINJOB_NAMESPACE", ""),
            output_uri=env.get("TRAINJOB_OUTPUT_URI", ""),
        )

    @property
    def checkpoint_uri(self) -> str:
        """The address of `checkpoint_dir` in the bucket; empty without one."""
        scheme, separator, place = self.output_uri.partition("://")
        path = posixpath.relpath(self.checkpoint_dir, self.output_dir)
        return f"{scheme}://{posixpath.normpath(posixpath.join(place, path))}" if separator else ""

    @property
    def job(self) -> str:
        """The job as `namespace/name`; empty if its namespace is unknown."""
        return f"{self.namespace}/{self.name}" if self.namespace else ""

    @property
    def how_to_start_over(self) -> str:
        """How to start over if the folder holds a finished training: with a job, or without one."""
        if self.uid:
            return "start over in a new folder with `trainjob run --fresh` or `output.resume: Never`"
        return (
            "start over with resume=False (TRAIN_RESUME=false), which takes a new folder, or with another "
            "output=... (TRAIN_OUTPUT)"
        )


def _own_folder(task: Task, program: str, output: str | Path | None, *, resume: bool) -> Path:
    root = Path(output or Path("output", script_name(program)))
    if not resume and task.cluster:
        raise InvalidConfiguration(
            "resume=False: several processes can't find a new folder by themselves; name one with output=..."
        )
    if not resume:
        numbered = (root.with_name(f"{root.name}-{number}") for number in itertools.count(2))
        root = next(folder for folder in itertools.chain([root], numbered) if not folder.exists())
    return root / "evaluator" if task.is_evaluator else root


def script_name(program: str) -> str:
    """Return `train` for `train.py`, the package's name for `python -m package`, `notebook` in a kernel."""
    path = Path(program)
    if path.name in ("ipykernel_launcher.py", "colab_kernel_launcher.py"):
        return "notebook"
    if path.name == "__main__.py":
        return path.parent.name
    return path.stem if path.suffix == ".py" else "interactive"


def _parse_number(env: Mapping[str, str], variable: str, *, least: int) -> int | None:
    text = env.get(variable)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise InvalidConfiguration(f"{variable}: must be a number from {least}, got {text!r}")
    return int(text)
