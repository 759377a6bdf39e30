"""Reads and writes files of a sandbox."""

from __future__ import annotations

import os
from builtins import list as List
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Literal, overload

from .. import _args, _tar
from .._answers import MAX_FILE, parsed, problem_of
from .._codes import ConflictError, NotFoundInSandboxError
from .._errors import StreamBrokenError
from .._lines import ServerEvents
from .._names import knows_e2b
from .._wire import File, FileChange
from . import _runtime

if TYPE_CHECKING:
    from ._sandbox import AsyncSandbox

Path = str | os.PathLike[str]
Content = str | bytes | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]

SPOOLED = 16 << 20  # bytes of an archive that are held in memory


def where(path: Path, user: str | None) -> List[tuple[str, str]]:
    params = [("path", _args.path("path", path))]
    return params if user is None else [*params, ("username", _args.text("user", user))]


@knows_e2b
class AsyncFiles:
    """Reads and writes files in a sandbox. Relative paths begin at the home of the user, by default the
    sandbox's own user."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    @overload
    async def read(self, path: Path, *, format: Literal["text"] = "text", user: str | None = None) -> str: ...

    @overload
    async def read(self, path: Path, *, format: Literal["bytes"], user: str | None = None) -> bytes: ...

    async def read(
        self, path: Path, *, format: Literal["text", "bytes"] = "text", user: str | None = None
    ) -> str | bytes:
        """The content of a file of at most 1 GiB, as bytes or as text. In text, surrogates replace bytes that
        are not UTF-8."""
        _args.one_of("format", format, ("text", "bytes"))
        data = await self.read_bytes(path, user=user)
        return data if format == "bytes" else data.decode("utf-8", "surrogateescape")

    async def read_bytes(self, path: Path, *, user: str | None = None) -> bytes:
        """The content of a file of at most 1 GiB."""
        return await self._read(path, user, MAX_FILE)

    async def _read(self, path: Path, user: str | None, most: int) -> bytes:
        """The content of a file of at most `most` bytes."""
        larger = "read_stream reads the file in parts"
        return (await self._sandbox._call("GET", "/files", params=where(path, user), most=most, larger=larger)).body

    @asynccontextmanager
    async def read_stream(self, path: Path, *, user: str | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """The content of a file in parts, for files that are too large for memory."""
        transport = self._sandbox.client._transport
        async with transport.stream(
            "GET", self._sandbox._path("/files"), params=where(path, user), idle=transport.timeout
        ) as response:
            yield transport.chunks(response, f"the content of {path}")

    async def write(self, path: Path, data: Content, *, user: str | None = None) -> None:
        """Replaces a file completely or not at all, and makes its directories. data is text, bytes, a file
        that is open for reading bytes, or an iterable of bytes; at most 1 GiB."""
        await self._upload("/files", where(path, user), "application/octet-stream", data)

    async def _upload(self, path: str, params: List[tuple[str, str]], kind: str, data: object) -> None:
        if isinstance(data, (str, bytes, bytearray, memoryview)):
            content: object = _args.data("data", data)
        elif hasattr(data, "read") or hasattr(data, "__iter__") or hasattr(data, "__aiter__"):
            content = _runtime.bytes_of(data)
        else:
            raise _args.wrong("data", data, "str, bytes, a file or an iterable of bytes")
        await self._sandbox._call("PUT", path, params=params, content=content, headers={"Content-Type": kind})

    async def list(self, path: Path, *, depth: int = 1, user: str | None = None) -> List[File]:
        """The entries of a directory and, with a depth above 1, of the directories below it; at most
        20000 entries."""
        params = [*where(path, user), ("depth", str(_args.whole("depth", depth, 1, 64)))]
        return [File.from_json(f) for f in (await self._sandbox._call("GET", "/files/list", params=params)).json()]

    async def stat(self, path: Path, *, user: str | None = None) -> File:
        """Describes a file, a directory or a link."""
        return File.from_json((await self._sandbox._call("GET", "/files/stat", params=where(path, user))).json())

    get_info = stat
    """E2B's name for stat."""

    async def exists(self, path: Path, *, user: str | None = None) -> bool:
        """Whether a path exists."""
        try:
            await self.stat(path, user=user)
        except NotFoundInSandboxError:
            return False
        return True

    async def make_dir(self, path: Path, *, user: str | None = None) -> bool:
        """Makes a directory and its parents. Returns False if the directory existed."""
        body = _args.given(path=_args.path("path", path), username=_args.optional_text("user", user))
        try:
            await self._sandbox._call("POST", "/files/mkdir", body)
        except ConflictError:
            return False
        return True

    async def rename(self, old: Path, new: Path, *, user: str | None = None) -> File:
        """Moves a file or a directory to another path, and makes the parents of that path. An existing file
        is replaced."""
        body = {"from": _args.path("old", old), "to": _args.path("new", new)} | _args.given(
            username=_args.optional_text("user", user)
        )
        return File.from_json((await self._sandbox._call("POST", "/files/move", body)).json())

    async def remove(self, path: Path, *, user: str | None = None) -> None:
        """Removes a file, or a directory with everything in it. A missing path is not an error."""
        await self._sandbox._call("DELETE", "/files", params=where(path, user))

    @asynccontextmanager
    async def watch(
        self, path: Path, *, recursive: bool = False, user: str | None = None
    ) -> AsyncIterator[AsyncIterator[FileChange]]:
        """Changes in a directory, beginning when the block is entered:

        with sandbox.files.watch("/srv") as changes:
            for change in changes:
                print(change.type, change.name)
        """
        params = where(path, user) + ([("recursive", "true")] if recursive else [])
        transport = self._sandbox.client._transport
        async with transport.stream("GET", self._sandbox._path("/files/watch"), params=params) as response:
            changes = self._changes(transport.chunks(response, f"the watch of {path}"), path)
            begun = await anext(changes)
            if begun.type != "begun":
                raise StreamBrokenError(f"the watch of {path} does not begin: {begun.type}")
            yield changes

    async def _changes(self, chunks: AsyncIterator[bytes], path: Path) -> AsyncIterator[FileChange]:
        events = ServerEvents()
        async for chunk in chunks:
            for event in events.feed(chunk):
                if not event.data:
                    continue
                change = FileChange.from_json(parsed(event.data))
                if change.problem is not None:
                    raise problem_of(
                        change.problem.detail, change.problem.code, change.problem.status, fix=change.problem.fix
                    )
                yield change
        raise StreamBrokenError(f"the watch of {path} broke off: the daemon went away")

    @overload
    async def read_tree(self, path: Path, to: None = None, *, user: str | None = None) -> bytes: ...

    @overload
    async def read_tree(self, path: Path, to: Path, *, user: str | None = None) -> None: ...

    async def read_tree(self, path: Path, to: Path | None = None, *, user: str | None = None) -> bytes | None:
        """Downloads a directory into the directory `to` of this host, and makes `to` if it is missing.
        Without `to`, returns the directory as the bytes of a tar archive of at most 1 GiB. Whatever the
        sandbox sends, nothing is written outside of `to`. A `to` that is a symbolic link is refused, because
        an earlier download may have made the link. If `to` ends in a /, the directory behind the link is
        used."""
        if to is None:
            larger = "read_tree unpacks it into a directory if the call has `to`"
            call = self._sandbox._call("GET", "/archive", params=where(path, user), most=MAX_FILE, larger=larger)
            return (await call).body
        await self._read_tree(path, to, user)
        return None

    async def _read_tree(self, path: Path, to: Path, user: str | None, only_files: bool = False) -> None:
        """Downloads a directory; see _tar.unpack for only_files."""
        import tempfile

        transport = self._sandbox.client._transport
        with tempfile.SpooledTemporaryFile(SPOOLED) as archive:
            async with transport.stream(
                "GET", self._sandbox._path("/archive"), params=where(path, user), idle=transport.timeout
            ) as response:
                async for chunk in transport.chunks(response, f"the archive of {path}"):
                    _tar.add(archive, chunk)
            await _runtime.in_thread(_tar.unpack, archive, os.fspath(to), only_files)

    async def write_tree(self, path: Path, source: Path | bytes, *, user: str | None = None) -> None:
        """Uploads a directory of this host, or the bytes of a tar archive, into a directory of the
        sandbox, which is made if it is missing. Existing files with the same names are replaced; other
        files stay."""
        params = where(path, user)
        if isinstance(source, bytes):
            await self._upload("/archive", params, "application/x-tar", source)
            return
        import tempfile

        with tempfile.SpooledTemporaryFile(SPOOLED) as archive:
            await _runtime.in_thread(_tar.pack, _args.path("source", source), archive)
            await self._upload("/archive", params, "application/x-tar", archive)
