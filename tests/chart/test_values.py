"""Values that can't be meant are refused, with the place and the reason."""

from __future__ import annotations

from typing import Any

import pytest

from support.kube.chart import refusal, render


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replica": 3}, ["additional properties 'replica' not allowed"]),
        ({"watch": {"namespaces": "a"}}, ["/watch", "'namespaces' not allowed"]),
        ({"replicas": -1}, ["/replicas", "minimum"]),
        ({"replicas": "2"}, ["/replicas", "got string, want integer"]),
        ({"workers": 0}, ["/workers", "minimum"]),
        ({"logFormat": "xml"}, ["/logFormat", "'plain', 'json'"]),
        ({"kueue": {"enabled": "yes"}}, ["/kueue/enabled", "'auto', true, false"]),
        ({"gangs": {"enabled": "yes"}}, ["/gangs/enabled", "'auto', true, false"]),
        ({"admissionPolicy": {"enabled": "yes"}}, ["/admissionPolicy/enabled", "'auto', true, false"]),
        ({"crd": {"install": "yes"}}, ["/crd/install", "want boolean"]),
        ({"watch": {"namespace": "Team_A"}}, ["/watch/namespace", "does not match pattern"]),
        ({"fullnameOverride": "a" * 54}, ["/fullnameOverride", "maxLength"]),
        ({"fullnameOverride": "1st"}, ["/fullnameOverride", "does not match pattern"]),
        ({"networkPolicy": None}, ["missing property 'networkPolicy'"]),
        ({"jobs": {"networkPolicy": None}}, ["/jobs", "missing property 'networkPolicy'"]),
        ({"replicas": None}, ["missing property 'replicas'"]),
        ({"image": {"digest": "latest"}}, ["/image/digest", "does not match pattern"]),
        ({"image": {"repository": ""}}, ["/image/repository", "minLength"]),
        ({"image": {"pullPolicy": "Sometimes"}}, ["/image/pullPolicy", "'IfNotPresent'"]),
        ({"imagePullSecrets": ["key"]}, ["/imagePullSecrets/0", "want object"]),
        (
            {"jobs": {"networkPolicy": {"extraIngress": [{"form": []}]}}},
            ["extraIngress/0", "'form' not allowed"],
        ),
        ({"serviceMonitor": {"interval": "often"}}, ["/serviceMonitor/interval"]),
        ({"extraEnv": [{"value": "x"}]}, ["/extraEnv/0", "missing property 'name'"]),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, ["app.kubernetes.io/name"]),
        ({"podAnnotations": {"a": 1}}, ["/podAnnotations/a", "want string"]),
        (
            {"serviceAccount": {"create": False}},
            [
                "serviceAccount.name must name an account that is there, "
                "because serviceAccount.create is false"
            ],
        ),
    ],
)
def test_refusals(values: dict[str, Any], words: list[str]) -> None:
    message = refusal(values)
    for word in words:
        assert word in message


def test_as_a_part_of_another_chart() -> None:
    assert render({"global": {"anything": True}}).objects
