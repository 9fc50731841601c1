"""What docs/install.md names is there: settings, metrics, files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/install.md").read_text()
SCHEMA = json.loads((ROOT / "charts/trainjob/values.schema.json").read_text())

SETTINGS = sorted(
    {*re.findall(r"--set ([\w.]+)=", PAGE), *re.findall(r"`([a-z]\w+(?:\.\w+)+)(?:=\w+)?`", PAGE)}
    - {"pods.exec"}
)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if not s.endswith(".trainjob.dev")])
def test_settings(setting: str) -> None:
    part = SCHEMA
    for word in setting.split("."):
        part = part["properties"][word]


def test_there_are_settings() -> None:
    assert {"watch.namespace", "crd.install", "serviceMonitor.enabled", "networkPolicy.from"} <= set(SETTINGS)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", PAGE))))
def test_links(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:charts|manifests)/[\w./-]*\w", PAGE))))
def test_paths(path: str) -> None:
    assert (ROOT / path).exists()
