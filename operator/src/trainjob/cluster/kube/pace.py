"""How often the caches are held against the API server, and how long its silence is put up with."""

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
        first_retry: the wait after a failure; see `Backoff`.
        longest_retry: the limit of the waits after failures in a row.
    """

    watch: float = 300.0
    inactivity: float = 70.0
    resync: float = 1800.0
    sweep: float = 300.0
    first_retry: float = 0.2
    longest_retry: float = 30.0
