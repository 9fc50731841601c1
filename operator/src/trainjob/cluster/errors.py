"""What a cluster may answer to a write, told apart by what the caller should do next.

ClusterError
├── NotFound         the object is gone: look again
├── AlreadyExists    the name is taken (perhaps by an object that is still terminating): look again
├── Conflict         the object has changed, or is another one of that name: look again
├── Refused          the request is wrong or not allowed: tell the user, time alone may not mend it
└── Unavailable      nobody answered, or asked to wait: try again later
"""

from __future__ import annotations


class ClusterError(Exception):
    """A cluster did not do what it was asked to; the subclass says what to do."""


class NotFound(ClusterError):
    """The object does not exist (any more)."""


class AlreadyExists(ClusterError):
    """An object of that kind and name exists, terminating ones included."""


class Conflict(ClusterError):
    """The uid or resourceVersion given as a precondition is not the stored one."""


class Refused(ClusterError):
    """The request was understood and turned down.

    Attributes:
        reason: Kubernetes' word for it, such as `Invalid` or `Forbidden`.
        message: the cluster's own sentence, for the user.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Unavailable(ClusterError):
    """The cluster could not answer.

    Attributes:
        retry_after: seconds that it asked to wait, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
