from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOIN = "from trainjob_trainer.session import join; join({})"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG: not valid JSON"),
        ({"TRAINJOB_ATTEMPT": "0"}, "TRAINJOB_ATTEMPT: must be"),
        ({"TRAINJOB_OUTPUT_DIR": "gs://bucket/run"}, "must be a folder, got gs:"),
    ],
)
def test_a_malformed_environment_leaves_with_its_code_and_a_report(
    tmp_path: Path, env: dict[str, str], words: str
) -> None:
    report = tmp_path / "progress.json"
    ended = subprocess.run(
        [sys.executable, "-c", JOIN],
        env={**os.environ, "TRAINJOB_PROGRESS_FILE": str(report), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 80, ended.stderr
    assert "Traceback" not in ended.stderr
    error = json.loads(report.read_text())["error"]
    assert error["reason"] == "InvalidConfiguration"
    assert words in error["message"]
