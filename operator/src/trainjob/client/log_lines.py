"""Lines of replicas' logs as people read them: without harmless ones, and equal ones of replicas once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Lines that say nothing about a training. Log files keep them.


_ABSL = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ (?=[\w./-]+:\d+\] )")
"""How TensorFlow's C++ code begins a line: severity, time, thread; then come the file and the message."""

_HEAD = r"(?:[WE]\d{4} [\d:]+\.\d+ +\d+ |\d{4}-\d\d-\d\d [\d:]+\.\d+: [WE] )[\w./-]+:\d+\] "
"""The beginning of a warning or an error, as TensorFlow has it since 2.18 or had it before."""

_HARMLESS = tuple(
    re.compile(pattern)
    for pattern in (
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
)

_REPEATED = re.compile(r"trainjob: evaluated step \d+( \(final\))?: ")
"""The evaluator's own line about a result, which is shown as the job's."""


def is_harmless(line: str) -> bool:
    """Return whether it is a line of TensorFlow that is known to say nothing about the training."""
    return any(pattern.match(line) for pattern in _HARMLESS)


def is_shown(line: str) -> bool:
    """Return whether the display of a run has the line: it is not harmless, and not shown elsewhere."""
    return not is_harmless(line) and _REPEATED.match(line) is None


# Equal lines of several replicas.


GROUPING_SECONDS = 1.0


@dataclass
class Line:
    """A line of one replica, or of several that have printed it within `GROUPING_SECONDS`.

    Attributes:
        replica: the first one.
        text: its line.
        at: when it came, in seconds of any clock.
        replicas: all of them.
    """

    replica: str
    text: str
    at: float
    replicas: set[str]

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
        self._lines: list[Line] = []

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)

    def add(self, replica: str, text: str, at: float) -> None:
        """Add a line; `at` never decreases."""
        compared = _ABSL.sub("", text)
        for line in reversed(self._lines):
            if at - line.at > GROUPING_SECONDS:
                break
            if replica not in line.replicas and _ABSL.sub("", line.text) == compared:
                line.replicas.add(replica)
                return
        self._lines.append(Line(replica, text, at, {replica}))
        if self._most is not None:
            del self._lines[: -self._most]

    def take(self, now: float | None = None) -> tuple[Line, ...]:
        """Remove and return the lines that no other can join any more; without `now`, all lines."""
        done = [line for line in self._lines if now is None or now - line.at > GROUPING_SECONDS]
        del self._lines[: len(done)]
        return tuple(done)
