"""containerd with its own root, state, socket and configuration, and the client to talk to it."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.commands import run, succeeds
from testbed.component import Component
from testbed.debian import search_path, unpacked
from testbed.enclosure import Enclosure
from testbed.errors import TestbedError
from testbed.waiting import until

SOCKET = "/run/containerd/containerd.sock"  # in the enclosure, whose /run is its own
NAMESPACE = "k8s.io"  # where the kubelet's containerd looks for images
PAUSE = "localhost/pause:1"

CONFIG = """\
version = 2
root = "{root}"
state = "/run/containerd/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Without CAP_SYS_RESOURCE no process may make a process harder to kill than itself.
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni}"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def component(folder: Path, root: Path) -> Component:
    """containerd, serving on a socket in `folder`, with its images in `root`."""
    program = unpacked("containerd")
    config = folder / "containerd.toml"
    config.write_text(
        CONFIG.format(
            root=root,
            folder=folder,
            socket=SOCKET,
            pause=PAUSE,
            cni=unpacked("cni"),
            runc=unpacked("runc"),
        )
    )
    # It finds its shim, and that finds runc, by PATH.
    path = f"{program.parent}:{unpacked('runc').parent}:{search_path()}"
    return Component("containerd", (str(program), "--config", str(config)), {"PATH": path})


class Client:
    """`ctr`, for the containerd of an enclosure."""

    def __init__(self, enclosure: Enclosure) -> None:
        self._enclosure = enclosure
        seen_from_here = f"{enclosure.root}{SOCKET}"
        self._words = (str(unpacked("ctr")), "--address", seen_from_here, "--namespace", NAMESPACE)

    def wait(self) -> None:
        """Returns once it serves; raises a TestbedError with the end of its log if it has ended."""
        until(self._serves, what="an answer of containerd", seconds=30)

    def _serves(self) -> bool:
        self._enclosure.check("containerd")
        return succeeds((*self._words, "version"), timeout=5)

    def call(self, *words: str) -> str:
        """Runs one command and returns its stdout."""
        return run((*self._words, *words))

    @contextmanager
    def importing(self) -> Iterator[subprocess.Popen[bytes]]:
        """An import that reads an archive from its stdin; raises a TestbedError if it doesn't like it."""
        with subprocess.Popen(
            (*self._words, "images", "import", "-"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            yield process
            said, _ = process.communicate()
        if process.returncode != 0:
            raise TestbedError(f"containerd refuses an image:\n{said.decode(errors='replace')}")


def stop_gently(enclosure: Enclosure) -> None:
    """Ends containerd so that its data on disk is whole."""
    enclosure.signal("containerd", signal.SIGTERM)
    until(lambda: "containerd" not in enclosure.living(), what="the end of containerd", seconds=20)
