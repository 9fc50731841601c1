"""The pages of the documentation, and the commands that they show."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in [ROOT / "README.md", ROOT / "charts/trainjob/README.md", *sorted(DOCS.rglob("*.md"))]
    if page.parent.name != "adr"  # they say how it was at their date
    if page.name != "first-steps.md"  # `make first-steps` has run its commands
}
PROGRAMS = ("benchmarks", "docker", "helm", "kind", "kubectl", "make", "python", "tensorboard", "trainjob")


def commands(text: str, name: str = rf"(?:{'|'.join(PROGRAMS)})") -> list[str]:
    """The calls of a program that a page shows: lines of consoles, and indented ones."""
    return re.findall(rf"^(?:\$ |    )({name} .*)$", text.replace("\\\n", " "), re.MULTILINE)


def inline_commands(text: str) -> list[str]:
    """The calls of kubectl and Helm within sentences; two words or three without options only name one."""
    prose = re.sub(r"^(```.*?^```|    .*?$)", "", text, flags=re.DOTALL | re.MULTILINE)
    found = (" ".join(code.split()) for code in re.findall(r"(?<!`)`((?:kubectl|helm) [^`]+)`", prose))
    return [command for command in found if command not in NAMED]


NAMED = {
    "helm test",
    "helm uninstall",
    "kubectl apply",
    "kubectl cordon",
    "kubectl delete",
    "kubectl delete pod",
    "kubectl describe",
    "kubectl describe node",
    "kubectl drain",
    "kubectl exec",
    "kubectl logs",
    "kubectl scale",
    "kubectl wait",
    "kubectl trainjob",
}
"""Commands whose names a sentence uses; they need arguments."""
