"""Keys and certificates of one cluster, made by openssl when it starts and deleted with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.commands import run

DAYS = "30"
CONFIG = "[req]\ndistinguished_name=dn\n[dn]\n"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder: it signs the certificates of the cluster's parts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, mode=0o700)
        self._config = folder / "openssl.cnf"
        self._config.write_text(CONFIG)
        self._own = self._pair("ca")
        self._openssl(
            "req", "-x509", "-new", "-key", self._own.key, "-subj", "/CN=trainjob-testbed", "-days", DAYS,
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
            "-out", self._own.certificate,
        )  # fmt: skip

    @property
    def certificate(self) -> Path:
        """What clients trust."""
        return self._own.certificate

    def key_pair(self, name: str) -> Pair:
        """A private and a public key without a certificate, such as signs service-account tokens."""
        pair = Pair(self._folder / f"{name}.pub", self._key(name))
        self._openssl("pkey", "-in", pair.key, "-pubout", "-out", pair.certificate)
        return pair

    def issue(self, user: str, *, groups: Sequence[str] = (), names: Sequence[str] = ()) -> Pair:
        """A certificate for a client or, with `names` (DNS:… and IP:…), also for a server."""
        file = user.replace(":", "-").replace("/", "-")
        pair = self._pair(file)
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        request = self._folder / f"{file}.csr"
        self._openssl("req", "-new", "-key", pair.key, "-subj", subject, "-out", request)
        extensions = self._folder / f"{file}.ext"
        usage = "clientAuth,serverAuth" if names else "clientAuth"
        lines = ["basicConstraints=CA:FALSE", f"extendedKeyUsage={usage}"]
        lines += [f"subjectAltName={','.join(names)}"] if names else []
        extensions.write_text("\n".join(lines) + "\n")
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._own.key,
            "-CAcreateserial", "-CAserial", self._folder / "serial", "-days", DAYS, "-extfile", extensions,
            "-out", pair.certificate,
        )  # fmt: skip
        return pair

    def _pair(self, name: str) -> Pair:
        return Pair(self._folder / f"{name}.crt", self._key(name))

    def _key(self, name: str) -> Path:
        key = self._folder / f"{name}.key"
        self._openssl(
            "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key,
        )  # fmt: skip
        return key

    def _openssl(self, *words: str | Path) -> None:
        run(["openssl", *words], env={"OPENSSL_CONF": str(self._config)})
