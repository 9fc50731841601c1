"""The cluster and namespace of a command, from --kubeconfig, --context and the environment."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import (
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)

from trainjob.cli.cluster.errors import NoCluster
from trainjob.cli.cluster.options import ClusterOptions
from trainjob.cli.cluster.server import Server
from trainjob.cluster.protocol import allow_deep_objects

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Connection:
    """An API server, and the namespace of a command.

    Attributes:
        namespace: that of the context, or `default`.
    """

    server: Server
    namespace: str


def connect(where: ClusterOptions, environ: Mapping[str, str] = os.environ) -> Connection:
    """Return the connection that the options select; no request is sent yet.

    Raises:
        NoCluster: there is no usable kubeconfig.
    """
    # Our own messages cover what urllib3 would log about retries and certificates.
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)
    allow_deep_objects()
    configuration = Configuration()
    configuration.retries = False
    files = where.kubeconfig or environ.get("KUBECONFIG") or str(Path("~/.kube/config"))
    try:
        namespace = _load(files, where, environ, configuration)
    except (
        ConfigException,
        OSError,
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
    ) as error:
        words = " ".join(str(error).split())
        if not words or isinstance(error, (TypeError, AttributeError, KeyError)):
            words = "it doesn't have the form of one"
        raise NoCluster(f"the kubeconfig {files} can't be used: {words}") from error
    if not configuration.verify_ssl:
        # The kubeconfig turns verification off; a warning at each request would bury the output.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    client = ApiClient(configuration)
    client.user_agent = "trainjob"
    return Connection(Server(client), namespace)


def _load(files: str, where: ClusterOptions, environ: Mapping[str, str], configuration: Any) -> str:
    present = [part for part in files.split(os.pathsep) if part and Path(part).expanduser().is_file()]
    if present:
        _check_context(files, where.context)
        with _complaints_raised():
            load_kube_config(files, context=where.context, client_configuration=configuration)
        return _namespace(files, where.context)
    if (
        where.kubeconfig is not None
        or where.context is not None
        or not environ.get("KUBERNETES_SERVICE_HOST")
    ):
        raise NoCluster(f"there is no kubeconfig {files}: name one by --kubeconfig or KUBECONFIG")
    load_incluster_config(client_configuration=configuration)
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.is_file() else "default"


class _Complaints(logging.Handler):
    """Raises errors that the client only logs, such as an exec plugin without credentials."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise the record as an exception."""
        raise ConfigException(record.getMessage())


@contextmanager
def _complaints_raised() -> Iterator[None]:
    handler = _Complaints(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _check_context(files: str, context: str | None) -> None:
    known = [str(c["name"]) for c in list_kube_config_contexts(files)[0]] if context else []
    if context and context not in known:
        raise NoCluster(
            f"there is no context {context!r} in the kubeconfig {files}; it has {', '.join(known)}"
        )


def _namespace(files: str, context: str | None) -> str:
    contexts, active = list_kube_config_contexts(files)
    chosen = next((c for c in contexts if c["name"] == context), active) if context else active
    return str((chosen.get("context") or {}).get("namespace") or "default")
