"""What a person can do about a failure, in one sentence."""

import re

_NO_MODULE = re.compile(r"No module named '([^']+)'")
_NO_FILE = re.compile(r"can't open file '([^']+)'")
_NO_SPACE = "No space left on device"

_BY_REASON = {
    "InvalidConfiguration": "correct what the message names, and run the same command again",
    "OutputFinished": "start over in a new folder with --fresh, or ask for more epochs to go on from the end",
    "OutputUnwritable": "make the output folder writable, or choose another one with --folder",
    "OutputFull": "free some disk space, or choose another disk with --folder; the same command then goes on",
    "PortInUse": "end the program that has the port, or choose other ports with --base-port",
    "CheckpointMismatch": "the checkpoint is of another model: start over with --fresh, or restore the model",
    "Stalled": "look in the log for what it waits for; spec.stallTimeoutSeconds is how long it may",
    "OutOfMemory": "give it a smaller batch or model, or fewer replicas on this machine",
    "PeerLost": "look at the logs of the other replicas, one of which failed first",
}
_AGAIN = "correct it, and run the same command again: training goes on from the last checkpoint"


def advise(reason: str, exit_code: int | None, log: str) -> str:
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
        return f"install the package of {module!r} into the environment that trainjob runs in"
    if file:
        return f"there is no {file}: commands start in the folder of the job's file"
    if exit_code in (126, 127):
        return "check the command of the container trainer: it must be installed on this machine"
    if _NO_SPACE in log:
        return _BY_REASON["OutputFull"]
    if exit_code == 137:
        return (
            "it was killed by SIGKILL, which is how a system out of memory ends programs: "
            + _BY_REASON["OutOfMemory"]
        )
    return _AGAIN


def missing_module(log: str) -> str | None:
    """Return the module that Python has not found, if the log says so."""
    found = _NO_MODULE.search(log)
    return found[1] if found else None


def missing_file(log: str) -> str | None:
    """Return the script that Python has not found, if the log says so."""
    found = _NO_FILE.search(log)
    return found[1] if found else None
