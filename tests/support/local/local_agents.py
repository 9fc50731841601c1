"""Builders for pods with agents on the local cluster, and a small agent of the tests' own."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from support.local.local_cluster import build_pod, python

TOKEN = "0123456789abcdef"  # noqa: S105 - no password
BUNDLE = "digits-agent-aaaaaaaa"

# Answers every target with the target and the environment, once the test lets it continue.
SMALL_AGENT = """
import hashlib, hmac, json, os, pathlib, socket

def tag(key, direction, payload):
    return hmac.new(key, direction + bytes(8) + payload, hashlib.sha256).digest()

def receive(client, count):
    data = b""
    while len(data) < count:
        part = client.recv(count - len(data))
        if not part: raise SystemExit("gone")
        data += part
    return data

place = json.loads(os.environ["TRAINJOB_AGENT"])
token = pathlib.Path(os.environ["BUNDLE"], "token").read_bytes()
host, port = place["address"].split(":")
server = socket.create_server((host, int(port)))
print("agent of", place["replica"], "listens", flush=True)
while True:
    client, _ = server.accept()
    nonce = os.urandom(32)
    client.sendall(b"TRAINJOB-AGENT/1" + nonce)
    key = hmac.new(token, b"trainjob-agent/1" + nonce + receive(client, 32), hashlib.sha256).digest()
    body = receive(client, int.from_bytes(receive(client, 4), "big"))
    assert body[:32] == tag(key, b"C", body[32:])
    order = json.loads(body[32:])["order"]
    heard = json.dumps({"order": order, "by": place["pod"]})  # in a text that is kept of a report
    failure = {"replica": place["replica"], "reason": "Heard", "message": heard}
    report = {"type": "report", "phase": "running", "failure": failure, "members": {}}
    report["restarts"] = {"counted": order.get("maxRestarts", 0)}
    payload = json.dumps(report).encode()
    client.sendall((32 + len(payload)).to_bytes(4, "big") + tag(key, b"S", payload) + payload)
    client.close()
    if order.get("end") is not None:
        pathlib.Path(os.environ["TRAINJOB_TERMINATION_LOG"]).write_text(order.get("words", ""))
        raise SystemExit(order["end"])
"""


def build_token_secret(name: str = BUNDLE, **data: str) -> dict[str, Any]:
    contents = data or {"token": TOKEN}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in contents.items()}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "data": encoded}


def build_agent_pod(
    command: Sequence[str] = (),
    *,
    role: str = "worker",
    index: int = 0,
    incarnation: int = 1,
    labels: dict[str, str] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return a pod of a job that restarts in place; by default it runs the small agent."""
    replica, name = f"{role}-{index}", f"digits-{role}-{index}-{incarnation:08x}"
    place = {
        "replica": replica,
        "incarnation": incarnation,
        "pod": name,
        "address": f"digits-{replica}.digits.default.svc:2223",
        "leader": "digits-worker-0.digits.default.svc:2223",
    }
    env = [
        {"name": "TRAINJOB_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TRAINJOB_AGENT", "value": json.dumps(place)},
        {"name": "TRAINJOB_STATE_DIR", "value": "/run/trainjob/state"},
        {"name": "TRAINJOB_TERMINATION_LOG", "value": "/dev/termination-log"},
        {"name": "BUNDLE", "value": "/run/trainjob/bundle"},
        *changes.pop("env", ()),
    ]
    pod = build_pod(command or python(SMALL_AGENT), name=name, role=role, index=index, env=env, **changes)
    pod["metadata"]["labels"] |= {
        "trainjob.dev/incarnation": str(incarnation),
        "trainjob.dev/live": "true",
        **(labels or {}),
    }
    pod["spec"]["volumes"] += [
        {"name": "trainjob-bundle", "secret": {"secretName": BUNDLE, "defaultMode": 0o444}},
        {"name": "trainjob-state", "emptyDir": {"medium": "Memory"}},
    ]
    pod["spec"]["containers"][0]["volumeMounts"] += [
        {"name": "trainjob-bundle", "mountPath": "/run/trainjob/bundle", "readOnly": True},
        {"name": "trainjob-state", "mountPath": "/run/trainjob/state"},
    ]
    return pod
