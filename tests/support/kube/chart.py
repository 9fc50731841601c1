"""Renders the chart and the kustomize bases, as objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from testbed.programs import program

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/trainjob"
ALERTS = CHART / "files/alerts.yaml"
DASHBOARDS = tuple(sorted((CHART / "files").glob("dashboard-*.json")))
# Helm would otherwise take the version of the Kubernetes libraries that it was built with.
KUBERNETES = "1.37.2"
NAMESPACE = "trainjob-system"
NAMESPACED_KINDS = {
    "ConfigMap", "Deployment", "Job", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PrometheusRule", "Role",
    "RoleBinding", "Service", "ServiceAccount", "ServiceMonitor",
}  # fmt: skip


def read_rules(name: str) -> list[Manifest]:
    """The rules of the chart's file; own-rules.yaml has templates as names."""
    rules: list[Manifest] = yaml.safe_load((CHART / f"files/{name}-rules.yaml").read_text())
    return rules


CONTROLLER_RULES = read_rules("controller")
OWN_RULES = [{**rule, "resourceNames": []} for rule in read_rules("own")]
"""For objects of any name."""
KUEUE_RULES, KUEUE_CLUSTER_RULES, GANG_RULES = map(read_rules, ("kueue", "kueue-cluster", "gang"))

MONITORED = {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")}
EVERYTHING = {**MONITORED, **{name: {"enabled": True} for name in ("kueue", "gangs", "admissionPolicy")}}
"""All that is off by default, or where the cluster doesn't serve it."""


class Objects(list[Manifest]):
    def one(self, kind: str, name: str | None = None) -> Manifest:
        """The only object of this kind (and name)."""
        (found,) = (o for o in self if o["kind"] == kind and name in (None, o["metadata"]["name"]))
        return found

    def names(self, kind: str | None = None) -> set[str]:
        return {o["metadata"]["name"] for o in self if kind in (None, o["kind"])}

    @property
    def kinds(self) -> set[str]:
        return {o["kind"] for o in self}


class Release:
    """A release as `helm template` shows it: what it is made of, and its hooks by event."""

    def __init__(self, objects: Iterable[Manifest]) -> None:
        self.everything = Objects(objects)
        self.objects = Objects(o for o in self.everything if not events_of(o))

    def hooks(self, event: str) -> Objects:
        """In the order in which Helm creates them."""
        found = [o for o in self.everything if event in events_of(o)]
        return Objects(sorted(found, key=lambda o: int(o["metadata"]["annotations"]["helm.sh/hook-weight"])))

    @property
    def pod(self) -> Manifest:
        """The controller's pod template."""
        template: Manifest = self.objects.one("Deployment")["spec"]["template"]
        return template

    @property
    def container(self) -> Manifest:
        (container,) = self.pod["spec"]["containers"]
        return dict(container)


def events_of(manifest: Manifest) -> list[str]:
    """The events of Helm that the object is a hook of."""
    hook = (manifest["metadata"].get("annotations") or {}).get("helm.sh/hook", "")
    return [event for event in hook.split(",") if event]


def render(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "trainjob",
    namespace: str = NAMESPACE,
    served: str = "",
) -> Release:
    """The release with these values, in a cluster that serves this API too."""
    answer = _template(release, namespace, json.dumps(values or {}), served)
    assert answer.returncode == 0, answer.stderr
    return Release(documents(answer.stdout))


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says to values that it must not take."""
    answer = _template("trainjob", NAMESPACE, json.dumps(values))
    assert answer.returncode != 0, "Helm takes these values"
    return answer.stderr


def kustomize(folder: str) -> Objects:
    """What `kubectl apply -k` would send."""
    answer = subprocess.run(
        [program("kubectl"), "kustomize", ROOT / folder], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return Objects(documents(answer.stdout))


def allowed(rules: Iterable[Manifest]) -> list[tuple[str, str, str]]:
    """The calls that the rules allow: group, resource with subresource, verb."""
    return [call for r in rules for call in product(r["apiGroups"], r["resources"], r["verbs"])]


def panels(dashboard: Path) -> list[Manifest]:
    """The dashboard's panels, without its rows."""
    found = json.loads(dashboard.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def alerts() -> list[Manifest]:
    (file,) = documents(ALERTS.read_text())
    return [rule for group in file["groups"] for rule in group["rules"]]


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.load_all(text, Loader=_Strict) if document]


@cache
def _template(
    release: str, namespace: str, values: str, served: str = ""
) -> subprocess.CompletedProcess[str]:
    command = [program("helm"), "template", release, CHART, "-n", namespace, "--kube-version", KUBERNETES]
    command += ["--api-versions", served] if served else []
    return subprocess.run(
        [*command, "--values", "-"], input=values, capture_output=True, text=True, check=False
    )


class _Strict(yaml.SafeLoader):
    """Refuses a key that comes twice, as Kubernetes does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key comes twice: {keys}"
        return super().construct_mapping(node, deep=deep)
