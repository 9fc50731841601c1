"""Synchronous calls of asynchronous code, also from a notebook, whose own event loop is running."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent import futures
from contextlib import aclosing
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine; Ctrl-C cancels it, and it cleans up."""
    loop, tasks = _loop(os.getpid()), list[asyncio.Task[Any] | None]()
    is_cancelled, ended = threading.Event(), threading.Event()

    async def until_end() -> T:
        tasks.append(asyncio.current_task())
        try:
            if is_cancelled.is_set():
                raise asyncio.CancelledError
            return await work
        finally:
            work.close()
            ended.set()

    def cancel() -> None:
        for task in filter(None, tasks):
            task.cancel()

    try:
        future = asyncio.run_coroutine_threadsafe(until_end(), loop)
        while not futures.wait([future], _NOTICE_SECONDS).done:
            pass
        return future.result()
    except BaseException:
        # Not through the future: Ctrl-C may come before there is one.
        if not ended.is_set():
            is_cancelled.set()
            loop.call_soon_threadsafe(cancel)
            ended.wait(_CLOSE_SECONDS)
        raise


def iterate(items: AsyncGenerator[T]) -> Generator[T]:
    """Yield the items of an asynchronous generator, which runs in one task from start to end."""
    received = queue.SimpleQueue[tuple[bool, T | BaseException | None]]()

    started, ended = threading.Event(), threading.Event()

    async def pump() -> None:
        started.set()
        try:
            async with aclosing(items):
                async for item in items:
                    received.put((True, item))
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(pump(), _loop(os.getpid()))
    future.add_done_callback(lambda _: received.put((False, None)))
    try:
        while True:
            try:
                is_item, item = received.get(timeout=_NOTICE_SECONDS)
            except queue.Empty:
                continue
            if not is_item:
                future.result()
                return
            yield item  # type: ignore[misc]
    finally:
        if future.cancel() and started.is_set():
            ended.wait(_CLOSE_SECONDS)  # its connections are closed then


_CLOSE_SECONDS = 10.0
"""For the requests by which a cancelled call cleans up."""
_NOTICE_SECONDS = 0.5
"""How long one wait takes at most: Python notices a Ctrl-C that comes just before a wait only after it."""


@functools.cache
def _loop(_process: int) -> asyncio.AbstractEventLoop:
    """Return the loop of this process, which lives as long; a forked process gets its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="trainjob-client", daemon=True).start()
    return loop
