"""Which pods' logs are to be read while a job is followed, decided as pods come and go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainjob.cli.cluster.selection import Wanted, has_log, newest_pods, own_pods, why_no_log
from trainjob.core.pods import Pod


@dataclass
class Seats:
    """The pods of one job.

    Attributes:
        job_uid: owner of the pods that count.
        wanted: replicas that are asked for.
        complete: all pods that were there at the start have been seen.
    """

    job_uid: str
    wanted: Wanted
    complete: bool = False
    _pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _from_the_start: set[str] = field(default_factory=set)
    _known_waits: dict[str, str] = field(default_factory=dict)

    def see(self, manifest: dict[str, Any]) -> None:
        """Take a pod as it is now."""
        self._pods[manifest["metadata"]["uid"]] = manifest

    def lose(self, manifest: dict[str, Any]) -> None:
        """Take note that a pod is gone."""
        self._pods.pop(manifest["metadata"]["uid"], None)

    def begin(self) -> None:
        """All that is there has been seen: pods of earlier attempts are left to `--previous`."""
        if self.complete:
            return
        own = self._own()
        newest = {pod.name for pod in newest_pods(own, self.wanted)}
        self._begun = {pod.name for pod in own} - newest
        self._from_the_start = newest
        self.complete = True

    def due(self) -> tuple[Pod, ...]:
        """Return the pods whose reading is to begin now, each once: as soon as it has a log."""
        if not self.complete:
            return ()
        found = tuple(pod for pod in self._own() if has_log(pod) and pod.name not in self._begun)
        self._begun.update(pod.name for pod in found)
        return found

    def was_there(self, pod: Pod) -> bool:
        """Tell whether this pod was there before we were."""
        return pod.name in self._from_the_start

    def new_waits(self) -> dict[str, str]:
        """Return which replicas have no log yet, and why, as far as that hasn't been told before."""
        newest = newest_pods(self._own(), self.wanted)
        waits = {pod.replica.title: why_no_log(pod) for pod in newest if not has_log(pod)}
        fresh = {title: why for title, why in waits.items() if self._known_waits.get(title) != why}
        self._known_waits = waits
        return fresh

    def _own(self) -> tuple[Pod, ...]:
        own = own_pods(self._pods.values(), self.job_uid)
        return tuple(pod for pod in own if self.wanted.takes(pod.replica))


def describe_waits(waits: dict[str, str]) -> str:
    """Return `worker 0 and worker 1: Unschedulable: no nodes`, replicas with one cause together."""
    titles = dict[str, list[str]]()
    for title, why in waits.items():
        titles.setdefault(why, []).append(title)
    return "; ".join(f"{_listed(names)}: {why}" for why, names in titles.items())


def _listed(names: list[str]) -> str:
    if len(names) > 3:
        return f"{names[0]} and {len(names) - 1} more"
    return " and ".join(", ".join(names).rsplit(", ", maxsplit=1))
