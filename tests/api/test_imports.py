"""Reading a job must stay cheap: `trainjob validate` answers before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("tensorflow", "keras", "numpy", "kopf", "kubernetes", "asyncio", "jinja2", "rich", "jsonschema")


def test_nothing_heavy_is_imported() -> None:
    program = f"import sys, trainjob.api; print([name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]"
