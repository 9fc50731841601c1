"""Nothing of a TFJob is lost in silence: a value is in the TrainJob's pods or fields, or a note names it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from support.world.changes import walk_values
from support.world.tfjob_strategy import tfjobs
from support.world.tfjobs import SAMPLES, converted
from trainjob.api import TrainJob, parse, read_documents
from trainjob.api.errors import format_path, value_at
from trainjob.convert import Conversion, is_convertible, list_items
from trainjob.core.manifests import build_pod
from trainjob.core.names import replica_counts

Path_ = tuple[str | int, ...]
KEPT_BY_NAME = ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "managedBy")
AS_HERE: dict[str, tuple[Any, ...]] = {
    "cleanPodPolicy": ("Running", ""),
    "successPolicy": ("AllWorkers", ""),
    "enableDynamicWorker": (False,),
    "managedBy": ("",),
    "priorityClass": ("",),
    "restartPolicy": ("",),
}
"""Values that say what a TrainJob does anyway."""


def samples() -> Iterator[Any]:
    for file in SAMPLES:
        for document in read_documents(file.read_text(), source=file.name):
            for item in list_items(document.raw):
                if is_convertible(item.raw):
                    yield pytest.param(item.raw, id=f"{Path(file).stem}{item.place}")


def leaves(value: Any) -> Iterator[tuple[Path_, Any]]:
    """Yield each value that says something; `readOnly: false` says as little as null."""
    for steps, inner in walk_values(value):
        is_nothing = inner is None or (inner is False and steps[-1] == "readOnly")
        if not isinstance(inner, dict | list) and not is_nothing:
            yield steps, inner


@pytest.mark.parametrize("tfjob", list(samples()))
def test_of_the_samples(tfjob: dict[str, Any]) -> None:
    assert silently_lost(tfjob) == []


@settings(max_examples=settings.default.max_examples // 4)
@given(tfjobs())
def test_of_any_tfjob(tfjob: dict[str, Any]) -> None:
    assert silently_lost(tfjob) == []


def test_the_test_sees_losses() -> None:
    tfjob = next(samples()).values[0]
    conversion = converted(tfjob)
    lost = Losses(tfjob, Conversion(conversion.manifest, (), ()))
    assert "spec.tfReplicaSpecs.Worker.restartPolicy" in [format_path(p) for p in lost.find()]
    del conversion.manifest["spec"]["template"]["spec"]["containers"][0]["image"]
    found = [format_path(path) for path in Losses(tfjob, conversion).find()]
    assert "spec.tfReplicaSpecs.Worker.template.spec.containers[0].image" in found


def silently_lost(tfjob: dict[str, Any]) -> list[str]:
    conversion = converted(tfjob)
    assert conversion.refusals == ()
    return [format_path(path) for path in Losses(tfjob, conversion).find()]


class Losses:
    """What a conversion has lost."""

    def __init__(self, tfjob: dict[str, Any], conversion: Conversion) -> None:
        self.tfjob = tfjob
        self.manifest = conversion.manifest
        self.job: TrainJob = parse(conversion.manifest)
        self.counted: dict[str, tuple[dict[str, Any], dict[str, Any], Counter[Any]]] = {}
        self.notes = {note.path: note.message for note in conversion.notes}

    def find(self) -> Iterator[Path_]:
        for path, value in leaves(self.tfjob):
            if not self.is_noted(path) and not self.is_carried(path, value):
                yield path

    def is_noted(self, path: Path_) -> bool:
        """Whether a note is about this very field, or says that something that holds it is left out."""
        if format_path(path) in self.notes:
            return True
        holders = (format_path(path[:end]) for end in range(1, len(path)))
        return any(self.notes.get(holder, "").startswith("left out") for holder in holders)

    def is_carried(self, path: Path_, value: Any) -> bool:
        match path:
            case ("apiVersion" | "kind",):
                return True
            case ("metadata", *rest):
                return bool(value_at(self.manifest["metadata"], *rest) == value)
            case ("spec", "tfReplicaSpecs", str(kind), "replicas"):
                return replica_counts(self.job.spec).get(self.role(kind), 0) == value
            case ("spec", "tfReplicaSpecs", str(kind), "template", *rest):
                return self.is_in_pods(kind, tuple(rest), value)
        field = str(path[-1])
        made = self.manifest["spec"]
        if field in KEPT_BY_NAME or field == "ttlSecondsAfterFinishing":
            if made.get(field.replace("Finishing", "Finished")) == value:
                return True
        elif field == "backoffLimit":
            return bool(made["maxRestarts"] == value)
        return value in AS_HERE.get(field, ())

    def role(self, kind: str) -> str:
        name = {"master": "chief"}.get(kind.lower(), kind.lower())
        return "worker" if name == "chief" and self.job.spec.chief is None else name

    def is_in_pods(self, kind: str, path: Path_, value: Any) -> bool:
        """Whether the role's pods have as many such values as its template, noted ones aside.

        Items of lists change their places, so values are counted by the names of the fields that hold them.
        """
        if kind not in self.counted:
            self.counted[kind] = self.count(kind)
        template, pod, missing = self.counted[kind]
        return expected(path, value) not in missing or is_name_of_output(path, value, template, pod)

    def count(self, kind: str) -> tuple[dict[str, Any], dict[str, Any], Counter[Any]]:
        place = ("spec", "tfReplicaSpecs", kind, "template")
        template = value_at(self.tfjob, *place)
        pod = build_pod(self.job, role=self.role(kind), index=0, incarnation=1, attempt=1)
        kept = [(steps, leaf) for steps, leaf in leaves(template) if not self.is_noted((*place, *steps))]
        wanted = Counter(expected(steps, leaf) for steps, leaf in kept)
        found = Counter(plain(steps, leaf) for steps, leaf in leaves(pod))
        return template, pod, wanted - found


def plain(path: Path_, value: Any) -> tuple[tuple[str, ...], Any]:
    names = tuple(step for step in path if isinstance(step, str))
    return names, value.rstrip("/") if names[-1] == "mountPath" else value


def expected(path: Path_, value: Any) -> tuple[tuple[str, ...], Any]:
    """Return what the pod has for a value of the template; the container that trains has got another name."""
    names, value = plain(path, value)
    names = tuple(name.replace(".io/tensorflow", ".io/trainer") for name in names)
    is_reference = names[-1] in ("containerName", "kubectl.kubernetes.io/default-container")
    if value == "tensorflow" and (names == ("spec", "containers", "name") or is_reference):
        value = "trainer"
    return names, value


def is_name_of_output(path: Path_, value: Any, template: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether this is the name of the volume that has become the output, which has a new name."""
    if path[-1] != "name" or path[-3] not in ("volumes", "volumeMounts"):
        return False
    theirs = next(v for v in template["spec"]["volumes"] if v["name"] == value)
    ours = next(v for v in pod["spec"]["volumes"] if v["name"] == "trainjob-output")
    return [*leaves({**theirs, "name": ""})] == [*leaves({**ours, "name": ""})]
