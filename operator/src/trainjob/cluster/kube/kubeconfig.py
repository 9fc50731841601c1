"""The part of a kubeconfig file that says how to reach one API server."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainjob.cluster.kube.access import Access, InvalidAccess

Entry = Mapping[str, Any]


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """Return the access that a kubeconfig file describes.

    Args:
        path: the file; names of files in it are relative to its folder.
        context: which of its contexts; None takes the current one.

    Raises:
        InvalidAccess: the file can't be read, lacks something, or proves who it is in a way that only
            kubectl can (a plugin).
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
    # The data wins over the file, as with kubectl.
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
