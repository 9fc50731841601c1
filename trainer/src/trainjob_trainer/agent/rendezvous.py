"""The rendezvous of a job's agents: which are present, which the controller wants, which are dismissed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainjob_trainer.agent.messages import (
    QUIET,
    Beat,
    Effect,
    HangUp,
    Join,
    Send,
    count_roles,
    end,
    start,
    stop,
    welcome,
)
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.replicas import EVALUATOR, replicas_of
from trainjob_trainer.contract.reports import LOST, RUNNING
from trainjob_trainer.contract.restarts import EARLY_SECONDS, RestartCounts, restart_delay
from trainjob_trainer.contract.targets import Target
from trainjob_trainer.contract.wire import integer

# The present members: one agent for each replica, from the replica's newest pod.


@dataclass
class Member:
    """One replica's agent.

    Attributes:
        address: where its training process listens.
        link: the connection; None once it has ended.
        child: the last known state of its training process.
        attempt: the latest start that this leader has sent to it, 0 for none.
        since: when it entered its state.
        report: the training process's last progress report, or None.
        age: seconds since the report was written, or None.
        stopped: a signal has stopped the training process.
        is_observer: training starts without it.
    """

    replica: str
    incarnation: int
    pod: str
    address: str
    link: int | None
    child: str
    since: float
    attempt: int = 0
    report: Mapping[str, Any] | None = None
    age: float | None = None
    stopped: bool = False
    leaving: bool = False
    is_observer: bool = False

    @property
    def is_quiet(self) -> bool:
        """Return whether no training process of its last start is left."""
        return self.child in QUIET

    @property
    def state(self) -> str:
        """Return its state in the agent report."""
        return LOST if self.link is None else self.child

    def become(self, child: str, now: float) -> None:
        """Record the state of its training process."""
        if child != self.child:
            self.child, self.since = child, now

    def begin(self, attempt: int, now: float) -> None:
        """Record a start that was sent to it."""
        self.attempt, self.report, self.age, self.stopped = attempt, None, None, False
        self.become(RUNNING, now)

    def update(self, beat: Beat, now: float) -> bool:
        """Record a beat, unless it is from before the latest start; return whether `child` has changed."""
        if beat.attempt < self.attempt:
            return False
        before = self.child
        self.report, self.age, self.stopped = beat.report, beat.age, beat.stopped
        self.become(beat.child, now)
        return self.child != before

    def step(self, key: str = "step") -> int | None:
        """Return a step of its report: `step`, `checkpointStep` or `resumedFrom`."""
        return integer((self.report or {}).get(key))


class Roster:
    """The members by replica and by connection."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._links: dict[int, Member] = {}

    def admit(self, join: Join, now: float) -> Member | None:
        """Add the member, in place of an older pod; return None if a newer pod has joined."""
        before = self._members.get(join.replica)
        if before is not None and before.incarnation > join.incarnation:
            return None
        if before is not None:
            self.part(before, now)
        member = Member(
            join.replica,
            join.incarnation,
            join.pod,
            join.address,
            join.link,
            child=join.child,
            since=now,
            is_observer=is_observer(join.replica),
        )
        self._members[join.replica] = self._links[join.link] = member
        return member

    def part(self, member: Member, now: float) -> None:
        """Record the end of a member's connection."""
        if member.link is not None:
            self._links.pop(member.link, None)
            member.link, member.since = None, now

    def drop(self, member: Member) -> None:
        """Remove a member whose replica no longer exists."""
        self._members.pop(member.replica, None)
        if member.link is not None:
            self._links.pop(member.link, None)

    def get(self, replica: str) -> Member | None:
        """Return the replica's latest member, connected or lost."""
        return self._members.get(replica)

    def on(self, link: int) -> Member | None:
        """Return the member of this connection."""
        return self._links.get(link)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        """Return the number of connected members."""
        return len(self._links)

    @property
    def trainees(self) -> list[Member]:
        """Return the connected members that train, in order of arrival."""
        return [m for m in self._links.values() if not m.is_observer]


def is_observer(replica: str) -> bool:
    """Return whether training starts without this replica."""
    return replica.startswith(f"{EVALUATOR}-")


# Replicas whose training process restarts alone, while the others continue.
#
# With parameter servers the chief gives a dead worker's steps to another one, and readmits a worker that
# listens at the same address again. No other replica is dispensable: the `ps` hold the variables, and the
# chief knows which steps are done.


