"""The termination message of a container: what its training process reported last."""

from __future__ import annotations

from collections.abc import Iterable

from trainjob.core.pods import Pod, PodState, read_json
from trainjob.core.reports import Report, read_report


def last_words(pods: Iterable[Pod]) -> dict[str, Report]:
    """Return the last report of each pod that left one, by pod name: itself, or by its agent."""
    words: dict[str, Report] = {}
    for pod in pods:
        if pod.state is PodState.SUCCEEDED and (report := read_json(pod.message)):
            words[pod.name] = read_report(report)
        elif pod.words is not None and pod.words.report is not None:
            words[pod.name] = pod.words.report
    return words
