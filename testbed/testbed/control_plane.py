"""etcd, API server and controller-manager: keys, kubeconfigs and command lines, the same in both tiers."""

from dataclasses import dataclass
from pathlib import Path

from testbed import kubeconfig
from testbed.component import Component
from testbed.debian import unpacked
from testbed.pki import Authority
from testbed.programs import RARELY_COLLECTED, program


@dataclass(frozen=True)
class Addresses:
    """Where a control plane listens, and which addresses it gives to Services and pods."""

    host: str  # the API server's; etcd is on 127.0.0.1 beside it
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    services: str  # a network, such as 10.96.0.0/16
    kubernetes_service: str  # its first address, that of the Service `kubernetes`

    @property
    def server(self) -> str:
        return f"https://{self.host}:{self.api_port}"

    @property
    def etcd(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"


@dataclass(frozen=True)
class Options:
    """In what the tiers differ."""

    api_server: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ("*",)
    controller_manager: tuple[str, ...] = ()


class ControlPlane:
    """The files of one control plane in a folder, and the components that run it."""

    def __init__(self, folder: Path, addresses: Addresses, options: Options) -> None:
        self.folder = folder
        self.addresses = addresses
        self._options = options
        self._authority = Authority(folder / "pki")
        self._token_keys = self._authority.key_pair("service-accounts")
        self.admin = self.kubeconfig("admin", groups=("system:masters",), file=folder / "kubeconfig")

    def kubeconfig(self, user: str, *, groups: tuple[str, ...] = (), file: Path | None = None) -> Path:
        """A kubeconfig for a user that the API server knows by certificate."""
        pair = self._authority.issue(user, groups=groups)
        target = file or self.folder / f"{user.replace(':', '-')}.kubeconfig"
        return kubeconfig.write(
            target, server=self.addresses.server, authority=self._authority.certificate,
            user=kubeconfig.certificate(pair),
        )  # fmt: skip

    @property
    def authority(self) -> Path:
        """The cluster's certificate authority."""
        return self._authority.certificate

    def serving_pair(self, user: str, names: tuple[str, ...]) -> tuple[Path, Path]:
        """A certificate and key for another server of the cluster, such as the kubelet's."""
        pair = self._authority.issue(user, names=names)
        return pair.certificate, pair.key

    def etcd(self) -> Component:
        """Without fsync: its data need not outlive a power cut."""
        where = self.addresses
        peer = f"http://127.0.0.1:{where.etcd_peer_port}"
        words = {
            "name": "testbed", "data-dir": self.folder / "etcd", "unsafe-no-fsync": "true",
            "listen-client-urls": where.etcd, "advertise-client-urls": where.etcd,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
            "initial-cluster": f"testbed={peer}",
            "snapshot-count": 100_000, "quota-backend-bytes": 2 << 30, "log-level": "warn",
        }  # fmt: skip
        return Component("etcd", (str(unpacked("etcd")), *flags(words)), RARELY_COLLECTED)

    def api_server(self) -> Component:
        """With TLS, RBAC, node authorization, service-account tokens and the default admission plugins.

        Other API servers can be part of it, as `front-proxy` says to them for whom a request is.
        """
        where = self.addresses
        serving = self._authority.issue(
            "kube-apiserver",
            names=[
                "DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc",
                "DNS:kubernetes.default.svc.cluster.local", f"IP:{where.kubernetes_service}",
                f"IP:{where.host}",
                *([] if where.host == "127.0.0.1" else ["IP:127.0.0.1"]),
            ],
        )  # fmt: skip
        to_kubelet = self._authority.issue("kube-apiserver-kubelet-client", groups=["system:masters"])
        front = self._authority.issue("front-proxy")
        words = {
            "etcd-servers": where.etcd, "bind-address": where.host, "secure-port": where.api_port,
            "advertise-address": where.host, "service-cluster-ip-range": where.services,
            "tls-cert-file": serving.certificate, "tls-private-key-file": serving.key,
            "client-ca-file": self.authority,
            "authorization-mode": "Node,RBAC", "enable-admission-plugins": "NodeRestriction",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": self._token_keys.certificate,
            "service-account-signing-key-file": self._token_keys.key,
            "kubelet-client-certificate": to_kubelet.certificate, "kubelet-client-key": to_kubelet.key,
            "proxy-client-cert-file": front.certificate, "proxy-client-key-file": front.key,
            "requestheader-client-ca-file": self.authority, "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "kubelet-preferred-address-types": "InternalIP", "cert-dir": self.folder / "pki",
            "profiling": "false", "v": 1,
        }  # fmt: skip
        return Component(
            "kube-apiserver",
            (str(program("kube-apiserver")), *flags(words), *self._options.api_server),
            RARELY_COLLECTED,
        )

    def controller_manager(self) -> Component:
        """Each controller with its own service account, as real clusters have it."""
        words = {
            "kubeconfig": self.kubeconfig("system:kube-controller-manager"),
            "controllers": ",".join(self._options.controllers), "leader-elect": "false",
            "use-service-account-credentials": "true", "root-ca-file": self.authority,
            "service-account-private-key-file": self._token_keys.key, "secure-port": 0,
            "kube-api-qps": 200, "kube-api-burst": 400, "v": 1,
        }  # fmt: skip
        return Component(
            "kube-controller-manager",
            (str(program("kube-controller-manager")), *flags(words), *self._options.controller_manager),
            RARELY_COLLECTED,
        )


def flags(words: dict[str, object]) -> tuple[str, ...]:
    """A command line's options, in Go's spelling."""
    return tuple(f"--{name}={value}" for name, value in words.items())
