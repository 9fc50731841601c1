"""The schema of pods that `trainjob validate` goes by is what the API server says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from testbed import Cluster

from trainjob.codegen.pod_schema import PATH, pod_schema_text


@pytest.mark.testbed
def test_what_is_committed_is_what_the_api_server_serves(control_plane: Cluster) -> None:
    served = json.loads(control_plane.kubectl("get", "--raw", "/openapi/v3/api/v1"))
    assert pod_schema_text(served) == (Path(__file__).parents[3] / PATH).read_text()
