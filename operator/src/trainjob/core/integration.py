"""What systems that decide when and where pods run add to a job: queues, and schedulers of gangs.

Each has one file in `core/integrations/`, and its line in `INTEGRATIONS` there. All else knows this class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from trainjob.api import ObjectMeta, TrainJob, TrainJobStatus
from trainjob.api.errors import mapping_at
from trainjob.core.manifests import Manifest, role_template

if TYPE_CHECKING:
    from trainjob.core.actions import Action, Plan
    from trainjob.core.observed import Observed, Snapshot


@dataclass(frozen=True)
class Kind:
    """Objects of an API that not every cluster has.

    Attributes:
        group: the API group.
        versions: those that are known, the best first; the one that is served, once this has been read.
        plural: the name in paths.
        kind: the `kind` of a manifest.
        keep: returns what is read of an object besides its metadata; the caches keep nothing else.
        of_jobs: whether each belongs to a job and has its label; the others belong to the whole cluster.
        unlabeled: whether others make some of them for a job, without its label.
        strict: whether a field that the API server doesn't know is an error in a new object.
        finalizer: what this controller removes from an object whose job is gone; empty for none.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    keep: Callable[[Manifest], Manifest] = lambda _manifest: {}
    of_jobs: bool = True
    unlabeled: bool = False
    strict: bool = True
    finalizer: str = ""

    @property
    def api_version(self) -> str:
        """Return the `apiVersion` of a manifest."""
        return f"{self.group}/{self.versions[0]}"


@dataclass(frozen=True)
class Placement:
    """What is added to the pods of one role."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    gates: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Integration:
    """One such system: what is read of it, and what it decides. A method here is what a job has without it.

    Attributes:
        kinds: what the cluster serves of `KINDS`; empty if the system isn't there, or isn't used.
    """

    NAME: ClassVar[str]
    """Of the option that makes a controller use it, such as `kueue` for `--kueue`."""

    HELP: ClassVar[str]
    """The help of that option."""

    MISSING: ClassVar[str]
    """What the log says if none of `KINDS` is served."""

    KINDS: ClassVar[tuple[Kind, ...]]
    """What is read of it. Without objects of jobs, nothing is."""

    KEPT_METADATA: ClassVar[tuple[str, ...]] = ()
    """How the names of labels and annotations begin that are read, of any object."""

    POSITIONS: ClassVar[Kind | None] = None
    """The queues, where their positions can be read."""

    kinds: tuple[Kind, ...] = ()

    @classmethod
    def find(cls, served: Mapping[str, tuple[str, ...]]) -> Self:
        """Return the integration with what a cluster has of it.

        Args:
            served: the versions of each API group.
        """
        kinds = tuple(found for kind in cls.KINDS if (found := _served(kind, served)) is not None)
        return cls(kinds if any(kind.of_jobs for kind in kinds) else ())

    def positions(self, served: Mapping[str, tuple[str, ...]]) -> Kind | None:
        """Return `POSITIONS` as it is served, or None."""
        return _served(self.POSITIONS, served) if self.POSITIONS is not None and self.kinds else None

    def names(self, metadata: Mapping[str, Any]) -> Mapping[str, str]:
        """Return names of objects, by kind, that the job has or refers to and that may lack its label."""
        return {}

    def shares(self, metadata: Mapping[str, Any]) -> bool:
        """Return whether the objects of the whole cluster decide on this job."""
        return False

    def queue_of(self, manifest: Manifest) -> str | None:
        """Return the queue in which this object waits for its job; None if it doesn't wait."""
        return None

    def read_positions(self, document: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the positions, from 1, of the objects in a queue by name."""
        return {}

    def read(self, snapshot: Snapshot, meta: ObjectMeta) -> Any:
        """Return what the methods below use of a snapshot; they find it in `Observed.integrated`."""

    def held(self, observed: Observed, now: datetime) -> Plan | None:
        """Return the plan for a job that may have no pods now, or that has just been let go; else None."""
        return None

    def delegates(self, observed: Observed) -> bool:
        """Return whether it has another cluster run the job, which has another manager: it is held here."""
        return False

    def held_here(self, observed: Observed, now: datetime) -> Plan | None:
        """Return the plan for a delegated job; None leaves its status alone."""
        return None

    def limit(self, observed: Observed) -> tuple[int, str] | None:
        """Return how many workers the job may have, and who says so; None without a limit."""
        return None

    def gang_size(self, observed: Observed) -> int | None:
        """Return how many of the job's pods get nodes together, or none of them does; else None."""
        return None

    def placements(self, observed: Observed) -> Mapping[str, Placement]:
        """Return what is added to the pods of each role."""
        return {}

    def dependents(self, observed: Observed) -> tuple[Manifest, ...]:
        """Return the objects that must exist before pods are created."""
        return ()

    def actions(self, observed: Observed, status: TrainJobStatus, now: datetime) -> tuple[Action, ...]:
        """Return what makes the objects of the job fit this status."""
        return ()


def _served(kind: Kind, served: Mapping[str, tuple[str, ...]]) -> Kind | None:
    versions = tuple(version for version in kind.versions if version in served.get(kind.group, ()))
    return replace(kind, versions=versions[:1]) if versions else None


def placed_job(job: TrainJob, placements: Mapping[str, Placement]) -> TrainJob:
    """Return the job with what is added to its pods in each role's template."""
    roles = {}
    for role, placement in placements.items():
        settings = getattr(job.spec, role, None)
        if settings is None or placement == Placement():
            continue
        template = role_template(job.spec, role)
        metadata, spec = mapping_at(template, "metadata"), template["spec"]
        placed = {
            "nodeSelector": {**mapping_at(spec, "nodeSelector"), **placement.node_selector},
            "tolerations": [*(spec.get("tolerations") or ()), *placement.tolerations],
        }
        if placement.gates:
            gates = [{"name": name} for name in placement.gates]
            placed["schedulingGates"] = [*(spec.get("schedulingGates") or ()), *gates]
        if placement.group:
            placed["schedulingGroup"] = {"podGroupName": placement.group}
        template["metadata"] = {
            **metadata,
            "labels": {**mapping_at(metadata, "labels"), **placement.labels},
            "annotations": {**mapping_at(metadata, "annotations"), **placement.annotations},
        }
        template["spec"] = {**spec, **placed}
        # The role's own fields are part of the template now.
        changes = {"template": template, "node_selector": None, "tolerations": None}
        roles[role] = settings.model_copy(update=changes)
    return job.model_copy(update={"spec": job.spec.model_copy(update=roles)}) if roles else job
