"""How a TrainJob and the objects that belong to it are pointed at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class JobKey:
    """What names a TrainJob: its namespace and its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class ObjectRef:
    """One object, and no other that may take its name later.

    Attributes:
        kind: `Pod`, `Service`, `PersistentVolumeClaim`, `NetworkPolicy`, `Secret` or `TrainJob`.
        uid: the precondition of every write: an object of the same name with another uid is left alone. Empty
            for a Secret: it is never looked at, and its name is used for one job only.
    """

    kind: str
    namespace: str
    name: str
    uid: str
