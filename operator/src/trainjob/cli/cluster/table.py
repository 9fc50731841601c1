"""Jobs as a table: the columns of `kubectl get tj`, with the steps in all beside those that are done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from trainjob.cli.cluster.reading import Job
from trainjob.core.wording import printable, short_duration

_GAP = "   "


def job_header(*, wide: bool, namespaces: bool) -> tuple[str, ...]:
    """Return the titles of the columns."""
    columns = ("NAME", "STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE")
    return (*(("NAMESPACE",) if namespaces else ()), *columns, *(("MESSAGE",) if wide else ()))


def job_row(job: Job, now: datetime, *, wide: bool, namespaces: bool) -> tuple[str, ...]:
    """Return one job's row."""
    status = job.status
    row = (
        job.name,
        "Terminating" if job.deleting else job.state,
        status.worker.summary if status.worker and status.worker.summary else "",
        _step(job),
        (status.progress.eta if status.progress and not job.is_over else None) or "",
        str(status.restarts.charged),
        short_duration(now - job.created_at) if job.created_at else "",
    )
    message = (printable(status.message or "").replace("\n", " "),) if wide else ()
    return (*((job.namespace,) if namespaces else ()), *row, *message)


def layout(rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> Iterator[str]:
    """Yield the rows with columns of equal width, at least as wide as `widths`."""
    every = [[cell or "-" for cell in row] for row in rows]
    wide = column_widths(every, widths)
    for row in every:
        padded = [cell.ljust(width) for cell, width in zip(row, wide, strict=True)]
        yield _GAP.join(padded).rstrip()


def column_widths(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> tuple[int, ...]:
    """Return how wide each column is to be."""
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple(max(pair) for pair in zip(columns, least, strict=True)) if least else tuple(columns)


def _step(job: Job) -> str:
    progress = job.status.progress
    if progress is None or progress.step is None:
        return ""
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)
