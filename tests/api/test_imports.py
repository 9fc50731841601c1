"""Reading a job must stay cheap: `trainjob validate` answers before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("tensorflow", "keras", "numpy", "kopf", "kubernetes", "asyncio", "jinja2", "rich", "jsonschema")


def test_nothing_heavy_is_imported() -> None:
    program = f"import sys, trainjob.api; print([name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]"


def test_importing_the_python_client_loads_neither_tensorflow_nor_kopf() -> None:
    program = """
import sys
known = set(sys.modules)
import trainjob
print(sorted({name.split(".")[0] for name in set(sys.modules) - known} - sys.stdlib_module_names))
assert {"Trainer", "Job", "jobs"} <= set(dir(trainjob))
from trainjob import ClusterProblem, Job, JobFailed, NoCluster, NoJob, Trainer, jobs
names = ("tensorflow", "keras", "numpy", "kopf", "kubernetes", "aiohttp", "cloudpickle", "rich", "IPython")
print([name for name in names if name in sys.modules])
"""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    alone, with_names = answer.stdout.splitlines()
    assert alone == "['trainjob']"
    assert with_names == "[]"
