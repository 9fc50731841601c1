"""How the agents of a job and the controller know each other."""

from __future__ import annotations

import hashlib
import hmac


def job_token(key: bytes, uid: str) -> str:
    """Return the job's token, 64 hex digits: nobody without the controller's key can tell another job's.

    Args:
        key: the controller's own.
        uid: the job's.
    """
    return hmac.new(key, uid.encode(), hashlib.sha256).hexdigest()
