"""The CustomResourceDefinition as it is released: marked with its version, and kept by Helm."""

from __future__ import annotations

from trainjob.api.generate.crd import crd_text
from trainjob.installation.version import VERSION_ANNOTATION

_KEEP = {"helm.sh/resource-policy": "keep"}
"""Helm must not delete it, should it ever get into a release: every TrainJob would go with it."""


def released_crd_text(version: str) -> str:
    """Return the CRD of this release as YAML."""
    return crd_text({VERSION_ANNOTATION: version, **_KEEP})
