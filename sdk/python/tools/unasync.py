"""Generates the sync half of the SDK (src/forkd/_sync) from the async half (src/forkd/_async).

The rules are few, so that the async source stays ordinary Python:

* names in RENAMED are replaced, and names lose the prefix Async;
* the words await and async are removed;
* a line that ends in "# async only" is dropped, and a comment "# sync: CODE" becomes CODE.

_runtime.py is written by hand in both halves: in _async for event loops, in _sync for threads.
"""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src/forkd/_async"
BY_HAND = {"_runtime.py"}

RENAMED = {
    "_async": "_sync",
    "aclose": "close",
    "aiter": "iter",
    "anext": "next",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "handle_async_request": "handle_request",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "asynccontextmanager": "contextmanager",
    "AsyncIterator": "Iterator",
    "AsyncIterable": "Iterable",
    "AsyncGenerator": "Generator",
    "AsyncExitStack": "ExitStack",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "enter_async_context": "enter_context",
    "push_async_callback": "callback",
}
HEADER = "# Made from _async/{name} by tools/unasync.py. Do not edit.\n"
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def rename(match: re.Match[str]) -> str:
    word = match[0]
    if word in RENAMED:
        return RENAMED[word]
    if word.startswith("Async") and len(word) > 5:
        return word[5:]
    return word


def line_of(line: str) -> str | None:
    """The sync form of a line; None if it has none."""
    if line.rstrip().endswith("# async only"):
        return None
    line = re.sub(r"^(\s*)# sync: ?", r"\1", line)
    line = re.sub(r"\basync (def|with|for)\b", r"\1", line)
    line = re.sub(r"\bawait ", "", line)
    return WORD.sub(rename, line)


def convert(text: str, name: str) -> str:
    lines = (line_of(line) for line in text.splitlines(keepends=True))
    return HEADER.format(name=name) + "".join(line for line in lines if line is not None)


def files() -> dict[Path, str]:
    """The generated files and their content."""
    out = {}
    for source in sorted(SOURCE.glob("*.py")):
        if source.name not in BY_HAND:
            out[SOURCE.parent / "_sync" / source.name] = convert(source.read_text(), source.name)
    return out
