"""How often others are asked, and how long their silence is put up with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """How a cache is kept up to date, in seconds.

    Attributes:
        watch: how long one watch goes on before it is opened anew; a random part comes on top.
        inactivity: how long a watch may be silent; the API server sends a bookmark about each minute.
        resync: how old a list may get before another one is compared with the store, for deletions lost.
        sweep: how often the jobs, whose watch is kopf's, are held against a list anyway.
        collect: between two looks for agents' programs that nobody needs; what is found twice goes. Longer
            than any pass over a job, which may be about to create pods with such a program.
        first_retry: the wait after a failure; see `Backoff`.
        longest_retry: the limit of the waits after failures in a row.
    """

    watch: float = 300.0
    inactivity: float = 70.0
    resync: float = 1800.0
    sweep: float = 300.0
    collect: float = 900.0
    first_retry: float = 0.2
    longest_retry: float = 30.0


@dataclass(frozen=True)
class AgentPace:
    """How often the jobs' agents are asked, in seconds.

    Attributes:
        steady: between two calls for one job; a random part, up to a tenth, comes on top.
        hasty: the same for a while after something changed.
        hasty_for: how long that while is.
        hasty_calls: how many calls for one job may come before the steady pace has them; each steady interval
            earns another. An agent that says something new whenever it is asked, so that its order changes
            at every look, is asked twice as often as others in the long run.
        witness: how long a leading agent may be silent before others are asked about it.
        timeout: of one call.
        patience: how long a job's agent may be silent and still be asked as often as any. It is longer than
            what it takes to find out that a node is gone (`UNREACHABLE`, as others see it, too).
        longest: between two calls for a job that has been silent for long.
    """

    steady: float = 5.0
    hasty: float = 1.0
    hasty_for: float = 30.0
    hasty_calls: int = 30
    witness: float = 10.0
    timeout: float = 3.0
    patience: float = 20.0
    longest: float = 30.0

    def wait(self, *, is_hasty: bool, silent: float) -> float:
        """Return the time from one call for a job to the next.

        Args:
            is_hasty: something has changed a short while ago.
            silent: for how long its agent hasn't answered, since then.
        """
        usual = self.hasty if is_hasty else self.steady
        return usual if silent <= self.patience else max(usual, min(silent / 2, self.longest))
