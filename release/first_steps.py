"""Record a new user's first minutes, from `pip install` to a model that a cluster has trained.

    python release/first_steps.py

builds the packages, installs them into an empty environment, and there runs what a new user would type: a
script of 25 lines is trained here, from a notebook, and on the test cluster, where a worker is killed. Each
command is written down with its output and its time, in docs/first-steps.md. It needs Linux and root, as
`make cluster-up` does, and a package index.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from artifacts import build_packages, find_uv
from testbed import node_tier
from testbed.claims import NodeCluster
from testbed.programs import program

from versions import ROOT

PAGE = ROOT / "docs/first-steps.md"
NOTEBOOK = ROOT / "examples/notebook.ipynb"
SYSTEM = "trainjob-system"
MINUTES = 15
"""Of one command; against hanging only."""

SCRIPT = """\
import os
import sys

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

strategy = tf.distribute.MultiWorkerMirroredStrategy()
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(images / 16, labels, test_size=0.2, random_state=0)

with strategy.scope():
    layers = [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
model.fit(x, y, batch_size=64, epochs=epochs, validation_data=(x_test, y_test), verbose=2)
folder = os.environ.get("TRAINJOB_OUTPUT_DIR", ".")
model.save(f"{folder}/model.keras")
"""

INSTALL = (
    "python3 -m venv env",
    "pip install --quiet --find-links . trainjob 'trainjob-trainer[cpu]' scikit-learn",
)
HERE = (
    "trainjob run digits.py --workers 2",
    "trainjob list",
)
IN_A_NOTEBOOK = (
    "pip install --quiet nbclient ipykernel",
    "jupyter execute --inplace notebook.ipynb",
)
WORKER = "trainjob.dev/job=digits,trainjob.dev/role=worker,trainjob.dev/index=1"
ON_A_CLUSTER = (
    "trainjob submit digits.py --workers 2 --image ghcr.io/acme/digits:1 --output claim:training --cpu 300m"
    " -- 300",
    "kubectl wait tj/digits --for=jsonpath='{.status.output.checkpointStep}' --timeout=10m",
    "trainjob get digits -n $NAMESPACE",
    f"kubectl delete pod --wait=false --selector {WORKER}",
    "trainjob logs digits -n $NAMESPACE --follow --tail 1 | grep trainjob:",
    "trainjob get digits -n $NAMESPACE",
    "trainjob cp digits:model.keras model.keras -n $NAMESPACE",
    """python -c "import keras; keras.saving.load_model('model.keras').summary()" 2>/dev/null""",
)


class Record:
    """Runs commands in a shell with an environment of its own, and keeps what they print.

    Args:
        folder: the working directory.
        environ: the environment.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder, self.environ = folder, environ
        self.parts: list[str] = []
        self.seconds = 0.0

    def write(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(text)
        click.echo(text)

    def run(self, *commands: str) -> None:
        """Run commands one after the other.

        Raises:
            click.ClickException: one fails.
        """
        for command in commands:
            self.write(f"```console\n$ {command}\n{self._output(command)}```\n")

    def _output(self, command: str) -> str:
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MINUTES * 60,
            check=False,
        )
        seconds = time.monotonic() - begun
        self.seconds += seconds
        if done.returncode:
            raise click.ClickException(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return readable(done.stdout, self._folder) + f"({seconds:.1f} s)\n"


def readable(output: str, folder: Path) -> str:
    """Return a command's output without colours and without the names of this machine's folders."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output).replace(f"{folder}/", "").replace(str(folder), ".")
    lines = "".join(f"{line.rstrip()}\n" for line in plain.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines)


def describe_cell(cell: dict[str, Any], folder: Path) -> str:
    """Return a cell and what it shows as text."""
    shown = [
        "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))
        for output in cell["outputs"]
        if output.get("name") != "stderr"
    ]
    code, text = "".join(cell["source"]), readable("".join(shown), folder)
    return f"```python\n{code}\n```\n\n```text\n{text}```\n"


def cells_for_here() -> dict[str, Any]:
    """Return the example's notebook without the cells for a cluster."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    notebook["cells"] = [cell for cell in cells if cell["metadata"].get("tags", ["here"]) == ["here"]]
    return notebook


@contextmanager
def open_cluster(kubeconfig: Path | None) -> Iterator[NodeCluster]:
    """Start the test cluster, or take one that runs; the controller is installed if it isn't there."""
    if kubeconfig is not None:
        cluster = NodeCluster(
            kubeconfig, folder=kubeconfig.parent, kubectl=program("kubectl"), helm=program("helm")
        )
    else:
        cluster = node_tier.start(die_with_us=True)
    try:
        if not cluster.exists("deployment", "trainjob", namespace=SYSTEM):
            release = (
                "trainjob",
                str(ROOT / "charts/trainjob"),
                "-n",
                SYSTEM,
                "--create-namespace",
                "--wait",
            )
            cluster.helm("install", *release, timeout=200)
        yield cluster
    finally:
        if kubeconfig is None:
            node_tier.stop_own()


def prepare(folder: Path) -> dict[str, str]:
    """Write what the user has into an empty folder, and return an environment without anything of ours."""
    build_packages(folder / "packages", find_uv())
    for wheel in (folder / "packages").glob("*.whl"):
        shutil.move(wheel, folder)
    shutil.rmtree(folder / "packages")
    (folder / "digits.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "notebook.ipynb").write_text(json.dumps(cells_for_here()), encoding="utf-8")
    programs = folder / ".bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(program("kubectl"))
    kept = {
        name: value
        for name, value in os.environ.items()
        if re.match(r"LANG|PATH|.*PROXY|PIP_|SSL_", name, re.I)
    }
    path = os.pathsep.join([str(folder / "env/bin"), str(programs), kept.pop("PATH")])
    return {**kept, "PATH": path, "HOME": str(folder), "COLUMNS": "100", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def record_here(record: Record, folder: Path) -> None:
    """Install, train the script, and train from a notebook."""
    record.write("## Install\n")
    record.write("The two wheels lie in the folder, since no package index has them yet.\n")
    record.run(*INSTALL)
    record.write("## One line: two workers on this machine\n")
    record.run("cat digits.py", *HERE)
    record.write("## The same from a notebook\n")
    record.run(*IN_A_NOTEBOOK)
    executed = json.loads((folder / "notebook.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
    for cell in code[1:]:  # the first one is the function
        record.write(describe_cell(cell, folder))


def record_there(record: Record, cluster: NodeCluster, folder: Path) -> None:
    """Train the script on a cluster, kill a worker, and fetch the model."""
    namespace = cluster.create_namespace(
        "first-steps", labels={"pod-security.kubernetes.io/enforce": "restricted"}
    )
    try:
        cluster.claim(namespace)
        own = folder / ".kubeconfig"
        shutil.copy(cluster.kubeconfig, own)
        record.environ |= {"KUBECONFIG": str(own), "NAMESPACE": namespace}
        context = ["kubectl", "config", "set-context", "--current", f"--namespace={namespace}"]
        subprocess.run(context, env=record.environ, check=True, stdout=subprocess.DEVNULL)
        record.write("## The same on a cluster\n")
        record.write(
            "kubectl and `trainjob` use the cluster of `make cluster-up`. It has the controller, and the\n"
            "namespace a claim `training`. The script travels with the job. A worker is killed on the way.\n"
        )
        record.run(*ON_A_CLUSTER)
    finally:
        cluster.delete_namespace(namespace)


def heading() -> str:
    """Return the page's begin: when and where it was recorded."""
    load, *_ = os.getloadavg()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    python = platform.python_version()
    busy = f"other work kept it busy (load {load:.1f})" if load > 1 else "it had nothing else to do"
    return (
        "<!-- Written by `make first-steps`; don't edit it. -->\n# First steps, recorded\n\n"
        "What a new user types, what it prints and how long it takes, as `make first-steps` recorded it on\n"
        f"{datetime.now(UTC):%d %B %Y}. Nothing is edited by hand. The machine has\n"
        f"{os.cpu_count()} processors, {memory} GB of memory and Python {python}; {busy}.\n"
    )


@click.command()
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True),
    help="Of a test cluster that runs and has the images; otherwise one is started.",
)
def main(kubeconfig: Path | None) -> None:
    """Record a new user's first minutes in docs/first-steps.md."""
    with (
        open_cluster(kubeconfig) as cluster,
        tempfile.TemporaryDirectory(prefix="first-steps-") as name,
    ):
        folder = Path(name).resolve() / "digits"
        folder.mkdir()
        record = Record(folder, prepare(folder))
        record.write(heading())
        record_here(record, folder)
        record_there(record, cluster, folder)
    record.write(f"All commands together took {record.seconds / 60:.1f} minutes.")
    PAGE.write_text("\n".join(record.parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
