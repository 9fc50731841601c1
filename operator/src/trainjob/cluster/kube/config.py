"""The address of the API server, and the credentials for it."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


class InvalidAccess(ValueError):
    """The settings don't say how to reach an API server; the message says what is missing."""


ReadToken = Callable[[bool], str]
"""Returns the value of the `Authorization` header. True: the API server has refused the last one."""


@dataclass(frozen=True)
class Access:
    """How to reach one API server.

    Attributes:
        server: its address, such as `https://10.96.0.1:443`.
        ca_file: PEM file of the authorities that sign its certificate; the system's are used without one.
        certificate_file: PEM file with the client's certificate.
        key_file: PEM file with the certificate's key.
        read_token: returns the bearer token; it is called repeatedly, since tokens are renewed.
        server_name: the name that the server's certificate must have, if not the address's.
        insecure: whether to trust any server.
        proxy: the address of the proxy to use.
        namespace: the namespace of the pod or of the kubeconfig's context.
    """

    server: str
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    read_token: ReadToken | None = field(default=None, repr=False, compare=False)
    server_name: str | None = None
    insecure: bool = False
    proxy: str | None = None
    namespace: str = "default"


# The bearer token: the kubelet rotates it, and credential plugins renew it.


REREAD_SECONDS = 30.0


class Token:
    """The current token.

    Args:
        read: returns it; called in a thread, as a credential plugin takes seconds. None: there is none.
        time: returns the seconds of a monotonic clock.
    """

    def __init__(self, read: ReadToken | None, time: Callable[[], float]) -> None:
        self._read = read
        self._time = time
        self._value = ""
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def current(self) -> str:
        """Return the value of the `Authorization` header, at most half a minute old; empty for none."""
        is_renewed = bool(self._value) and self._lock.locked()  # the old one serves others meanwhile
        if self._read is not None and self._is_old() and not is_renewed:
            async with self._lock:
                if self._is_old():
                    await self._reread(self._read, refused=False)
        return self._value

    async def renew(self, refused: str) -> bool:
        """Read the token again after the API server has refused this one; return whether it is another."""
        async with self._lock:
            if self._read is not None and self._value == refused:
                await self._reread(self._read, refused=True)
        return self._value != refused

    def _is_old(self) -> bool:
        return self._time() - self._read_at >= REREAD_SECONDS

    async def _reread(self, read: ReadToken, *, refused: bool) -> None:
        # The old one stays if this fails: the kubelet is about to replace the file, or a plugin fails.
        with suppress(OSError, ValueError):
            self._value = await asyncio.to_thread(read, refused)
        self._read_at = self._time()


def read_token_file(path: Path, refused: bool = False) -> str:
    """Return the value of the header for the token in a file."""
    del refused
    return f"Bearer {path.read_text().strip()}"


# Pods.


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
        read_token=partial(read_token_file, token),
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
    )


# Kubeconfig files, read by the official client: contexts, credential plugins, OIDC, tokens that are renewed.


def from_kubeconfig(files: str | Path, context: str | None = None) -> Access:
    """Return the access that kubeconfig files describe; runs a credential plugin if they name one.

    Args:
        files: one file or several, as in $KUBECONFIG; names of files in one are relative to its folder.
        context: name of the context; None for the current one.

    Raises:
        InvalidAccess: a file can't be read, or lacks something.
    """
    return _Kubeconfig(str(files), context).access()


class _Kubeconfig:
    """One context; the official client renews its tokens that expire."""

    def __init__(self, files: str, context: str | None) -> None:
        self._files = files
        self._context = context
        self._configuration: Any = None
        self._cluster: Mapping[str, Any] = {}
        self._namespace = "default"
        self._load()

    def access(self) -> Access:
        configuration = self._configuration
        server = str(configuration.host).rstrip("/")
        return Access(
            server=server,
            ca_file=_path(configuration.ssl_ca_cert),
            certificate_file=_path(configuration.cert_file),
            key_file=_path(configuration.key_file),
            read_token=self._read_token if configuration.api_key else None,
            server_name=configuration.tls_server_name,
            insecure=not configuration.verify_ssl,
            proxy=self._cluster.get("proxy-url") or _environment_proxy(server),
            namespace=self._namespace,
        )

    def _read_token(self, refused: bool) -> str:
        if refused:
            self._load()
        # Version 36 of the client has renamed the key.
        name = "BearerToken" if "BearerToken" in self._configuration.api_key else "authorization"
        return str(self._configuration.get_api_key_with_prefix(name) or "")

    def _load(self) -> None:
        try:
            from kubernetes.client import Configuration  # noqa: PLC0415 - slow, and not in the controller's image
            from kubernetes.config import kube_config  # noqa: PLC0415
        except ModuleNotFoundError as missing:
            raise InvalidAccess("kubeconfigs are read by the package `kubernetes`: install it") from missing
        try:
            merged = kube_config.KubeConfigMerger(self._files).config
            chosen = self._choose(merged.value if merged is not None else {})
            configuration = Configuration()
            with _complaints_raised():
                kube_config.load_kube_config(
                    self._files, context=self._context, client_configuration=configuration
                )
        except InvalidAccess:
            raise
        except Exception as error:
            # The official client checks little: a wrong form ends in a KeyError or the like.
            words = " ".join(str(error).split())
            if not words or isinstance(error, (TypeError, AttributeError, KeyError)):
                words = "it doesn't have the form of one"
            raise InvalidAccess(f"the kubeconfig {self._files} can't be used: {words}") from error
        self._configuration = configuration
        self._namespace = str(chosen.get("namespace") or "default")

    def _choose(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the context, and keep its cluster."""
        contexts, clusters = (
            {str(entry.value["name"]): entry.value.get(kind) or {} for entry in content.get(f"{kind}s") or ()}
            for kind in ("context", "cluster")
        )
        if self._context and self._context not in contexts:
            known = ", ".join(contexts)
            raise InvalidAccess(
                f"there is no context {self._context!r} in the kubeconfig {self._files}; it has {known}"
            )
        chosen: Mapping[str, Any] = contexts.get(str(self._context or content.get("current-context")), {})
        self._cluster = clusters.get(str(chosen.get("cluster")), {})
        return chosen


class _Complaints(logging.Handler):
    """Raises errors that the client only logs, such as a credential plugin without credentials."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise the record as an exception."""
        raise ValueError(record.getMessage())


@contextmanager
def _complaints_raised() -> Iterator[None]:
    handler = _Complaints(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _environment_proxy(server: str) -> str | None:
    address = urlsplit(server)
    if not address.hostname or proxy_bypass(address.hostname):
        return None
    return getproxies().get(address.scheme)


def _path(file: str | None) -> Path | None:
    return Path(file) if file else None


# TLS.


def build_tls(access: Access) -> ssl.SSLContext:
    """Return the TLS context of the connections.

    Raises:
        InvalidAccess: a certificate or key can't be read.
    """
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        # Clusters' own authorities are often older than the strict rules for public ones.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate_file is not None:
            context.load_cert_chain(access.certificate_file, access.key_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidAccess(f"certificates for {access.server} can't be used: {error}") from error
    return context
