"""What whoever starts the controller decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainjob.cluster.kube.access import Access
from trainjob.cluster.kube.pace import Pace
from trainjob.core.settings import Settings
from trainjob.operator.agent_key import KeyPlace
from trainjob.operator.leader import Terms


@dataclass(frozen=True)
class Election:
    """How replicas agree on one that works.

    Attributes:
        namespace: where their Lease is.
        name: the Lease's name.
        terms: the durations.
    """

    namespace: str
    name: str = "trainjob-controller"
    terms: Terms = field(default_factory=Terms)


@dataclass(frozen=True)
class OperatorSettings:
    """The settings of one process.

    Attributes:
        access: the API server.
        identity: the name of this process in the Lease; no other process, also no later one, may have it.
        namespace: the namespace whose jobs to look after; None for all.
        key: where the key is kept from which the jobs' tokens are derived.
        election: None to work without asking whether another replica does.
        host: the address to serve health and metrics on.
        port: its port; 0 for any free one.
        workers: how many jobs are looked at at once.
        pace: how the caches are kept up to date.
        plan: what holds for every job; the bundle for agents comes on top.
    """

    access: Access
    identity: str
    key: KeyPlace
    namespace: str | None = None
    election: Election | None = None
    host: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from other machines
    port: int = 8080
    workers: int = 16
    pace: Pace = field(default_factory=Pace)
    plan: Settings = field(default_factory=Settings)
