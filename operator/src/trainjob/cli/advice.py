"""What a person can do about a failure, in one sentence."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NO_MODULE = re.compile(r"No module named '([^']+)'")
_NO_FILE = re.compile(r"can't open file '([^']+)'")
_NO_SPACE = "No space left on device"


@dataclass(frozen=True)
class Advice:
    """What helps where a job has run.

    Attributes:
        by_reason: for each reason of a failure, as in the table of exit codes, that says enough.
        module: when Python has not found `{module}`.
        file: when Python has not found the script `{file}`.
        command: when there is no such command.
        killed: before the advice for `OutOfMemory`, when only SIGKILL is known.
        again: when nothing else is known.
    """

    by_reason: Mapping[str, str]
    module: str
    file: str
    command: str
    killed: str
    again: str

    def on(self, reason: str, exit_code: int | None, log: str) -> str:
        """Return what to do.

        Args:
            reason: of the first failure, as in the table of exit codes.
            exit_code: of the replica, if it ran.
            log: the last lines of its log.
        """
        if reason in self.by_reason:
            return self.by_reason[reason]
        if module := _NO_MODULE.search(log):
            return self.module.format(module=module[1])
        if file := _NO_FILE.search(log):
            return self.file.format(file=file[1])
        if exit_code in (126, 127):
            return self.command
        if _NO_SPACE in log:
            return self.by_reason["OutputFull"]
        if exit_code == 137:
            return f"{self.killed}: {self.by_reason['OutOfMemory']}"
        return self.again


_SAME_EVERYWHERE = {
    "NotFinite": "try a smaller learning rate or clipped gradients; TRAIN_ON_NAN=skip leaves such steps "
    "out (not with parameter servers)",
    "WeightsDiverged": "look for faults of memory and GPUs where those ran whom the message names; if code "
    "of your own gives each worker other weights on purpose, set TRAIN_COMPARE_WEIGHTS=false",
    "Stalled": "look in the log for what it waits for; spec.stallTimeoutSeconds is how long it may",
    "Fenced": "a newer start of this job writes its output: look at that one",
    "PeerLost": "look at the logs of the other replicas, one of which failed first",
}

HERE = Advice(
    by_reason={
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, and run the same command again",
        "OutputFinished": (
            "start over in a new folder with --fresh, or ask for more epochs to go on from the end"
        ),
        "OutputUnwritable": "make the output folder writable, or choose another one with --folder",
        "OutputFull": (
            "free some disk space, or choose another disk with --folder; the same command then goes on"
        ),
        "PortInUse": "end the program that has the port, or choose other ports with --base-port",
        "CheckpointMismatch": (
            "the checkpoint is of another model: start over with --fresh, or restore the model"
        ),
        "OutOfMemory": "give it a smaller batch or model, or fewer replicas on this machine",
    },
    module="install the package of '{module}' into the environment that trainjob runs in",
    file="there is no {file}: commands start in the folder of the job's file",
    command="check the command of the container trainer: it must be installed on this machine",
    killed="it was killed by SIGKILL, which is how a system out of memory ends programs",
    again="correct it, and run the same command again: training goes on from the last checkpoint, if any",
)

ON_CLUSTER = Advice(
    by_reason={
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, delete the job and submit it again",
        "OutputFinished": "ask for more epochs, or start over in a new folder with spec.output.resume: Never",
        "OutputUnwritable": "let the pods write into the output: see their securityContext.fsGroup",
        "OutputFull": "make room in the output's volume, or name a larger one in spec.output",
        "PortInUse": "another container of the pod has port 2222 or 2223: leave them to the trainer",
        "CheckpointMismatch": "the checkpoint is of another model: start over with spec.output.resume: Never",
        "OutOfMemory": "raise resources.limits.memory of the container trainer, or give it a smaller batch",
    },
    module="install the package of '{module}' into the image",
    file="there is no {file} in the image: see its WORKDIR and the command of the container trainer",
    command="check the command of the container trainer: the image must have it",
    killed="it was killed by SIGKILL, mostly for want of memory",
    again="correct it, delete the job and submit it again: training goes on from the last checkpoint, if any",
)
