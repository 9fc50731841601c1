"""What a person can do about a failure in a cluster, in one sentence."""

from trainjob.cli.advice import missing_file, missing_module

_BY_REASON = {
    "InvalidConfiguration": "correct what the message names, delete the job and submit it again",
    "OutputFinished": "ask for more epochs, or start over in a new folder with spec.output.resume: Never",
    "OutputUnwritable": "let the pods write into the output: see their securityContext.fsGroup",
    "OutputFull": "make room in the output's volume, or name a larger one in spec.output",
    "PortInUse": "another container of the pod has port 2222: leave it to the trainer",
    "CheckpointMismatch": "the checkpoint is of another model: start over with spec.output.resume: Never",
    "Stalled": "look in the log for what it waits for; spec.stallTimeoutSeconds is how long it may",
    "OutOfMemory": "raise resources.limits.memory of the container trainer, or give it a smaller batch",
    "PeerLost": "look at the logs of the other replicas, one of which failed first",
}
_NO_SPACE = "No space left on device"
_AGAIN = "correct it, delete the job and submit it again: training goes on from the last checkpoint"


def advise_on_cluster(reason: str, exit_code: int | None, log: str) -> str:
    """Return what to do.

    Args:
        reason: of the first failure, as in the table of exit codes.
        exit_code: of the replica, if it ran.
        log: the last lines of its log.
    """
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    module, file = missing_module(log), missing_file(log)
    if module:
        return f"install the package of {module!r} into the image"
    if file:
        return f"there is no {file} in the image: see its WORKDIR and the command of the container trainer"
    if exit_code in (126, 127):
        return "check the command of the container trainer: the image must have it"
    if _NO_SPACE in log:
        return _BY_REASON["OutputFull"]
    if exit_code == 137:
        return "it was killed by SIGKILL, mostly for want of memory: " + _BY_REASON["OutOfMemory"]
    return _AGAIN
