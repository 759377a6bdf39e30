"""Makes several attempts concurrently and keeps the best one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import _args
from .._errors import ForkdError
from . import _runtime
from ._sandbox import AsyncSandbox

Attempt = str | Sequence[str] | Callable[[AsyncSandbox], Any]
"""A command as for commands.run, or a function that is called with the child."""

Judge = Callable[[AsyncSandbox, Any], "float | bool | None | Awaitable[float | bool | None]"]
"""Is called with a child and the result of its attempt, and returns a score; None rejects the attempt."""


@dataclass
class AsyncBest:
    """The best of several attempts."""

    sandbox: AsyncSandbox
    """The child with the best attempt. It keeps running, for the caller to use or kill."""
    result: Any
    """The result of the best attempt: for a command, a CommandResult."""
    score: float
    index: int
    """The index of the best attempt."""
    results: list[Any]
    """The result of every attempt, or the exception that it raised."""
    scores: list[float | None]


async def best_of(sandbox: AsyncSandbox, attempts: Sequence[Attempt], judge: Judge, **options: Any) -> AsyncBest:
    """Forks a child of a sandbox for every attempt, runs the attempts concurrently and judges each in its
    child. Then it keeps the child with the highest score and kills the others. The options are those of
    Sandbox.fork. An attempt that raises, or whose score is None, is rejected. If all are rejected, every
    child is killed, and an ExceptionGroup contains the exceptions of the attempts."""
    if isinstance(attempts, str) or not attempts:
        raise _args.wrong("attempts", attempts, "a list of commands or functions that is not empty")
    for attempt in attempts:
        if not callable(attempt):
            _args.command(attempt)
    children = await sandbox.fork(len(attempts), **options)
    best: int | None = None
    try:
        tried = await _runtime.gather([partial(_try, c, a, judge) for c, a in zip(children, attempts)])
        results = [t if isinstance(t, Exception) else t[0] for t in tried]
        scores = [None if isinstance(t, Exception) or t[1] is None else float(t[1]) for t in tried]
        ranked = [i for i, score in enumerate(scores) if score is not None]
        if not ranked:
            failed = [t for t in tried if isinstance(t, Exception)]
            failed = failed or [ForkdError("judge returned None for every attempt", code="no_attempt")]
            raise ExceptionGroup(f"none of {len(children)} attempts is any good", failed)
        best = max(ranked, key=lambda i: (scores[i], -i))
        return AsyncBest(children[best], results[best], scores[best] or 0.0, best, results, scores)
    finally:
        await _runtime.gather([c.kill for i, c in enumerate(children) if i != best])


async def _try(child: AsyncSandbox, attempt: Attempt, judge: Judge) -> tuple[Any, Any]:
    if callable(attempt):
        result = await _runtime.resolved(attempt(child))
    else:
        result = await child.commands.run(attempt)
    return result, await _runtime.resolved(judge(child, result))