class LoneReplicas:
    """Such replicas of one attempt, with their starts and back-off."""

    def __init__(self, replicas: Iterable[str], number: int, now: float) -> None:
        self.replicas = lone_replicas(list(replicas))
        self._numbers = dict.fromkeys(self.replicas, number)
        self._started = dict.fromkeys(self.replicas, now)
        self._in_a_row = dict.fromkeys(self.replicas, 0)
        self._due: dict[str, float] = {}

    def __contains__(self, replica: object) -> bool:
        return replica in self.replicas

    def number(self, replica: str, otherwise: int) -> int:
        """Return the number of the latest start: higher than the attempt's after a restart alone."""
        return self._numbers.get(replica, otherwise)

    @property
    def latest(self) -> int:
        """Return the highest of these numbers, 0 for none."""
        return max(self._numbers.values(), default=0)

    @property
    def wake_at(self) -> float | None:
        """Return the time of the next due restart."""
        return min(self._due.values(), default=None)

    def started(self, replica: str) -> float:
        """Return the time of its latest start."""
        return self._started[replica]

    def is_pending(self, replica: str) -> bool:
        """Return whether it waits for a restart that is already counted."""
        return replica in self._due

    def is_due(self, replica: str, now: float) -> bool:
        """Return whether it may be started."""
        return self._due.get(replica, now) <= now

    def failed(self, replica: str, now: float) -> None:
        """Record a failure and schedule the restart after 0, 1, 2, 4, ... s.

        A process that has run for a minute starts this series again.
        """
        lasted = now - self._started[replica]
        self._in_a_row[replica] = 1 if lasted >= EARLY_SECONDS else self._in_a_row[replica] + 1
        self._due[replica] = now + restart_delay(self._in_a_row[replica]).total_seconds()

    def begin(self, replica: str, number: int, now: float) -> None:
        """Record its restart."""
        self._due.pop(replica, None)
        self._numbers[replica], self._started[replica] = number, now


def lone_replicas(replicas: list[str]) -> frozenset[str]:
    """Return the replicas of an attempt that the others can do without for a while."""
    if not {"chief", "ps"} <= set(count_roles(replicas)):
        return frozenset()
    return frozenset(replica for replica in replicas if replica.startswith("worker-"))


@dataclass(frozen=True)
class LeaderSettings:
    """The settings of the leading agent.

    Attributes:
        replica: its own, whose training process writes the checkpoints.
        cluster: addresses of all roles, from TF_CONFIG.
        link: the connection of its own replica; no other one may join as that replica.
        unix_time: the difference of Unix time to the worker group's clock, in seconds.
    """

    replica: str
    incarnation: int
    cluster: Mapping[str, Sequence[str]]
    link: int = 0
    beat_seconds: float = 1.0
    lost_seconds: float = 10.0
    unix_time: float = 0.0


