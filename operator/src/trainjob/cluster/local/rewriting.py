"""Text written for a cluster, reworded for this machine: addresses and the paths of mounted volumes."""

import re
from collections.abc import Mapping
from pathlib import Path

from trainjob.api import AGENT_PORT, PORT
from trainjob.cluster.local.ports import ReplicaPorts

LOOPBACK = "127.0.0.1"

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# A path starts where no name, variable or other path leads up to it, and ends where its last part ends.
_PATH_START = r"(?:(?<![\w./\-~)}*])|(?<=file://))"
_PATH_END = r"(?![\w.\-])"


def find_hosts(text: str, *, subdomain: str, namespace: str) -> tuple[str, ...]:
    """Return the hostnames whose addresses occur in `text`, each once, in order."""
    found = (match.group("host") for match in _address(subdomain, namespace).finditer(text))
    return tuple(dict.fromkeys(found))


def rewrite_addresses(text: str, *, subdomain: str, namespace: str, ports: Mapping[str, ReplicaPorts]) -> str:
    """Turn `<host>.<subdomain>.<namespace>.svc:2222` into the loopback address and that host's own port.

    Every pod has an address of its own on a cluster and all share one here, so only the port can tell them
    apart: TensorFlow's and the agent's are replaced. Another port stays: the program that listens on it does
    not learn of the change.
    Hosts missing from `ports` are left alone.
    """

    def _local(match: re.Match[str]) -> str:
        host, port = match.group("host"), match.group("port")
        if host not in ports:
            return match.group()
        if port is None:
            return LOOPBACK
        local = {str(PORT): ports[host].tensorflow, str(AGENT_PORT): ports[host].agent}
        return f"{LOOPBACK}:{local.get(port, port)}"

    return _address(subdomain, namespace).sub(_local, text)


def rewrite_paths(text: str, folders: Mapping[str, Path]) -> str:
    """Replace each path under a mounted volume by its counterpart here.

    A mount path counts only at path boundaries: `/output` is found in `--dir=/output/a` and not in
    `/output-2`, `gs://bucket/output` or `$HOME/output`. The longest mount path wins, as in a mount table.

    Args:
        text: an argument or the value of a variable.
        folders: the folder on this machine of each mount path.
    """
    mounts = {path.rstrip("/"): str(folder) for path, folder in folders.items() if path.strip("/")}
    if not mounts:
        return text
    longest_first = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    pattern = re.compile(f"{_PATH_START}({longest_first}){_PATH_END}")
    return pattern.sub(lambda match: mounts[match.group(1)], text)


def _address(subdomain: str, namespace: str) -> re.Pattern[str]:
    domain = re.escape(f".{subdomain}.{namespace}.svc")
    return re.compile(
        rf"(?<![\w.\-])(?P<host>{_LABEL}){domain}(?:\.cluster\.local)?(?![\w\-]|\.\w)(?::(?P<port>\d+))?"
    )
