"""The fake API server: the one that every test of a client of Kubernetes has.

`FakeApiServer` serves over real HTTP, `Kubelet` runs its pods, `Havoc` spoils its answers, or those of a
proxy in front of a real one. The modules behind this one are imported here alone.
"""

from support.kube.api_server.addresses import merge, read_path
from support.kube.api_server.answers import failing, status_object
from support.kube.api_server.faulty import FaultyServer
from support.kube.api_server.havoc import Havoc
from support.kube.api_server.kubelet import Kubelet
from support.kube.api_server.rules import Seen
from support.kube.api_server.server import FakeApiServer
from support.kube.api_server.storage import DEEP

__all__ = [
    "DEEP",
    "FakeApiServer",
    "FaultyServer",
    "Havoc",
    "Kubelet",
    "Seen",
    "failing",
    "merge",
    "read_path",
    "status_object",
]
