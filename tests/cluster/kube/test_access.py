from __future__ import annotations

import asyncio
import base64
import ssl
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainjob.cluster.kube.config import (
    REREAD_SECONDS,
    Access,
    InvalidAccess,
    ReadToken,
    Token,
    build_tls,
    from_kubeconfig,
    in_cluster,
    read_token_file,
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
    assert access.read_token is not None
    assert access.read_token(False) == "Bearer abc"
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
        {"certificate-authority-data": encoded("ca"), "tls-server-name": "n", "proxy-url": "http://proxy"},
        {"client-certificate-data": encoded("cert"), "client-key-data": encoded("key")},
        namespace="lab",
    )
    access = from_kubeconfig(path)
    assert (access.server, access.server_name) == ("https://example.com:6443", "n")
    assert (access.namespace, access.proxy, access.read_token) == ("lab", "http://proxy", None)
    files = (access.ca_file, access.certificate_file, access.key_file)
    assert [file.read_text() for file in files if file is not None] == ["ca", "cert", "key"]


def test_files_are_named_from_the_kubeconfigs_folder(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem", "ca.pem", "token"):
        (tmp_path / name).write_text(name)
    user = {"client-certificate": "cert.pem", "client-key": str(tmp_path / "key.pem"), "tokenFile": "token"}
    access = from_kubeconfig(write_config(tmp_path, {"certificate-authority": "ca.pem"}, user))
    assert access.ca_file == tmp_path / "ca.pem"
    assert access.certificate_file == tmp_path / "cert.pem"
    assert access.key_file == tmp_path / "key.pem"
    assert access.read_token is not None
    assert access.read_token(False) == "Bearer token"


def test_another_context_may_be_named(tmp_path: Path) -> None:
    path = write_config(tmp_path, {}, {"token": "abc"})
    assert from_kubeconfig(path, "main").server == "https://example.com:6443"
    with pytest.raises(InvalidAccess, match=r"no context 'other' in the kubeconfig .*; it has main"):
        from_kubeconfig(path, "other")


PLUGIN = """#!/bin/sh
echo run >> "$0.runs"
expiry=$(cat "$0.expiry")
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
 "status": {"token": "'$(wc -l < "$0.runs" | tr -d ' ')'", "expirationTimestamp": "'$expiry'"}}'
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A credential plugin, whose token is how often it has run."""
    path = tmp_path / "plugin"
    path.write_text(PLUGIN)
    path.chmod(0o700)
    path.with_suffix(".expiry").write_text("2999-01-01T00:00:00Z")
    return path


def read_plugin_token(folder: Path, plugin: Path) -> ReadToken:
    version = "client.authentication.k8s.io/v1"
    user = {"exec": {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}}
    read = from_kubeconfig(write_config(folder, {}, user)).read_token
    assert read is not None
    return read


def test_a_credential_plugin_runs_again_when_its_token_expires(tmp_path: Path, plugin: Path) -> None:
    plugin.with_suffix(".expiry").write_text("2020-01-01T00:00:00Z")
    read = read_plugin_token(tmp_path, plugin)
    assert read(False) == "Bearer 2"
    plugin.with_suffix(".expiry").write_text("2999-01-01T00:00:00Z")
    assert [read(False), read(False), read(False)] == ["Bearer 3"] * 3


def test_a_credential_plugin_runs_again_when_its_token_is_refused(tmp_path: Path, plugin: Path) -> None:
    read = read_plugin_token(tmp_path, plugin)
    assert [read(False), read(True), read(False)] == ["Bearer 1", "Bearer 2", "Bearer 2"]


def test_a_credential_plugin_that_fails_is_named(tmp_path: Path, plugin: Path) -> None:
    plugin.write_text("#!/bin/sh\necho no network >&2; exit 3\n")
    with pytest.raises(InvalidAccess, match=r"can't be used: .*(3|no network)"):
        read_plugin_token(tmp_path, plugin)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "can't be used: while parsing"),
        ("[]", "doesn't have the form"),
        ("{}", "can't be used"),
        ("current-context: x", "can't be used"),
    ],
)
def test_what_is_no_kubeconfig_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidAccess, match=words):
        from_kubeconfig(path)


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidAccess, match="nothing can't be used"):
        from_kubeconfig(tmp_path / "nothing")


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(Access(server="https://x", read_token=lambda _: "a secret"))


def test_certificates_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text("no PEM")
    with pytest.raises(InvalidAccess, match="https://x"):
        build_tls(Access(server="https://x", ca_file=tmp_path / "pem"))
    with pytest.raises(InvalidAccess, match="https://x"):
        build_tls(Access(server="https://x", certificate_file=tmp_path / "pem", key_file=tmp_path / "pem"))


def test_servers_are_checked_by_default() -> None:
    assert build_tls(Access(server="https://x")).verify_mode is ssl.CERT_REQUIRED
    assert build_tls(Access(server="https://x", insecure=True)).verify_mode is ssl.CERT_NONE


async def test_a_token_is_read_again(tmp_path: Path) -> None:
    file, now = tmp_path / "token", [0.0]
    file.write_text("one\n")
    token = Token(partial(read_token_file, file), lambda: now[0])
    assert await token.current() == "Bearer one"
    file.write_text("two\n")
    now[0] = REREAD_SECONDS - 1
    assert await token.current() == "Bearer one"
    now[0] = REREAD_SECONDS
    assert await token.current() == "Bearer two"
    assert not await token.renew("Bearer two")
    file.unlink()
    now[0] *= 3
    assert await token.current() == "Bearer two"


async def test_no_request_goes_without_a_token_while_the_first_is_read() -> None:
    token = Token(lambda _: time.sleep(0.05) or "Bearer one", lambda: 0.0)
    assert await asyncio.gather(*(token.current() for _ in range(3))) == ["Bearer one"] * 3


async def test_the_old_token_serves_while_the_next_one_is_read() -> None:
    now, begun, done = [0.0], threading.Event(), threading.Event()

    def read(_: bool) -> str:
        if now[0]:
            begun.set()
            done.wait()
        return f"Bearer {now[0]:g}"

    token = Token(read, lambda: now[0])
    assert await token.current() == "Bearer 0"
    now[0] = REREAD_SECONDS
    renewal = asyncio.create_task(token.current())
    await asyncio.to_thread(begun.wait)
    assert await token.current() == "Bearer 0"
    done.set()
    assert await renewal == f"Bearer {REREAD_SECONDS:g}"


async def test_a_refused_token_is_read_once_for_all_requests() -> None:
    reads: list[bool] = []

    def read(refused: bool) -> str:
        reads.append(refused)
        return f"Bearer {len(reads)}"

    token = Token(read, lambda: 0.0)
    sent = await token.current()
    assert await asyncio.gather(*(token.renew(sent) for _ in range(5))) == [True] * 5
    assert reads == [False, True]
