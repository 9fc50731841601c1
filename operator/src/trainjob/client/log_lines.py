"""Lines of replicas' logs as people read them: without harmless ones, and equal ones of replicas once."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Lines that say nothing about a training. Log files keep them.


_ABSL = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ (?=[\w./-]+:\d+\] )")
"""How TensorFlow's C++ code begins a line: severity, time, thread; then come the file and the message."""

_HEAD = r"(?:[WE]\d{4} [\d:]+\.\d+ +\d+ |\d{4}-\d\d-\d\d [\d:]+\.\d+: [WE] )[\w./-]+:\d+\] "
"""The beginning of a warning or an error, as TensorFlow has it since 2.18 or had it before."""

_PATTERNS = (
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    r"I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ [\w./-]+:\d+\] ",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I (tensorflow|external)/",
    r"To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\.$",
    # The trainer itself declares the cardinality of its data.
    rf"{_HEAD}The `assert_cardinality` transformation is currently not handled by the auto-shard",
    rf"{_HEAD}Input of GeneratorDatasetOp::Dataset will not be optimized because the dataset",
    rf"{_HEAD}oneDNN supports DT_HALF only on platforms with AVX-512\. Falling back to the default",
    # With CUDA, whose parts register themselves twice, and on machines without NUMA, TensorRT or ptxas.
    rf"{_HEAD}Unable to register cu(DNN|FFT|BLAS) factory: Attempting to register factory for plugin",
    rf"{_HEAD}computation placer already registered\. Please check linkage",
    rf"{_HEAD}TF-TRT Warning: Could not find TensorRT",
    rf"{_HEAD}could not open file to read NUMA node: ",
    r"Your kernel may have been built without NUMA support\.$",
    rf"{_HEAD}Couldn't get ptxas version",
    rf"{_HEAD}Skipping the delay kernel, measurement accuracy will be reduced",
    rf"{_HEAD}layout failed: INVALID_ARGUMENT: Size of values 0 does not match size of permutation",
)
_HARMLESS = re.compile("|".join(_PATTERNS))

_REPEATED = re.compile(r"trainjob: evaluated step \d+( \(final\))?: ")
"""The evaluator's own line about a result, which is shown as the job's."""


def is_harmless(line: str) -> bool:
    """Return whether it is a line of TensorFlow that is known to say nothing about the training."""
    return _HARMLESS.match(line) is not None


def is_shown(line: str) -> bool:
    """Return whether the display of a run has the line: it is not harmless, and not shown elsewhere."""
    return not is_harmless(line) and _REPEATED.match(line) is None


_STOPS = re.compile(r"trainjob: (agent: attempt \d+ ends: )?[a-z]+-\d+: Preempted: ")
_STARTS = re.compile(r"trainjob: agent: attempt \d+ starts|--- pod ")
_COMPLAINT = re.compile(r"Traceback \(most|.*(collective|aborting|socket closed|coordination)", re.IGNORECASE)
_ABOUT_PEER = re.compile(r".*(: PeerLost: |agent: (lost|waiting for) the leading agent)")
_PAUSE_SECONDS = 3.0


class StopNoise:
    """What replicas print about peers that have ended before them, once they were asked to stop.

    It is an error of TensorFlow's with a traceback, a hundred lines at once, and says nothing then.

    Args:
        clock: returns the current time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_stopping = False
        self._last = dict[str, float]()

    def has(self, replica: str, line: str) -> bool:
        """Return whether this line is a part of it; call it with each line, in their order."""
        if _STARTS.match(line):
            self._is_stopping = False
            self._last.clear()
        self._is_stopping = self._is_stopping or _STOPS.match(line) is not None
        if not self._is_stopping or _ABOUT_PEER.match(line):
            return self._is_stopping
        if line.startswith("trainjob: "):
            return False
        # After a pause it is the next process of this replica.
        goes_on = self._clock() - self._last.get(replica, float("-inf")) < _PAUSE_SECONDS
        if goes_on or _COMPLAINT.match(line):
            self._last[replica] = self._clock()
            return True
        return False


GROUPING_SECONDS = 1.0


@dataclass
class Line:
    """A line of one replica, or of several that have printed it within `GROUPING_SECONDS`.

    Attributes:
        replica: the first one.
        text: its line.
        at: when it came, in seconds of any clock.
        replicas: all of them.
        compared: the text without times and threads of TensorFlow.
    """

    replica: str
    text: str
    at: float
    replicas: set[str]
    compared: str

    @property
    def source(self) -> str:
        """Return `worker-0`, or the same and `x3` for three replicas, with a multiplication sign."""
        count = len(self.replicas)
        return self.replica if count == 1 else f"{self.replica} \N{MULTIPLICATION SIGN}{count}"


class EqualLines:
    """The last lines of all replicas, with equal ones grouped.

    Times and threads in TensorFlow's lines make no difference.

    Args:
        most: this many lines are kept; the oldest are dropped.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._keep([])

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines if self._most is None else self._lines[-self._most :])

    def add(self, replica: str, text: str, at: float) -> None:
        """Add a line; `at` never decreases."""
        compared = _ABSL.sub("", text)
        equal = self._equal[compared]
        if equal and at - equal[-1].at <= GROUPING_SECONDS and replica not in equal[-1].replicas:
            start = bisect_left(equal, at - GROUPING_SECONDS, key=lambda line: line.at)
            # It is in the first ones of them: it always joins the first that it isn't in.
            joined = bisect_left(equal, True, start, key=lambda line: replica not in line.replicas)
            equal[joined].replicas.add(replica)
            return
        line = Line(replica, text, at, {replica}, compared)
        equal.append(line)
        self._lines.append(line)
        if self._most is not None and len(self._lines) > 2 * self._most:
            self._keep(self._lines[-self._most :])

    def take(self, now: float | None = None) -> tuple[Line, ...]:
        """Remove and return the lines that no other can join any more; without `now`, all lines."""
        done = [line for line in self._lines if now is None or now - line.at > GROUPING_SECONDS]
        self._keep(self._lines[len(done) :])
        return tuple(done)

    def _keep(self, lines: list[Line]) -> None:
        self._lines, self._equal = lines, defaultdict[str, list[Line]](list)
        for line in lines:
            self._equal[line.compared].append(line)
