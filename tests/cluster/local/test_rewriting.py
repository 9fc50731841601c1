from pathlib import Path

import pytest

from trainjob.cluster.local.launch import find_hosts, rewrite_addresses, rewrite_paths
from trainjob.cluster.local.machine import ReplicaPorts

PORTS = {
    "digits-worker-0": ReplicaPorts(7001, 8001),
    "digits-worker-1": ReplicaPorts(7002, 8002),
    "digits-evaluator-0": ReplicaPorts(7003, 8003),
}
FOLDERS = {
    "/output": Path("/home/me/runs/training"),
    "/output/digits/evaluator": Path("/home/me/other/digits/evaluator"),
    "/data/": Path("/srv/data"),
    "/": Path("/nowhere"),
}


def _addresses(text: str) -> str:
    return rewrite_addresses(text, subdomain="digits", namespace="ml", ports=PORTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits-worker-0.digits.ml.svc:2222", "127.0.0.1:7001"),
        ("digits-worker-1.digits.ml.svc.cluster.local:2222", "127.0.0.1:7002"),
        ("digits-worker-1.digits.ml.svc:2223", "127.0.0.1:8002"),
        ("digits-worker-1.digits.ml.svc:22233", "127.0.0.1:22233"),
        ('{"worker":["digits-worker-0.digits.ml.svc:2222","digits-worker-1.digits.ml.svc:2222"]}',
         '{"worker":["127.0.0.1:7001","127.0.0.1:7002"]}'),
        ("grpc://digits-worker-0.digits.ml.svc:2222/x", "grpc://127.0.0.1:7001/x"),
        ("digits-worker-0.digits.ml.svc", "127.0.0.1"),
        ("digits-worker-0.digits.ml.svc:9999", "127.0.0.1:9999"),
        ("unknown-0.digits.ml.svc:2222", "unknown-0.digits.ml.svc:2222"),
        ("digits-worker-0.digits.other.svc:2222", "digits-worker-0.digits.other.svc:2222"),
        ("digits-worker-0.digits.ml.svc.example.org:2222", "digits-worker-0.digits.ml.svc.example.org:2222"),
        ("xdigits-worker-0.digits.ml.svc:2222", "xdigits-worker-0.digits.ml.svc:2222"),
        ("digits-worker-0.digits.ml.svcs:2222", "digits-worker-0.digits.ml.svcs:2222"),
    ],
)  # fmt: skip
def test_addresses(text: str, expected: str) -> None:
    assert _addresses(text) == expected


def test_hosts_are_found_once_and_in_order() -> None:
    text = "b.digits.ml.svc:2222,a.digits.ml.svc:2222,b.digits.ml.svc:1"
    assert find_hosts(text, subdomain="digits", namespace="ml") == ("b", "a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/output", "/home/me/runs/training"),
        ("/output/", "/home/me/runs/training/"),
        ("/output/digits", "/home/me/runs/training/digits"),
        ("/output/digits/evaluator/logs", "/home/me/other/digits/evaluator/logs"),
        ("/output/digits/evaluators", "/home/me/runs/training/digits/evaluators"),
        ("--dir=/output/a --data /data/b", "--dir=/home/me/runs/training/a --data /srv/data/b"),
        ("/data:/output", "/srv/data:/home/me/runs/training"),
        ('"/output"', '"/home/me/runs/training"'),
        ("file:///output/x", "file:///home/me/runs/training/x"),
        ("cp '/data/a b' /output;", "cp '/srv/data/a b' /home/me/runs/training;"),
        ("gs://bucket/output", "gs://bucket/output"),
        ("/output-2", "/output-2"),
        ("/output.txt", "/output.txt"),
        ("/outputs", "/outputs"),
        ("/my/output", "/my/output"),
        ("$HOME/output", "$HOME/output"),
        ("$(X)/output ${Y}/output ~/output */output", "$(X)/output ${Y}/output ~/output */output"),
        ("s3/data", "s3/data"),
        ("no path / at all", "no path / at all"),
    ],
)
def test_paths(text: str, expected: str) -> None:
    assert rewrite_paths(text, FOLDERS) == expected


def test_a_folder_that_contains_a_mount_path_is_not_replaced_again() -> None:
    folders = {"/a": Path("/b/x"), "/b": Path("/a/y")}
    assert rewrite_paths("/a /b", folders) == "/b/x /a/y"


def test_without_mounts_nothing_changes() -> None:
    assert rewrite_paths("/output", {}) == "/output"
