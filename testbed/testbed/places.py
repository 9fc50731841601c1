"""Where the test cluster keeps its files.

Two folders outside the repository. The cache holds what is slow to make and safe to delete: programs, images,
containerd's content. The state folder holds what belongs to a running cluster, and goes away with it.
"""

import hashlib
import os
import tempfile
from pathlib import Path

TESTBED = Path(__file__).resolve().parents[1]
REPOSITORY = TESTBED.parent
GO_MODULES = TESTBED / "go"


def cache() -> Path:
    """$TRAINJOB_CACHE, or `trainjob` in the user's cache folder."""
    chosen = os.environ.get("TRAINJOB_CACHE")
    if chosen:
        return Path(chosen).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "trainjob"


def state() -> Path:
    """One folder a user, in the temporary directory."""
    return Path(tempfile.gettempdir()).resolve() / f"trainjob-testbed-{os.getuid()}"


def mark() -> str:
    """What the names of this state folder's things on the machine end in: an interface, control groups."""
    return hashlib.sha256(str(state()).encode()).hexdigest()[:6]
