"""Where the API server is, and how the controller proves who it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class InvalidAccess(ValueError):
    """What is given doesn't say how to reach an API server; the message says what is missing."""


@dataclass(frozen=True)
class Access:
    """How to reach one API server. Of each pair of file and data one is given at most.

    Attributes:
        server: its address, such as `https://10.96.0.1:443`.
        ca_file: PEM file of the authorities that sign for it; without one the system's are asked.
        ca_data: the same as PEM text.
        token_file: file with the bearer token; it is read again and again, since tokens are rotated.
        token: the token itself.
        certificate_file: PEM file with the client's certificate.
        certificate_data: the same as PEM text.
        key_file: PEM file with the certificate's key.
        key_data: the same as PEM text.
        server_name: the name that the server's certificate must have, if not the address's.
        insecure: whether to trust any server.
        namespace: the namespace that whoever gave this access works in.
    """

    server: str
    ca_file: Path | None = None
    ca_data: str | None = None
    token_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    certificate_file: Path | None = None
    certificate_data: str | None = None
    key_file: Path | None = None
    key_data: str | None = field(default=None, repr=False)
    server_name: str | None = None
    insecure: bool = False
    namespace: str = "default"


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access that every pod with a service account has.

    Raises:
        InvalidAccess: this is no such pod.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    token, ca = folder / "token", folder / "ca.crt"
    if not host or not port:
        raise InvalidAccess("KUBERNETES_SERVICE_HOST and _PORT are not set: not in a pod; name a kubeconfig")
    for file in (token, ca):
        if not file.is_file():
            raise InvalidAccess(f"{file} is missing: the pod has no service-account token")
    namespace = folder / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_file=ca,
        token_file=token,
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
    )
