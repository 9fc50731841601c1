"""What the job tells its processes through the environment, and what holds without a job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task

# Which start of the job this process belongs to: what a successor is told apart by.


VARIABLE = "TRAINJOB_EPOCH"
_TEXT = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, order=True)
class Generation:
    """Compared as a pair: the writer's pod first, then the starts within it.

    Attributes:
        incarnation: of the writer's pod, one more than its predecessor's.
        attempt: how many times the gang has been started.
    """

    incarnation: int
    attempt: int

    @classmethod
    def parse(cls, text: str) -> Generation:
        """Read `<incarnation>.<attempt>`; raises InvalidConfiguration if it is something else."""
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
        attempt: 1 for the first start of the gang.
        output_dir: the folder that this replica may write into.
        checkpoint_dir: where every role finds the checkpoints.
        log_dir: TensorBoard events of this replica.
        generation: of this start, by which an earlier one's writer is kept from writing; None without a job.
        reported_step: that an earlier start has told the agent of, in this very pod; None without one.
        reported_checkpoint: step of the checkpoint that was last reported as the newest, in this pod or, on a
            volume that outlives pods, in an earlier one; None without one.
        has_agent: an agent has started this process, knows its grace and ends it when that is over.
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
        """Read TRAINJOB_*; without them everything goes below `./output/<script>`.

        The evaluator's own folder is `<root>/evaluator`, so its checkpoints lie beside it.

        Args:
            env: the process's environment.
            task: its part.
            program: what the interpreter runs, as `sys.argv[0]`.
            output: the folder instead of `./output/<script>`; a job's own is the job's to choose.
            resume: whether a training that the folder holds goes on; if not, the next free one of
                `train`, `train-2`, `train-3` is taken. With a job that is the job's to choose too.

        Raises:
            InvalidConfiguration: TRAINJOB_ATTEMPT is not a number from 1, TRAINJOB_REPORTED_STEP or
                TRAINJOB_REPORTED_CHECKPOINT none from 0, TRAINJOB_EPOCH is no pair of numbers, the output
                is no folder, or several processes by themselves are to find a new one.
        """
        for variable in ("TRAINJOB_OUTPUT_DIR", "TRAINJOB_CHECKPOINT_DIR", "TRAINJOB_LOG_DIR"):
            _check_folder(variable, env.get(variable, ""))
        own = Path(env.get("TRAINJOB_OUTPUT_DIR") or _own_folder(task, program, output, resume=resume))
        own = own.absolute()
        root = own.parent if task.is_evaluator else own
        logs = own / "logs" if task.is_evaluator else root / "logs" / "train"
        return cls(
            name=env.get("TRAINJOB_NAME") or "local",
            uid=env.get("TRAINJOB_UID", ""),
            attempt=_parse_number(env, "TRAINJOB_ATTEMPT", least=1) or 1,
            output_dir=own,
            checkpoint_dir=Path(env.get("TRAINJOB_CHECKPOINT_DIR") or root / "checkpoints").absolute(),
            log_dir=Path(env.get("TRAINJOB_LOG_DIR") or logs).absolute(),
            generation=Generation.parse(env[VARIABLE]) if env.get(VARIABLE) else None,
            reported_step=_parse_number(env, "TRAINJOB_REPORTED_STEP", least=0),
            reported_checkpoint=_parse_number(env, "TRAINJOB_REPORTED_CHECKPOINT", least=0),
            has_agent=is_from_agent(env),
        )

    @property
    def how_to_start_over(self) -> str:
        """What to do about a folder that holds a finished training, in words for where this process runs."""
        if self.uid:
            return "start over in a new folder with `trainjob run --fresh` or `output.resume: Never`"
        return (
            "start over with resume=False (`--no-resume`, TRAIN_RESUME=false), which takes a new folder, or "
            "with another output=... (`--output`, TRAIN_OUTPUT)"
        )


def _own_folder(task: Task, program: str, output: str | Path | None, *, resume: bool) -> Path:
    root = Path(output or Path("output", script_name(program)))
    if not resume and task.cluster:
        raise InvalidConfiguration(
            "resume=False: several processes can't find a new folder by themselves; name one with output=..."
        )
    root = root if resume else free_folder(root, Path.exists)
    return root / "evaluator" if task.is_evaluator else root


def script_name(program: str) -> str:
    """`train` of `train.py`, the package's name of `python -m package`, `notebook` in a kernel's process."""
    path = Path(program)
    if is_kernel(program):
        return "notebook"
    if path.name == "__main__.py":
        return path.parent.name
    return path.stem if path.suffix == ".py" else "interactive"


def is_kernel(program: str) -> bool:
    """Whether a notebook's kernel runs in this process: its arguments are none of the user's."""
    return Path(program).name in ("ipykernel_launcher.py", "colab_kernel_launcher.py")


def free_folder(wanted: Path, exists: Callable[[Path], bool]) -> Path:
    """The folder itself if there is none yet, else the first free one of `<name>-2`, `<name>-3`, …."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([wanted], numbered) if not exists(folder))


def _check_folder(variable: str, value: str) -> None:
    # A checkpoint appears whole by being renamed, which object storage has no equal of.
    if "://" in value:
        raise InvalidConfiguration(
            f"{variable}: {value} is object storage, and this version writes into folders only; "
            "mount the bucket with a CSI driver (spec.output.csi) or use a claim"
        )


def _parse_number(env: Mapping[str, str], variable: str, *, least: int) -> int | None:
    text = env.get(variable)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise InvalidConfiguration(f"{variable}: must be a number from {least}, got {text!r}")
    return int(text)


def is_from_agent(env: Mapping[str, str]) -> bool:
    """Whether an agent has started a process with this environment."""
    return bool(env.get("TRAINJOB_STATE_DIR"))
