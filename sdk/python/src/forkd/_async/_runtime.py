"""The parts that differ between event loops and threads, for the async half. See also _sync/_runtime.py."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import httpx2

    from .._address import Address

T = TypeVar("T")
AsyncLock = asyncio.Lock
sleep = asyncio.sleep


class AsyncPools:
    """The connections of a client: a pool for every event loop that uses it. A pool is closed with the
    client, or when its loop ends. To notice the end of the loop, a suspended asynchronous generator
    holds the pool: asyncio.run closes such generators before it closes a loop."""

    def __init__(self, address: Address, options: Callable[[Address], dict[str, Any]]) -> None:
        self.address, self.options = address, options
        self.lock = threading.Lock()
        self.pools: dict[asyncio.AbstractEventLoop, tuple[httpx2.AsyncHTTPTransport, AsyncGenerator[None, None]]] = {}
        self.closed = False

    async def get(self) -> httpx2.AsyncHTTPTransport:
        loop = asyncio.get_running_loop()
        with self.lock:
            if self.closed:
                raise RuntimeError("this client was closed")
            for ended in [other for other in self.pools if other.is_closed()]:
                del self.pools[ended]  # the loop was closed without closing its generators
            if (there := self.pools.get(loop)) is not None:
                return there[0]
            import httpx2

            pool = httpx2.AsyncHTTPTransport(**self.options(self.address))
            guard = self._until_loop_ends(loop, pool)
            self.pools[loop] = pool, guard
        await anext(guard)
        return pool

    async def _until_loop_ends(
        self, loop: asyncio.AbstractEventLoop, pool: httpx2.AsyncHTTPTransport
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with self.lock:
                self.pools.pop(loop, None)
            await pool.aclose()

    async def aclose(self) -> None:
        """Closes the pool of this loop, and lets the other loops close theirs."""
        with self.lock:
            self.closed = True
            pools = dict(self.pools)
        for loop, (_, guard) in pools.items():
            if loop is asyncio.get_running_loop():
                await guard.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(guard.aclose(), loop)


async def gather(calls: Iterable[Callable[[], Awaitable[T]]], most: int = 128) -> list[T | Exception]:
    """Makes all calls, at most `most` at a time. Returns what each returned or raised, in order."""
    places = asyncio.Semaphore(most)

    async def run(call: Callable[[], Awaitable[T]]) -> T | Exception:
        async with places:
            try:
                return await call()
            except Exception as e:
                return e

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(call)) for call in calls]
    return [task.result() for task in tasks]


async def resolved(value: T | Awaitable[T]) -> T:
    """The result of a callback, which may be a coroutine function."""
    return await value if inspect.isawaitable(value) else value


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Calls a function that reads or writes files of this host."""
    return await asyncio.to_thread(call, *args)


async def bytes_of(source: Any) -> AsyncIterator[bytes]:
    """The bytes of an upload. A file is read while it is sent; any other source is iterated over."""
    if hasattr(source, "read"):
        while chunk := await asyncio.to_thread(source.read, 1 << 18):
            yield chunk
    elif hasattr(source, "__aiter__"):
        async for chunk in source:
            yield chunk
    else:
        for chunk in source:
            yield chunk


def first_error(results: Sequence[Any]) -> None:
    for r in results:
        if isinstance(r, Exception):
            raise r
