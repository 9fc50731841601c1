"""A trial of a bucket: whether it does what checkpoints rely on, with the credentials of the environment.

One object of a random name is written, read, listed, deleted, created and replaced, and deleted again.
`trainjob doctor --bucket` runs this program, since only the trainer has a client for buckets. It prints an
`Outcome` as one line of JSON.

    python -m trainjob_trainer.checkpoint.bucket_trial URI
"""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from trainjob_trainer.atomic_file import TEMPORARY
from trainjob_trainer.checkpoint.bucket import Changed, Objects, ObjectStore

_SECONDS = 1.0
"""Between writes of the object: Google Cloud Storage allows one write a second of one object."""
Fault = Literal["", "accepted", "refused", "stale"]


@dataclass(frozen=True)
class Outcome:
    """How far a trial has come.

    Attributes:
        step: the one that failed: open, write, read, list, delete, create, replace; "" if none did.
        why: the name of the error's number, such as EACCES; or `accepted` for a conditional write that must
            be refused, `refused` for one that must not be, `stale` where a change isn't seen.
        said: the error's text.
        left: the key of an object that couldn't be deleted.
    """

    step: str = ""
    why: str = ""
    said: str = ""
    left: str = ""


def try_bucket(objects: Objects, key: str, sleep: Callable[[float], None] = time.sleep) -> Outcome:
    """Try each operation on the object of this key, which is in a folder of its own and doesn't exist."""
    steps: list[str] = []
    try:
        fault = _find_fault(objects, key, sleep, steps)
        outcome = Outcome(steps[-1], fault) if fault else Outcome()
    except OSError as error:
        outcome = _failed(steps[-1], error)
    try:
        objects.delete([key])
    except OSError as error:
        outcome = outcome if outcome.step else _failed("delete", error)
        if outcome.step != "write":  # then there is most likely no object
            return replace(outcome, left=key)
    return outcome


def _find_fault(objects: Objects, key: str, sleep: Callable[[float], None], steps: list[str]) -> Fault:
    """Return what the store does wrong; each step is appended as it begins."""
    steps.append("write")
    objects.put(key, b"written")
    steps.append("read")
    if _content(objects, key) != b"written":
        return "stale"
    steps.append("list")
    if key not in objects.versions(key.rpartition("/")[0]):
        return "stale"
    steps.append("delete")
    objects.delete([key])
    if _content(objects, key) is not None:
        return "stale"
    steps.append("create")
    sleep(_SECONDS)
    if fault := _try_condition(objects, key, ""):
        return fault
    steps.append("replace")
    sleep(_SECONDS)
    found = objects.get(key)
    return _try_condition(objects, key, found[1]) if found else "stale"


def _content(objects: Objects, key: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        found = objects.get(key)
        return found[0] if found else None
    return None


def _try_condition(objects: Objects, key: str, version: str) -> Fault:
    """Write on a condition that holds, which ends it, and again on the same one."""
    try:
        objects.put_if(key, f"first {version}".encode(), version)
    except Changed:
        return "refused"
    with contextlib.suppress(Changed):
        objects.put_if(key, f"second {version}".encode(), version)
        return "accepted"
    return "" if _content(objects, key) == f"first {version}".encode() else "stale"


def _failed(step: str, error: OSError) -> Outcome:
    name = errno.errorcode.get(error.errno or errno.EIO, "EIO")
    return Outcome(step, name, error.strerror or str(error))


def main() -> None:
    """Print the outcome for the URI in the arguments."""
    (uri,) = sys.argv[1:]
    try:
        objects = ObjectStore(uri)
    except OSError as error:
        outcome = _failed("open", error)
    else:
        # A mirror leaves out names that begin so, and `blobs/` and the index are beside it.
        outcome = try_bucket(objects, f"{TEMPORARY}doctor-{uuid.uuid4().hex[:8]}/object")
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
