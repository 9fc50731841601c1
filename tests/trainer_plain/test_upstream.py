"""The newest Keras with the patch that mends it needs no repair of ours."""

import json
import subprocess
from pathlib import Path

import keras
import pytest

import trainjob_trainer
from support.trainer.plain import SCRIPTS, run_job

UPSTREAM = Path(__file__).parents[2] / "docs" / "upstream" / "keras-20585.patch"


@pytest.mark.nightly
def test_keras_with_the_upstream_patch_trains_without_our_repair(tmp_path: Path) -> None:
    """It is in the form in which it can be sent to Keras; where it no longer applies, write it again."""
    original, file = Path(keras.__file__).parent, Path("src/backend/tensorflow/trainer.py")
    (copy := tmp_path / "path" / "keras").mkdir(parents=True)
    for folder in (*reversed(file.parents), file):  # links, but for the folders above the patched file
        for one in (original / folder).iterdir() if folder != file else ():
            if (folder / one.name) in file.parents:
                (copy / folder / one.name).mkdir()
            else:
                (copy / folder / one.name).symlink_to(one)
    (copy / file).unlink()
    (copy / file).write_text((original / file).read_text())
    subprocess.run(["git", "apply", UPSTREAM], cwd=copy.parent, check=True)
    library = Path(trainjob_trainer.__file__).parents[1]
    env = {"SEEN": str(tmp_path), "PYTHONPATH": f"{copy.parent}:{library}"}
    ended = run_job(SCRIPTS / "canary.py", tmp_path / "job", env=env)
    assert ended["worker-0"].code == 0, ended["worker-0"].log
    assert json.loads((tmp_path / "worker-0.json").read_text())["unrepaired"] == "trained"
