"""Directories of this host as build contexts: makes the archive of a build request."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

from ._errors import InvalidArgumentError
from ._ignore import BadPattern, Ignore

if TYPE_CHECKING:
    from tarfile import TarInfo

# Bounds on a build. They equal the daemon's.
MAX_DOCKERFILE = 1 << 20  # bytes
MAX_CONTENT = 8 << 30  # bytes of files
MAX_ENTRIES = 1 << 20
MAX_NAMES = 64 << 20  # bytes of names, and of targets of links
MAX_PARTS = 255  # parts of a name
MAX_IGNORE = 1 << 20  # bytes of a .dockerignore
MAX_LINKS = 40  # links that Linux follows in one path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for a pipe

KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def bad(field: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {text}", field=field)


def kind_of(mode: int) -> str:
    return next((name for check, name in KINDS if check(mode)), "a device")


class BuildContext:
    """A directory whose files a build may copy, with its Dockerfile and its .dockerignore.

    Files below the directory are not trusted: no path may lead out of it, and no pipe is read. A Dockerfile
    outside of the directory was chosen by the caller, and is read without such checks."""

    def __init__(self, directory: str | None, dockerfile: str | None, text: str | None) -> None:
        self.directory = directory or ""
        self.root: int | None = None
        self.ignore = Ignore()
        self.name, self.text = dockerfile or "Dockerfile", text or ""
        if directory is not None:
            try:
                self.root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as e:
                raise bad("context", f"{directory}: {e.strerror}: want a directory of this host") from e
        try:
            own = False
            if text is None:
                name, inside = self.place(self.name)
                data = self.read("dockerfile", name, inside, MAX_DOCKERFILE, chosen=True)
                if data is None:
                    raise bad("dockerfile", f"{self.shown(name)}: there is no such file")
                try:
                    self.text = data.decode()
                except UnicodeDecodeError as e:
                    raise bad("dockerfile", f"{self.shown(name)}: it is not UTF-8: convert it") from e
                own = self.read_ignore(name + ".dockerignore", inside)
            if not own and self.root is not None:
                self.read_ignore(".dockerignore", inside=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.root is not None:
            os.close(self.root)
            self.root = None

    def shown(self, name: str) -> str:
        """The name of a file of the context in errors."""
        return os.path.join(self.directory, name)

    def place(self, dockerfile: str) -> tuple[str, bool]:
        """The path of the Dockerfile, and whether it is in the context. A path outside is resolved by the system."""
        if self.root is None:
            raise bad("dockerfile", "without a context there is no file: give dockerfile_text")
        path = os.path.abspath(os.path.join(self.directory, dockerfile))
        inside = os.path.relpath(path, os.path.abspath(self.directory))
        return (path, False) if inside.split("/")[0] == ".." else (inside, True)

    def read_ignore(self, name: str, inside: bool) -> bool:
        """Reads the patterns of the .dockerignore, and returns whether there is such a file."""
        data = self.read("context", name, inside, MAX_IGNORE, chosen=False)
        if data is None:
            return False
        try:
            self.ignore = Ignore(data)
        except BadPattern as e:
            raise bad("context", f"{self.shown(name)}: {e}") from e
        return True

    def read(self, field: str, name: str, inside: bool, most: int, *, chosen: bool) -> bytes | None:
        """The content of a file that is part of the request; None if it does not exist."""
        shown = self.shown(name)
        try:
            fd = self.beneath(field, name) if inside else os.open(name, os.O_RDONLY | (0 if chosen else os.O_NONBLOCK))
        except FileNotFoundError:
            return None
        except OSError as e:
            raise bad(field, f"{shown}: {e.strerror}") from e
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, fd)
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode) and (inside or not chosen or stat.S_ISDIR(mode)):
                raise bad(field, f"{shown}: it is {kind_of(mode)}: want a file")
            stack.pop_all()
        with open(fd, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise bad(field, f"{shown} has more than {most} bytes")
        return data

    def beneath(self, field: str, name: str) -> int:
        """Opens a file below the context. Links may not lead out of it."""
        assert self.root is not None
        above, todo, links = [os.dup(self.root)], name.split("/")[::-1], 0
        try:
            while todo:
                part, target = todo.pop(), None
                if part in ("", "."):
                    continue
                if part == "..":
                    if len(above) == 1:
                        break
                    os.close(above.pop())
                    continue
                with contextlib.suppress(OSError):
                    target = os.readlink(part, dir_fd=above[-1])
                if target is not None:
                    links += 1
                    if links > MAX_LINKS or target.startswith("/"):
                        break
                    todo += target.split("/")[::-1]
                elif todo:
                    above.append(os.open(part, DIRECTORY, dir_fd=above[-1]))
                else:
                    return os.open(part, FILE, dir_fd=above[-1])
        except FileNotFoundError:
            if not links:
                raise
        finally:
            for fd in above:
                os.close(fd)
        why = "the link leads to no file of the build context: put the file itself there"
        raise bad(field, f"{self.shown(name)}: {why}")

    def pack(self, request: dict[str, Any], into: IO[bytes]) -> None:
        """Writes the archive of a build: the request, and the files of the context under their names."""
        import tarfile

        packing = _Packing(self, into)
        body = json.dumps(request).encode()
        info = tarfile.TarInfo("build.json")
        info.size, info.mode = len(body), 0o600
        packing.header(info)
        into.write(body + bytes(-len(body) % tarfile.BLOCKSIZE))
        if self.root is not None:
            packing.directory(self.root, [])
        into.write(bytes(2 * tarfile.BLOCKSIZE))
        into.seek(0)


class _Packing:
    """The state of writing a context."""

    def __init__(self, context: BuildContext, into: IO[bytes]) -> None:
        self.context, self.into = context, into
        self.omitted: list[tuple[str, os.stat_result]] = []  # omitted directories, each inside the previous one
        self.entries = self.names = self.content = 0

    def header(self, info: TarInfo) -> None:
        import tarfile

        self.into.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def directory(self, fd: int, parts: list[str]) -> None:
        """Writes the content of a directory."""
        if len(parts) >= MAX_PARTS:
            raise self.refused("/".join(parts[:3]) + "/…", f"its names have more than {MAX_PARTS} parts")
        for name in sorted(os.listdir(fd), key=os.fsencode):
            path = "/".join([*parts, name])
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            left, is_dir = self.context.ignore.out(path), stat.S_ISDIR(info.st_mode)
            self.omitted = [(dir, i) for dir, i in self.omitted if path.startswith(dir + "/")]
            if left:
                if not is_dir or not self.context.ignore.exceptions:
                    continue
                self.omitted.append((path, info))
            else:
                above, self.omitted = self.omitted, []  # omitted directories that have this file below them
                for omitted, of in above:
                    self.entry(fd, omitted, "", of)
                self.entry(fd, path, name, info)
            if is_dir:
                below = self.opened(fd, name, path, info, DIRECTORY)
                try:
                    self.directory(below, [*parts, name])
                finally:
                    os.close(below)

    def refused(self, path: str, why: str) -> InvalidArgumentError:
        return bad("context", f"{self.context.shown(path)}: {why}")

    def opened(self, fd: int, name: str, path: str, info: os.stat_result, flags: int) -> int:
        """Opens the file that info describes. By now another file may have its name."""
        try:
            opened = os.open(name, flags, dir_fd=fd)
        except OSError as e:
            raise self.refused(path, e.strerror or str(e)) from e
        now = os.fstat(opened)
        was = info.st_dev, info.st_ino, stat.S_IFMT(info.st_mode)  # another file may have the same inode number by now
        if (now.st_dev, now.st_ino, stat.S_IFMT(now.st_mode)) != was:
            os.close(opened)
            raise self.refused(path, "it was replaced while the build context was read")
        return opened

    def entry(self, fd: int, path: str, name: str, info: os.stat_result) -> None:
        import tarfile

        entry, mode = tarfile.TarInfo("context/" + path), info.st_mode
        entry.mode, entry.mtime = stat.S_IMODE(mode) & 0o777, int(info.st_mtime)
        if stat.S_ISDIR(mode):
            entry.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=fd)
        elif stat.S_ISSOCK(mode):
            return
        elif not stat.S_ISREG(mode):
            raise self.refused(
                path,
                f"it is {kind_of(mode)}, and a build context has files, directories and links only: name it in "
                ".dockerignore",
            )
        else:
            entry.mode, entry.size = stat.S_IMODE(mode) & 0o6777, info.st_size
        self.count(entry)
        if not stat.S_ISREG(mode):
            self.header(entry)
            return
        with open(self.opened(fd, name, path, info, FILE), "rb") as file:
            self.header(entry)
            left = info.st_size
            while left:
                if not (data := file.read(min(left, 1 << 20))):
                    raise self.refused(path, "it became shorter while it was read")
                self.into.write(data)
                left -= len(data)
        self.into.write(bytes(-info.st_size % tarfile.BLOCKSIZE))

    def count(self, entry: TarInfo) -> None:
        """Counts an entry, and raises an error if the context exceeds the daemon's bounds."""
        self.entries += 1
        self.content += entry.size
        self.names += len(os.fsencode(entry.name)) - len("context/") + len(os.fsencode(entry.linkname))
        for n, most, what in (
            (self.entries, MAX_ENTRIES, f"{MAX_ENTRIES} files"),
            (self.content, MAX_CONTENT, f"{MAX_CONTENT >> 30} GiB"),
            (self.names, MAX_NAMES, f"{MAX_NAMES >> 20} MiB of names and links"),
        ):
            if n > most:
                raise bad("context", f"the build context has more than {what}: leave files out in .dockerignore")
