"""The address of the API server, and the credentials for it."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

# The bearer token: the kubelet rotates it, so its file is read again.


REREAD_SECONDS = 30.0


class TokenFile:
    """A file with a token.

    Args:
        path: the file.
        time: returns the seconds of a monotonic clock.
    """

    def __init__(self, path: Path, time: Callable[[], float]) -> None:
        self._path = path
        self._time = time
        self._token = ""
        self._read_at = float("-inf")

    def current(self) -> str:
        """Return the token, at most half a minute old."""
        if self._time() - self._read_at >= REREAD_SECONDS:
            self.reread()
        return self._token

    def reread(self) -> bool:
        """Read the file now and return whether the token changed; the old one stays if this fails."""
        self._read_at = self._time()
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return False  # the kubelet is about to replace it, or the API server will respond with 401
        changed = token != self._token
        self._token = token
        return changed


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class InvalidAccess(ValueError):
    """The settings don't say how to reach an API server; the message says what is missing."""


@dataclass(frozen=True)
class Access:
    """How to reach one API server. At most one of each pair of file and data is set.

    Attributes:
        server: its address, such as `https://10.96.0.1:443`.
        ca_file: PEM file of the authorities that sign its certificate; the system's are used without one.
        ca_data: the same as PEM text.
        token_file: file with the bearer token; it is read repeatedly, since tokens are rotated.
        token: the token itself.
        certificate_file: PEM file with the client's certificate.
        certificate_data: the same as PEM text.
        key_file: PEM file with the certificate's key.
        key_data: the same as PEM text.
        server_name: the name that the server's certificate must have, if not the address's.
        insecure: whether to trust any server.
        namespace: the namespace of the pod or of the kubeconfig's context.
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
        InvalidAccess: this process runs in no such pod.
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


# TLS.


def build_tls(access: Access) -> ssl.SSLContext:
    """Return the TLS context of the connections.

    Raises:
        InvalidAccess: a certificate or key can't be read.
    """
    try:
        context = ssl.create_default_context(cafile=_path(access.ca_file), cadata=access.ca_data)
        # Clusters' own authorities are often older than the strict rules for public ones.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _load_client_certificate(context, access)
    except (OSError, ssl.SSLError) as error:
        raise InvalidAccess(f"certificates for {access.server} can't be used: {error}") from error
    return context


def _load_client_certificate(context: ssl.SSLContext, access: Access) -> None:
    if access.certificate_file is None and access.certificate_data is None:
        return
    # Python's ssl reads keys from files only: only the owner can read this one, and it is deleted at once.
    with tempfile.TemporaryDirectory(prefix="trainjob-") as folder:
        certificate = access.certificate_file or _write(folder, "certificate", access.certificate_data)
        key = access.key_file or (_write(folder, "key", access.key_data) if access.key_data else None)
        context.load_cert_chain(certificate, key)


def _write(folder: str, name: str, data: str | None) -> Path:
    path = Path(folder, name)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(data or "")
    return path


def _path(file: Path | None) -> str | None:
    return str(file) if file is not None else None


# Kubeconfig files.


Entry = Mapping[str, Any]


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """Return the access that a kubeconfig file describes.

    Args:
        path: the file; names of files in it are relative to its folder.
        context: name of the context; None for the current one.

    Raises:
        InvalidAccess: the file can't be read, lacks something, or needs what only kubectl supports, such as
            a credential plugin.
    """
    config = _read(path)
    name = context or config.get("current-context")
    if not name:
        raise InvalidAccess(f"{path} has no current-context: name a context")
    chosen = _entry(config, "contexts", "context", str(name), path)
    cluster = _entry(config, "clusters", "cluster", str(chosen.get("cluster")), path)
    user = _entry(config, "users", "user", str(chosen["user"]), path) if chosen.get("user") else {}
    _refuse_unknown_ways(cluster, user, path)
    server = cluster.get("server")
    if not server:
        raise InvalidAccess(f"{path}: the cluster of context {name!r} has no server")
    return Access(
        server=str(server).rstrip("/"),
        ca_file=_file(cluster, "certificate-authority", path),
        ca_data=_data(cluster, "certificate-authority-data", path),
        token_file=_file(user, "tokenFile", path),
        token=user.get("token"),
        certificate_file=_file(user, "client-certificate", path),
        certificate_data=_data(user, "client-certificate-data", path),
        key_file=_file(user, "client-key", path),
        key_data=_data(user, "client-key-data", path),
        server_name=cluster.get("tls-server-name"),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        namespace=str(chosen.get("namespace") or "default"),
    )


def _read(path: Path) -> Entry:
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidAccess(f"{path} can't be read: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidAccess(f"{path} is no YAML: {error}") from error
    if not isinstance(config, Mapping):
        raise InvalidAccess(f"{path} is no kubeconfig")
    return config


def _entry(config: Entry, plural: str, singular: str, name: str, path: Path) -> Entry:
    for entry in config.get(plural) or ():
        if entry.get("name") == name:
            found: Entry = entry.get(singular) or {}
            return found
    raise InvalidAccess(f"{path} has no {singular} {name!r}")


def _refuse_unknown_ways(cluster: Entry, user: Entry, path: Path) -> None:
    for word in ("exec", "auth-provider"):
        if word in user:
            raise InvalidAccess(
                f"{path}: the controller can't run credential plugins ({word}); "
                "give it a token, a tokenFile or a client certificate"
            )
    if user.get("username"):
        raise InvalidAccess(f"{path}: user names with passwords are not supported; give a token")
    if cluster.get("proxy-url"):
        raise InvalidAccess(f"{path}: proxy-url is not supported")


def _file(entry: Entry, key: str, path: Path) -> Path | None:
    # The data takes precedence over the file, as with kubectl.
    if not entry.get(key) or entry.get(f"{key}-data"):
        return None
    return path.parent / str(entry[key])


def _data(entry: Entry, key: str, path: Path) -> str | None:
    if not entry.get(key):
        return None
    try:
        return base64.b64decode(str(entry[key]), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidAccess(f"{path}: {key} is not base64 of PEM text") from error
