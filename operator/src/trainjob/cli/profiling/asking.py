"""One request from its beginning to its end: what is told on the way, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainjob.cli.cluster.pace import Pace
from trainjob.cli.cluster.problems import ClusterProblem, TimeIsOver
from trainjob.cli.profiling.desk import Away, Desk
from trainjob.core.wording import printable

NO_ANSWER_SECONDS = 60.0
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_LINES = 30.0
"""About the same."""
_LOOKS_BETWEEN_QUESTIONS = 5
"""Whether the job is over is asked only so often."""


class Asking:
    """Leaves a request and waits for what comes of it.

    Args:
        desk: of the replica.
        who: the replica, in messages.
        say: tells how far it is, one line each.
        pace: with the deadline.
    """

    def __init__(self, desk: Desk, who: str, say: Callable[[str], None], pace: Pace) -> None:
        self._desk, self._who, self._say, self._pace = desk, who, say, pace
        self._told = self._about = ""
        self._said_at = pace.clock()
        self._answered = False
        self._began = pace.clock()

    def run(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the last answer, which says where the profile is.

        Raises:
            ClusterProblem: it can't be had; the sentence says why.
            TimeIsOver: the deadline has passed.
        """
        self._leave(request)
        try:
            return self._wait(request["id"])
        finally:
            with suppress(Away, ClusterProblem):
                self._desk.withdraw(request["id"])

    def _leave(self, request: Mapping[str, Any]) -> None:
        try:
            self._desk.ask(request)
        except Away as away:
            raise ClusterProblem(f"{self._who} can't be asked: {away}") from away

    def _wait(self, number: str) -> Mapping[str, Any]:
        looks = 0
        while True:
            over = self._desk.why_over() if looks % _LOOKS_BETWEEN_QUESTIONS == 0 else None
            looks += 1
            answer = self._look(number)
            if answer.get("state") == "written":
                return answer
            if over is not None:
                raise ClusterProblem(over)
            self._check_time()
            self._pace.pause(_SECONDS_BETWEEN_LOOKS)

    def _look(self, number: str) -> Mapping[str, Any]:
        try:
            answer = self._desk.answer()
        except Away as away:
            self._tell(f"{self._who}: {away}; trying again", str(away))
            return {}
        if not answer:
            return {}
        if answer.get("id") != number:
            if not self._answered:  # still the last word to an earlier request
                return {}
            raise ClusterProblem(f"{self._who} has been asked by somebody else meanwhile")
        self._answered = True
        if answer.get("state") == "refused":
            raise ClusterProblem(f"{self._who}: {answer.get('message')}")
        self._tell(describe(self._who, answer), str(answer.get("state")))
        return answer

    def _check_time(self) -> None:
        if not self._answered and self._pace.clock() - self._began >= NO_ANSWER_SECONDS:
            raise ClusterProblem(
                f"{self._who} has not answered for {NO_ANSWER_SECONDS:.0f} s: there is no such replica, or "
                "it is at no step yet, or in a very long one, or its script has a loop of its own without "
                "run.steps()"
            )
        if self._pace.is_over:
            raise TimeIsOver(f"{self._told or self._who}: given up by --timeout; the job goes on")

    def _tell(self, line: str, about: str) -> None:
        if not line:
            return
        self._told = printable(line)
        if about != self._about or self._pace.clock() - self._said_at >= _SECONDS_BETWEEN_LINES:
            self._about, self._said_at = about, self._pace.clock()
            self._say(self._told)


def describe(who: str, answer: Mapping[str, Any]) -> str:
    """Return how far it is, in a line; nothing at the end."""
    if answer.get("state") == "waiting":
        return f"{who}: waiting for the step; {answer.get('step')} are done"
    if answer.get("state") == "profiling":
        return f"{who}: recording from step {answer.get('first')} on"
    return ""
