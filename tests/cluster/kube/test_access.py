from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainjob.cluster.kube.config import (
    REREAD_SECONDS,
    Access,
    InvalidAccess,
    TokenFile,
    build_tls,
    from_kubeconfig,
    in_cluster,
)

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def write_config(folder: Path, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> Path:
    config = {
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", **more}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://example.com:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in (("token", "abc"), ("ca.crt", "pem"), ("namespace", "trainjob-system")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_a_pod_knows_its_api_server(account: Path, host: str, server: str) -> None:
    access = in_cluster({**IN_POD, "KUBERNETES_SERVICE_HOST": host}, account)
    assert access.server == server
    assert access.token_file == account / "token"
    assert access.ca_file == account / "ca.crt"
    assert access.namespace == "trainjob-system"


def test_outside_a_pod_it_says_what_to_do(account: Path) -> None:
    with pytest.raises(InvalidAccess, match="name a kubeconfig"):
        in_cluster({}, account)


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_an_account_says_so(account: Path, missing: str) -> None:
    (account / missing).unlink()
    with pytest.raises(InvalidAccess, match="no service-account token"):
        in_cluster(IN_POD, account)


def test_a_kubeconfig_with_data(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        {
            "certificate-authority-data": encoded("ca"),
            "certificate-authority": "ignored",
            "tls-server-name": "n",
        },
        {"client-certificate-data": encoded("cert"), "client-key-data": encoded("key")},
        namespace="lab",
    )
    assert from_kubeconfig(path) == Access(
        server="https://example.com:6443",
        ca_data="ca",
        certificate_data="cert",
        key_data="key",
        server_name="n",
        namespace="lab",
    )


def test_files_are_named_from_the_kubeconfigs_folder(tmp_path: Path) -> None:
    user = {"client-certificate": "cert.pem", "client-key": "/abs/key.pem", "tokenFile": "token"}
    access = from_kubeconfig(write_config(tmp_path, {"certificate-authority": "ca.pem"}, user))
    assert access.ca_file == tmp_path / "ca.pem"
    assert access.certificate_file == tmp_path / "cert.pem"
    assert access.key_file == Path("/abs/key.pem")
    assert access.token_file == tmp_path / "token"


def test_another_context_may_be_named(tmp_path: Path) -> None:
    path = write_config(tmp_path, {}, {"tokenFile": "abc"})
    assert from_kubeconfig(path, "main").token_file == tmp_path / "abc"
    with pytest.raises(InvalidAccess, match="no context 'other'"):
        from_kubeconfig(path, "other")


@pytest.mark.parametrize(
    ("cluster", "user", "words"),
    [
        ({}, {"exec": {"command": "aws"}}, "credential plugins"),
        ({}, {"auth-provider": {"name": "gcp"}}, "credential plugins"),
        ({}, {"username": "me", "password": "x"}, "passwords"),
        ({"proxy-url": "http://proxy"}, {}, "proxy-url"),
        ({"server": ""}, {}, "no server"),
        ({"certificate-authority-data": "%%"}, {}, "not base64"),
    ],
)
def test_what_can_not_be_used_is_named(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidAccess, match=words):
        from_kubeconfig(write_config(tmp_path, cluster, user))


@pytest.mark.parametrize(
    ("text", "words"), [("{", "no YAML"), ("[]", "no kubeconfig"), ("{}", "no current-context")]
)
def test_what_is_no_kubeconfig_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidAccess, match=words):
        from_kubeconfig(path)


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidAccess, match="can't be read"):
        from_kubeconfig(tmp_path / "nothing")


def test_secrets_are_not_shown() -> None:
    shown = repr(Access(server="https://x", token="a secret", key_data="a secret"))  # noqa: S106
    assert "secret" not in shown


def test_certificates_that_can_not_be_used_are_named() -> None:
    with pytest.raises(InvalidAccess, match="https://x"):
        build_tls(Access(server="https://x", ca_data="no PEM"))
    with pytest.raises(InvalidAccess, match="https://x"):
        build_tls(Access(server="https://x", certificate_data="no PEM", key_data="no PEM"))


def test_servers_are_checked_unless_told_otherwise() -> None:
    assert build_tls(Access(server="https://x")).verify_mode is ssl.CERT_REQUIRED
    assert build_tls(Access(server="https://x", insecure=True)).verify_mode is ssl.CERT_NONE


def test_a_token_is_read_again(tmp_path: Path) -> None:
    file, now = tmp_path / "token", [0.0]
    file.write_text("one\n")
    token = TokenFile(file, lambda: now[0])
    assert token.current() == "one"
    file.write_text("two\n")
    now[0] = REREAD_SECONDS - 1
    assert token.current() == "one"
    now[0] = REREAD_SECONDS
    assert token.current() == "two"
    assert not token.reread()
    file.unlink()
    now[0] *= 3
    assert token.current() == "two"
