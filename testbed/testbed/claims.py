"""Storage that several pods share, on a cluster without a provisioner: a folder of this machine."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from testbed.cluster import Cluster
from testbed.nodes import JoinedNode


@dataclass(frozen=True)
class Claim:
    """A bound PersistentVolumeClaim."""

    name: str
    namespace: str
    folder: Path | None  # its content, as seen from here; None where the cluster keeps it elsewhere


class NodeCluster(Cluster):
    """A cluster that runs pods.

    Attributes:
        folder: Where the testbed keeps its files (logs/, volumes/); None for any other cluster.
        joined: The testbed's nodes beside the first one.
    """

    def __init__(self, kubeconfig: Path, *, folder: Path | None = None, joined: tuple[JoinedNode, ...] = (),
                 kubectl: Path | str = "kubectl", helm: Path | str = "helm") -> None:  # fmt: skip
        super().__init__(kubeconfig, kubectl=kubectl, helm=helm)
        self.folder = folder
        self.joined = joined

    def claim(self, namespace: str, name: str = "training") -> Claim:
        """Makes a ReadWriteMany claim; pods' fsGroup is honoured.

        The testbed has no provisioner: there it is a `local` volume on an empty folder of this machine, which
        all of its nodes see. Elsewhere
        the default StorageClass provides it, ReadWriteOnce if that is all it can: enough for one node.
        """
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        folder = None
        if self.folder is not None:
            volume = f"{namespace}-{name}-{uuid.uuid4().hex[:6]}"
            folder = self.folder / "volumes" / volume
            folder.mkdir(parents=True)
            self.apply(_volume(volume, folder))
            spec |= {"volumeName": volume, "storageClassName": ""}
        elif not self.has_shared_storage():
            spec["accessModes"] = ["ReadWriteOnce"]
        self.apply(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec},
            namespace=namespace,
        )
        return Claim(name, namespace, folder)

    def delete_namespace(self, name: str) -> None:
        """Deletes a namespace. Its pods take seconds to go, and its volumes go with the cluster."""
        self.delete("namespace", name, wait=False)

    def has_shared_storage(self) -> bool:
        """Whether pods on several nodes can write to one claim.

        kind's provisioner is the one that people have and that can't share.
        """
        if self.folder is not None:
            return True
        provisioners = [each["provisioner"] for each in self.get("storageclass")["items"]]
        return "rancher.io/local-path" not in provisioners


def _volume(name: str, folder: Path) -> dict[str, object]:
    on_any_node = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "", "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_any_node]}]}},
        },
    }  # fmt: skip