class Rendezvous:
    """Members, and the latest target; the first one is what the leading agent's pod was created with.

    `outbox` has the messages to send, in order.
    """

    def __init__(self, settings: LeaderSettings, first: Target) -> None:
        self.settings = settings
        self.roster = Roster()
        world = {role: len(a) for role, a in settings.cluster.items() if role != EVALUATOR and a}
        self.target = replace(first, world=world)
        self.outbox: list[Effect] = []
        self._outside: set[str] = set()
        self._stopping: set[int] = set()
        self._configs: dict[str, Mapping[str, Any]] = {}

    @property
    def replicas(self) -> list[str]:
        """Return the replicas of the next start, by role."""
        without = self.target.without - {self.settings.replica}
        return [replica for replica in self.all_replicas if replica not in without]

    @property
    def all_replicas(self) -> list[str]:
        """Return the replicas of the target, with those that are unavailable."""
        return replicas_of(self.target.world or {})

    @property
    def missing(self) -> list[str]:
        """Return the replicas that the start barrier waits for."""
        return [replica for replica in self.replicas if self.ready(replica) is None]

    @property
    def is_quiet(self) -> bool:
        """Return whether no process of an earlier start runs, except where a newer pod takes over."""
        return all(member.is_quiet for member in self.roster.trainees if self.is_wanted(member))

    def complete(self) -> list[Member] | None:
        """Return all members of the next start, or None while one is missing."""
        replicas = self.replicas
        if len(self.roster) < len(replicas) or not self.is_quiet:
            return None
        members = [self.ready(replica) for replica in replicas]
        ready = [member for member in members if member is not None]
        return ready if len(ready) == len(members) else None

    def is_wanted(self, member: Member) -> bool:
        """Return whether no newer pod replaces this member."""
        return member.incarnation >= self.target.incarnations.get(member.replica, 0)

    def set_target(self, target: Target) -> None:
        """Take the controller's target; replicas outside it are dismissed once nothing runs there."""
        before = set(self.all_replicas)
        self.target = replace(target, world=target.world or self.target.world)
        self._outside = (self._outside | before) - set(self.all_replicas)

    def admit(self, join: Join, now: float, counts: RestartCounts) -> Member | None:
        """Admit a member; dismiss it if a newer pod or the leading agent itself has its replica."""
        before = self.roster.get(join.replica)
        replaced = (before.link, before.incarnation) if before is not None else (None, 0)
        is_ours = join.replica == self.settings.replica and join.link != self.settings.link
        member = None if is_ours else self.roster.admit(join, now)
        if member is None:
            self.dismiss(join.link, counts)
            return None
        if replaced[0] is not None and replaced[1] < join.incarnation:
            self.dismiss(replaced[0], counts)
        elif replaced[0] is not None:
            self.outbox.append(HangUp(replaced[0]))
        own = self.settings
        self.outbox.append(Send(join.link, welcome(own.beat_seconds, own.lost_seconds, own.incarnation)))
        return member

    def dismiss(self, link: int, counts: RestartCounts, code: int = int(ExitCode.PEER_LOST)) -> None:
        """Send the end message and close the connection."""
        self.outbox.append(Send(link, end(code, "dismissed", None, counts)))
        self.outbox.append(HangUp(link))

    def dismiss_outsiders(self, counts: RestartCounts) -> None:
        """Dismiss members of removed replicas, once nothing runs there."""
        for replica in sorted(self._outside):
            member = self.roster.get(replica)
            if member is not None and (member.link is None or member.is_quiet):
                self.roster.drop(member)
                if member.link is not None:
                    self.dismiss(member.link, counts, int(ExitCode.SUCCESS))

    def stop(self, members: Sequence[Member], attempt: int, *, graceful: bool, stacks: bool = False) -> None:
        """Stop these members' training processes; each member gets the message once."""
        for member in members:
            if member.link is not None and not member.is_quiet and member.link not in self._stopping:
                self._stopping.add(member.link)
                self.outbox.append(Send(member.link, stop(attempt, graceful=graceful, stacks=stacks)))

    def begin(self, members: Sequence[Member], number: int, counts: RestartCounts, now: float) -> None:
        """Start all members; TF_CONFIG gives each its index among those present."""
        self._stopping.clear()
        cluster = self._cluster(members)
        self._configs.clear()
        indices: dict[str, int] = {}
        for member in members:
            role = member.replica.rpartition("-")[0]
            task = {"type": role, "index": indices.get(role, 0)}
            indices[role] = indices.get(role, 0) + 1
            self._configs[member.replica] = {"cluster": cluster, "task": task}
            self._begin(member, number, number, counts, now)

    def begin_alone(
        self, member: Member, number: int, attempt: int, counts: RestartCounts, now: float
    ) -> None:
        """Start one ready member, as `number`, beside those that train already in `attempt`."""
        assert member.link is not None  # noqa: S101 - it is ready
        self._stopping.discard(member.link)
        self._begin(member, number, attempt, counts, now)

    def _begin(self, member: Member, number: int, attempt: int, counts: RestartCounts, now: float) -> None:
        assert member.link is not None  # noqa: S101 - they are ready
        generation = f"{self.settings.incarnation}.{attempt}"
        member.begin(number, now)
        message = start(number, generation, self._configs[member.replica], counts)
        self.outbox.append(Send(member.link, message))

    def _cluster(self, members: Sequence[Member]) -> dict[str, list[str]]:
        """Return TF_CONFIG's cluster, its roles in order; the evaluator keeps its address from there.

        So do replicas that restart alone: the others must find a new pod at the same address.
        """
        known = self.settings.cluster
        cluster: dict[str, list[str]] = {role: [] for role in known}
        alone = lone_replicas([member.replica for member in members])
        for member in members:
            role, _, index = member.replica.rpartition("-")
            named = known.get(role, ())
            is_named = member.replica in alone and int(index) < len(named)
            cluster.setdefault(role, []).append(named[int(index)] if is_named else member.address)
        if EVALUATOR in known:
            cluster[EVALUATOR] = list(known[EVALUATOR])
        return {role: addresses for role, addresses in cluster.items() if addresses}

    def ready(self, replica: str) -> Member | None:
        """Return the replica's agent if it can start a training process."""
        member = self.roster.get(replica)
        if member is None or member.link is None or member.leaving:
            return None
        return member if member.is_quiet and self.is_wanted(member) else None
