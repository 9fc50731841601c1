"""Every example, and every job that the documentation shows, under the restricted Pod Security standard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import Cluster

from support.kube.verdicts import judge_creations
from trainjob.api import parse
from trainjob.api.constants import ADDED_VOLUMES
from trainjob.core.manifests import build_network_policy, build_objects
from trainjob.core.settings import Isolation

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[3]
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
EXTRA_INGRESS = {"from": [{"podSelector": {}}], "ports": [{"port": 9090}]}
DIGITS = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())


def shown(page: Path) -> Iterator[Manifest]:
    """The objects in the page's blocks of YAML; parts of a TrainJob are put into an example."""
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for document in yaml.safe_load_all(text):
            if set(document) == {"spec"}:
                yield merged(DIGITS, document)
            elif document.get("kind") == "TrainJob":
                yield document


def merged(whole: Any, part: Any) -> Any:
    """Return `whole` with what `part` says otherwise; items of a list by their names."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return {**whole, **{key: merged(whole.get(key), value) for key, value in part.items()}}
    if isinstance(whole, list) and all(isinstance(item, dict) for item in part):
        named = {item["name"]: item for item in whole}
        return list({**named, **{i["name"]: merged(named.get(i["name"]), i) for i in part}}.values())
    return deepcopy(part)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = {
    path.name: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "examples").glob("*.yaml"))
}
SHOWN = {f"{page.name}-{number}": job for page in PAGES for number, job in enumerate(shown(page))}
WITHOUT_SECURITY = {"api.md-0", "migrating-from-tfjob.md-0"}
"""They show the least that there must be, and what a TFJob becomes."""


pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture(scope="module")
def restricted(control_plane: Cluster) -> Iterator[str]:
    name = control_plane.create_namespace("examples", labels=RESTRICTED)
    yield name
    control_plane.delete("namespace", name, wait=False)


def placed(job: Manifest, namespace: str) -> Manifest:
    return {**job, "metadata": {**job["metadata"], "namespace": namespace}}


def rendered(job: Manifest) -> list[Manifest]:
    """What the controller creates for it."""
    parsed = parse({**job, "metadata": {**job["metadata"], "uid": "1-2-3"}})
    isolation = Isolation(controller_namespace="trainjob-system", extra_ingress=(EXTRA_INGRESS,))
    return [*build_objects(parsed), build_network_policy(parsed, isolation)]


def test_there_are_jobs_in_the_pages() -> None:
    pages = {
        "data",
        "gpus",
        "images",
        "migrating-from-kubeflow-trainer",
        "parameter-servers",
        "queues",
        "sizing",
    }
    assert {name.rpartition("-")[0] for name in {*SHOWN} - WITHOUT_SECURITY} == {
        "README.md",
        *(f"{page}.md" for page in pages),
    }
    assert "gpu.yaml" in EXAMPLES


@pytest.mark.parametrize("name", [*EXAMPLES, *SHOWN])
async def test_the_api_server_accepts_the_job_and_all_that_is_made_of_it(
    control_plane: Cluster, restricted: str, namespace: str, name: str
) -> None:
    job = placed({**EXAMPLES, **SHOWN}[name], namespace if name in WITHOUT_SECURITY else restricted)
    objects = [job, *rendered(job)]
    verdicts = await judge_creations(control_plane, objects)
    assert [verdict.answer for verdict in verdicts if not verdict.accepted] == []
    assert {item["kind"] for item in objects} >= {"TrainJob", "Service", "NetworkPolicy", "Pod"}


async def test_what_is_restricted_is_looked_at(control_plane: Cluster, restricted: str) -> None:
    verdicts = await judge_creations(control_plane, rendered(placed(SHOWN["api.md-0"], restricted)))
    refused = [verdict.answer for verdict in verdicts if not verdict.accepted]
    assert refused
    assert all('violates PodSecurity "restricted' in answer["message"] for answer in refused)


async def test_the_gpu_job_as_the_api_server_reads_it(control_plane: Cluster, restricted: str) -> None:
    verdicts = await judge_creations(control_plane, rendered(placed(EXAMPLES["gpu.yaml"], restricted)))
    answers = [verdict.answer for verdict in verdicts]
    (claim,) = [item for item in answers if item["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"].get("ownerReferences") is None  # it outlives the job
    pods = {
        item["metadata"]["labels"]["trainjob.dev/role"]: item["spec"]
        for item in answers
        if item["kind"] == "Pod"
    }
    worker, evaluator = pods["worker"], pods["evaluator"]
    gpu = "nvidia.com/gpu"
    assert worker["containers"][0]["resources"]["requests"][gpu] == "1"
    assert gpu not in evaluator["containers"][0]["resources"]["requests"]
    assert worker["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert not evaluator.get("nodeSelector")
    tolerated = [{toleration["key"] for toleration in pod["tolerations"]} for pod in (worker, evaluator)]
    assert [gpu in keys for keys in tolerated] == [True, False]
    for pod in (worker, evaluator):
        users = [v for v in pod["volumes"] if v["name"] not in ADDED_VOLUMES]
        (memory,) = [v for v in users if v.get("emptyDir", {}).get("medium") == "Memory"]
        (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == memory["name"]]
        assert mount["mountPath"] == "/dev/shm"
