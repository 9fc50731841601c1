"""The two files that request a profile of a replica: "Profiles" in docs/contract.md.

Also a program that runs in pods: for Python 3.9, with its standard library only.
"""

import sys
from contextlib import suppress
from os import environ
from pathlib import Path


def ask(folder: Path, replica: str, request: str) -> None:
    """Leave a request, instead of any other."""
    folder.mkdir(parents=True, exist_ok=True)
    withdraw(folder, replica, "")
    path = folder / f"{replica}.json"
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(request)
    temporary.replace(path)


def answer(folder: Path, replica: str) -> str:
    """Return what the replica has answered last, or nothing."""
    with suppress(OSError):
        return (folder / f"{replica}.answer.json").read_text()
    return ""


def withdraw(folder: Path, replica: str, number: str) -> None:
    """Remove request and answer if they have this id; a later request may have replaced them."""
    for name in (f"{replica}.json", f"{replica}.answer.json"):
        with suppress(OSError):
            if number in (folder / name).read_text():
                (folder / name).unlink()


if __name__ == "__main__":
    where, words = Path(environ["TRAINJOB_OUTPUT_DIR"], "profile"), sys.argv[2:]
    if sys.argv[1] == "ask":
        ask(where, *words)
    elif sys.argv[1] == "answer":
        print(answer(where, *words))
    else:
        withdraw(where, *words)
