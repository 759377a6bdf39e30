"""What differs between threads and event loops, for the sync half. Its counterpart is _async/_runtime.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import httpx2

    from .._address import Address

T = TypeVar("T")
Lock = threading.Lock
sleep = time.sleep


class Pools:
    """The connections of a client: one pool for all threads, and another one in a process that was forked."""

    def __init__(self, address: Address, options: Callable[[Address], dict[str, Any]]) -> None:
        self.address, self.options = address, options
        self.lock = threading.Lock()
        self.pool: httpx2.HTTPTransport | None = None
        self.owner = 0  # the process that made the pool
        self.closed = False

    def get(self) -> httpx2.HTTPTransport:
        with self.lock:
            if self.closed:
                raise RuntimeError("this client was closed")
            if self.pool is None or self.owner != os.getpid():
                import httpx2

                self.pool = httpx2.HTTPTransport(**self.options(self.address))
                self.owner = os.getpid()
            return self.pool

    def close(self) -> None:
        with self.lock:
            self.closed, pool, self.pool = True, self.pool, None
        if pool is not None and self.owner == os.getpid():
            pool.close()


def gather(calls: Iterable[Callable[[], T]], most: int = 32) -> list[T | Exception]:
    """Makes all calls, at most `most` at a time. Returns what each returned or raised, in order."""
    from concurrent.futures import ThreadPoolExecutor

    todo = list(calls)
    if not todo:
        return []

    def run(call: Callable[[], T]) -> T | Exception:
        try:
            return call()
        except Exception as e:
            return e

    with ThreadPoolExecutor(min(most, len(todo)), "forkd") as threads:
        return list(threads.map(run, todo))


def resolved(value: T) -> T:
    """The result of a callback."""
    return value


def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Calls a function that reads or writes files of this host."""
    return call(*args)


def bytes_of(source: Any) -> Iterable[bytes]:
    """The bytes of an upload. A file is read while it is sent; any other source is iterated over."""
    if hasattr(source, "read"):
        return iter(lambda: source.read(1 << 18), b"")
    return source  # type: ignore[no-any-return]  # the caller has checked source


def first_error(results: Sequence[Any]) -> None:
    for r in results:
        if isinstance(r, Exception):
            raise r
