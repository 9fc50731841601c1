"""What the job tells its processes through the environment, and what holds without a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainjob_trainer.epoch import VARIABLE, Epoch
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task


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
        epoch: of this start, by which an earlier one's writer is kept from writing; None without a job.
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
    epoch: Epoch | None = None
    reported_step: int | None = None
    reported_checkpoint: int | None = None
    has_agent: bool = False

    @classmethod
    def from_environment(cls, env: Mapping[str, str], task: Task) -> Environment:
        """Read TRAINJOB_*; without them everything goes below `./output`.

        The evaluator's own folder is `<root>/evaluator`, so its checkpoints lie beside it.

        Raises:
            InvalidConfiguration: TRAINJOB_ATTEMPT is not a number from 1, TRAINJOB_REPORTED_STEP or
                TRAINJOB_REPORTED_CHECKPOINT none from 0, TRAINJOB_EPOCH is no pair of numbers, or the output
                is no folder.
        """
        for variable in ("TRAINJOB_OUTPUT_DIR", "TRAINJOB_CHECKPOINT_DIR", "TRAINJOB_LOG_DIR"):
            _check_folder(variable, env.get(variable, ""))
        default = "output/evaluator" if task.is_evaluator else "output"
        output = Path(env.get("TRAINJOB_OUTPUT_DIR") or default).absolute()
        root = output.parent if task.is_evaluator else output
        logs = output / "logs" if task.is_evaluator else root / "logs" / "train"
        return cls(
            name=env.get("TRAINJOB_NAME") or "local",
            uid=env.get("TRAINJOB_UID", ""),
            attempt=_parse_number(env, "TRAINJOB_ATTEMPT", least=1) or 1,
            output_dir=output,
            checkpoint_dir=Path(env.get("TRAINJOB_CHECKPOINT_DIR") or root / "checkpoints").absolute(),
            log_dir=Path(env.get("TRAINJOB_LOG_DIR") or logs).absolute(),
            epoch=Epoch.parse(env[VARIABLE]) if env.get(VARIABLE) else None,
            reported_step=_parse_number(env, "TRAINJOB_REPORTED_STEP", least=0),
            reported_checkpoint=_parse_number(env, "TRAINJOB_REPORTED_CHECKPOINT", least=0),
            has_agent=bool(env.get("TRAINJOB_STATE_DIR")),
        )


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
