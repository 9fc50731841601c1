"""Synchronous calls of asynchronous code, also from a notebook, whose own event loop is running."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def blocking(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return an asynchronous method as one of the synchronous class that has its object as `aio`."""

    @functools.wraps(call)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(call(self.aio, *args, **kwargs))

    return method


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine; Ctrl-C cancels it, and it cleans up."""

    async def once() -> AsyncGenerator[T]:
        yield await work

    results = iterate(once())
    try:
        return next(results)
    finally:
        results.close()
        if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
            work.close()  # Ctrl-C came first


def iterate(items: AsyncGenerator[T]) -> Generator[T]:
    """Yield the items of an asynchronous generator, which runs in one task from start to end."""
    loop, tasks = _loop(os.getpid()), list[asyncio.Task[Any] | None]()
    received = queue.SimpleQueue[tuple[bool, T | None]]()
    is_cancelled, ended = threading.Event(), threading.Event()

    async def pump() -> None:
        tasks.append(asyncio.current_task())
        try:
            async with aclosing(items):
                if is_cancelled.is_set():
                    return
                async for item in items:
                    received.put((True, item))
        finally:
            ended.set()

    def cancel() -> None:
        for task in filter(None, tasks):
            task.cancel()
        if not tasks:
            ended.set()  # it hasn't begun, and does nothing any more

    try:
        future = asyncio.run_coroutine_threadsafe(pump(), loop)
        future.add_done_callback(lambda _: received.put((False, None)))
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
        # Not through the future: Ctrl-C may come before there is one.
        if not ended.is_set():
            is_cancelled.set()
            loop.call_soon_threadsafe(cancel)
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
