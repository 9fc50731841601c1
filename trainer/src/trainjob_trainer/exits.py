"""The exit codes of a training process: what whoever started it may conclude without reading a log."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """One row a cause; any other code from 1 to 127 is the user's program failing by itself.

    The operator holds the same table; a contract test keeps the two equal.
    """

    SUCCESS = 0
    INVALID_CONFIGURATION = 80
    """TF_CONFIG, the environment or a setting is wrong: trying again changes nothing."""
    OUTPUT_FINISHED = 81
    """The output folder holds a finished training: nothing is trained again in silence."""
    OUTPUT_UNWRITABLE = 82
    OUTPUT_FULL = 83
    PORT_IN_USE = 84
    PEER_LOST = 85
    """Another replica went first: never the failure that started it."""
    PREEMPTED = 86
    """Asked to stop; the library's writer saves a checkpoint before it leaves."""
    CHECKPOINT_MISMATCH = 87
    """The checkpoint belongs to another model."""
    STALLED = 88
    FENCED = 89
    """A newer start of this job writes the output now: this process must leave it alone."""
    NOT_FINITE = 90
    """Training has come to NaN: from the last checkpoint it would come there again."""
    WEIGHTS_DIVERGED = 91
    """This worker's weights have come apart from the others': memory, a device or a program has failed."""
