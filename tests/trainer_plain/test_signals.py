"""An unmodified script that is asked to stop: TensorFlow takes SIGTERM for itself and does nothing."""

import signal
from pathlib import Path

from support_plain import BOOTSTRAP, SCRIPTS
from support_processes import Gang

from trainjob_trainer.errors import ExitCode


def test_sigterm_ends_every_worker_as_preempted(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(BOOTSTRAP)}
    with Gang(SCRIPTS / "endless.py", tmp_path / "output", env=env) as gang:
        gang["worker-1"].wait_for_line("epoch 2")
        for process in gang.processes.values():
            process.kill(signal.SIGTERM)
        assert set(gang.wait().values()) == {ExitCode.PREEMPTED}, gang.report
        assert gang.progress("worker-0")["error"]["reason"] == "Preempted"
