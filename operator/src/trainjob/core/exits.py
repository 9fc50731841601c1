"""What the exit code of the container `trainer` means: one table, shared with the trainer by a contract test.

All other codes are the user's program's own; 128+n is death by signal n, as every shell reports it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExitMeaning:
    """One row of the table.

    Attributes:
        name: the trainer's name for the code, in CamelCase; becomes the reason in conditions.
        permanent: starting again can't help, so the job fails at once.
        charged: a restart for it counts against `maxRestarts`.
        text: what happened, to follow the name of a replica.
    """

    name: str
    text: str
    permanent: bool = False
    charged: bool = True


EXITS: dict[int, ExitMeaning] = {
    80: ExitMeaning("InvalidConfiguration", "was configured wrongly", permanent=True),
    81: ExitMeaning("OutputFinished", "found its output finished already", permanent=True),
    82: ExitMeaning("OutputUnwritable", "can't use its output folder"),
    83: ExitMeaning("OutputFull", "found no space left for its output"),
    84: ExitMeaning("PortInUse", "found its port in use"),
    85: ExitMeaning("PeerLost", "lost the connection to another replica", charged=False),
    86: ExitMeaning("Preempted", "was asked to stop and left", charged=False),
    87: ExitMeaning("CheckpointMismatch", "found a checkpoint of another model", permanent=True),
    88: ExitMeaning("Stalled", "made no progress for too long"),
    89: ExitMeaning("Fenced", "found a newer start of this job writing its output", charged=False),
    90: ExitMeaning("NotFinite", "came to a loss or gradients that are NaN or infinite", permanent=True),
    91: ExitMeaning("WeightsDiverged", "found its weights apart from the others'"),
}

OUTPUT_UNWRITABLE = 82
PORT_IN_USE = 84
PEER_LOST = 85
"""A cascade: some other replica failed first."""

_PROGRAM_FAILED = ExitMeaning("Crashed", "crashed")
_KILLED = ExitMeaning("Killed", "was killed")
_LAST_SIGNAL = 64


def meaning_of(exit_code: int) -> ExitMeaning:
    """Return the row for an exit code other than 0."""
    if exit_code in EXITS:
        return EXITS[exit_code]
    return _KILLED if 128 < exit_code <= 128 + _LAST_SIGNAL else _PROGRAM_FAILED
