"""Kubeconfig files: where an API server is, and as whom to talk to it."""

import base64
import json
from pathlib import Path
from typing import Any

from testbed.pki import Pair


def write(
    file: Path, *, server: str, authority: Path, user: dict[str, Any], namespace: str = "default"
) -> Path:
    """Writes a kubeconfig that holds all it needs, and that only its owner can read. JSON is YAML."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "contexts": [
            {"name": "testbed", "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace}}
        ],
        "clusters": [
            {
                "name": "testbed",
                "cluster": {"server": server, "certificate-authority-data": _encoded(authority)},
            }
        ],
        "users": [{"name": "testbed", "user": user}],
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(content, indent=2) + "\n")
    return file


def certificate(pair: Pair) -> dict[str, Any]:
    """A user known by a client certificate."""
    return {"client-certificate-data": _encoded(pair.certificate), "client-key-data": _encoded(pair.key)}


def token(text: str) -> dict[str, Any]:
    """A user known by a bearer token, such as a service account."""
    return {"token": text}


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
