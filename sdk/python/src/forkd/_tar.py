"""Packs and unpacks directories of this host as tar archives."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import IO, TYPE_CHECKING, Any

from ._errors import ForkdError, InvalidArgumentError

if TYPE_CHECKING:
    from tarfile import TarFile, TarInfo

# Bounds on an archive and on the names in it. They equal the daemon's.
MAX_BYTES = 64 << 30
MAX_ENTRIES = 4 << 20
MAX_NAME = 4096  # bytes
MAX_PART = 255  # bytes
MAX_PARTS = 255
MAX_READ = 1 << 20  # bytes that the module tarfile reads at a time, such as those of an extended header
MAX_HEADERS = 2 << 20  # bytes of all headers of an entry
MAX_LINKS = 40  # links that Linux follows in one path
MAX_STEPS = 4096  # parts of paths that are walked to check links, in addition to STEPS_PER_LINK for each
STEPS_PER_LINK = 256
MAX_KEPT = 128 << 20  # bytes of the names and targets that are kept until the end of an archive

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The reason why an archive is not unpacked."""


def add(archive: IO[bytes], chunk: bytes) -> None:
    """Appends a part of an archive that a sandbox sends."""
    if archive.tell() + len(chunk) > MAX_BYTES:
        raise ForkdError(
            f"the archive of the sandbox has more than {MAX_BYTES} bytes",
            code="bad_archive",
            fix="read a smaller directory",
        )
    archive.write(chunk)


def save(archive: IO[bytes], to: str) -> None:
    """Writes an archive to a file, which it makes or replaces."""
    import shutil

    archive.seek(0)
    with open(to, "wb") as file:
        shutil.copyfileobj(archive, file, MAX_READ)


def unpack(archive: IO[bytes], to: str, only_files: bool = False) -> None:
    """Unpacks an archive that a sandbox has made, which is not trusted: nothing is written outside of
    the directory, and no devices are made. The filters of the module tarfile have had holes, so this
    function has its own rules: no link is followed, and links are made last. An earlier archive may have
    made links in a parent of the directory, so no link may lead out of the directory, whatever later
    archives make there. With only_files, symbolic links, pipes and devices are omitted; otherwise some
    of them are errors."""
    import tarfile

    if os.path.islink(to):
        raise InvalidArgumentError(
            f"to: {to} is a symbolic link, and nothing is written through one: remove it, or name the directory"
            " itself (a directory behind a link: give the link a / at its end)",
            field="to",
        )
    os.makedirs(to, exist_ok=True)
    archive.seek(0)
    root = os.open(to, DIRECTORY)  # with a / at the end of its name, the link is followed
    try:
        bounded = _Bounded(archive)
        with tarfile.open(fileobj=bounded, mode="r:") as tar:  # type: ignore[call-overload]
            _Unpacking(root, only_files).all(tar, bounded)
    except (Refused, tarfile.TarError, ValueError, RecursionError) as e:
        raise ForkdError(f"the archive of the sandbox cannot be unpacked in {to}: {e}", code="bad_archive") from e
    finally:
        os.close(root)


class _Bounded:
    """An archive whose headers cannot fill the memory."""

    def __init__(self, archive: IO[bytes]) -> None:
        self.seek, self.tell, self._archive, self._ends = archive.seek, archive.tell, archive, 0
        self.left: int | None = MAX_HEADERS  # bytes left for the headers of an entry; None while content is read

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise Refused("a header is too long")
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise Refused(f"an entry has more than {MAX_HEADERS} bytes of headers")
        data = self._archive.read(size)
        self._ends = 0 if data or not size else self._ends + 1
        if self._ends > 8:  # tarfile reads a header again and again if the archive ends inside it
            raise Refused("it ends in the middle of a header")
        return data


def _parts(name: str) -> list[str]:
    """The parts of an entry's name; empty for the directory itself."""
    if len(os.fsencode(name)) > MAX_NAME:
        raise Refused(f"the name {name[:50]!r}… has more than {MAX_NAME} bytes")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise Refused(f"{name!r} leads out of the directory, or no file has that name")
    if len(parts) > MAX_PARTS or any(len(os.fsencode(part)) > MAX_PART for part in parts):
        raise Refused(f"the name {name[:50]!r}… has more than {MAX_PARTS} parts, or one of more than {MAX_PART} bytes")
    return parts


def _open(root: int, parts: list[str], make: bool) -> int:
    """Opens a directory below the root without following links."""
    at = os.dup(root)
    for part in parts:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
            below = os.open(part, DIRECTORY, dir_fd=at)
        except (NotADirectoryError, FileNotFoundError) as e:
            raise Refused(f"{part!r} in {'/'.join(parts)!r} is no directory") from e
        finally:
            os.close(at)
        at = below
    return at


def _remove(name: str, at: int) -> None:
    """Removes an existing file or link whose place a new entry takes."""
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError) as e:
        if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise Refused(f"{name!r} is a directory in one place and something else in another") from e
        raise


class _Unpacking:
    def __init__(self, root: int, only_files: bool) -> None:
        self.root, self.only_files = root, only_files
        self.hard: dict[str, str] = {}  # name to target
        self.soft: dict[str, str] = {}
        self.times: dict[str, float] = {}  # of directories; set after their content is complete
        self.kept = 0  # bytes of the names and targets in the dicts above
        self.steps = MAX_STEPS  # parts of paths that may still be walked to check links

    def all(self, tar: TarFile, archive: _Bounded) -> None:
        left, entries = MAX_BYTES, 0
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # otherwise the TarFile would keep all members
            if tar.pax_headers:  # otherwise global headers would grow with every entry
                raise Refused("it has a global header, which no daemon sends")
            archive.left = None
            entries, left = entries + 1, left - member.size
            if entries > MAX_ENTRIES or left < 0 or member.size < 0:
                raise Refused(f"it has more than {MAX_ENTRIES} entries, or {MAX_BYTES} bytes of content")
            self.one(tar, member)
            archive.left = MAX_HEADERS
        for name, target in self.hard.items():
            self.hard_link(name, target)
        self.steps += STEPS_PER_LINK * len(self.soft)
        for name, target in self.soft.items():
            if _turns(target) or not self.stays(name.rpartition("/")[0], target):
                raise Refused(f"the link {name!r} leads out of the directory: {target[:50]!r}")
        for name, target in self.soft.items():
            *above, last = name.split("/")
            at = _open(self.root, above, make=True)
            try:
                _remove(last, at)
                os.symlink(target, last, dir_fd=at)
            finally:
                os.close(at)
        for name, time in self.times.items():
            at = _open(self.root, name.split("/"), make=False)
            try:
                _set_time(at, time)
            finally:
                os.close(at)

    def one(self, tar: TarFile, member: TarInfo) -> None:
        if not (parts := _parts(member.name)):
            return
        name = "/".join(parts)
        for earlier in (self.hard, self.soft, self.times):
            earlier.pop(name, None)
        if not member.isreg():
            self.kept += len(os.fsencode(name)) + len(os.fsencode(member.linkname))
            if self.kept > MAX_KEPT:
                raise Refused(f"the names of its links and directories have more than {MAX_KEPT} bytes")
        if member.isdir():
            os.close(_open(self.root, parts, make=True))
            self.times[name] = member.mtime
        elif member.isreg():
            at = _open(self.root, parts[:-1], make=True)
            try:
                self.file(tar, member, parts[-1], at)
            finally:
                os.close(at)
        elif member.islnk():
            self.hard[name] = "/".join(_parts(member.linkname))
        elif self.only_files:
            return
        elif member.issym():
            _check_target(name, member.linkname)
            self.soft[name] = member.linkname
        else:
            raise Refused(f"{name!r} is neither a file nor a directory nor a link")

    def file(self, tar: TarFile, member: TarInfo, name: str, at: int) -> None:
        _remove(name, at)
        content = tar.extractfile(member)
        assert content is not None
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at)
        with open(fd, "wb") as file:
            while chunk := content.read(256 << 10):
                file.write(chunk)
            if file.tell() != member.size:
                raise Refused(f"it ends in the middle of {member.name!r}")
            file.flush()
            mode = member.mode & (0o755 if member.mode & 0o100 else 0o644)
            os.fchmod(fd, mode | 0o600)
            _set_time(fd, member.mtime)

    def hard_link(self, name: str, target: str) -> None:
        *above, last = name.split("/")
        *source, file = target.split("/")
        there = _open(self.root, source, make=False)
        try:
            try:
                regular = stat.S_ISREG(os.stat(file, dir_fd=there, follow_symlinks=False).st_mode)
            except FileNotFoundError:
                regular = False
            if not regular:
                raise Refused(f"the link {name!r} leads to no file of the directory: {target!r}")
            if name == target:
                return
            at = _open(self.root, above, make=True)
            try:
                _remove(last, at)
                os.link(file, last, src_dir_fd=there, dst_dir_fd=at, follow_symlinks=False)
            finally:
                os.close(at)
        finally:
            os.close(there)

    def stays(self, here: str, target: str) -> bool:
        """Whether a link in the directory here stays in the root, even through other links."""
        if target.startswith("/"):
            return False
        todo, followed = [target], 0  # paths that are still to be walked, the next one last
        while todo:
            if (steps := self.steps) == 0:
                raise Refused("its links have too many parts")
            self.steps = steps - 1
            part, _, rest = todo.pop().partition("/")
            if rest:
                todo.append(rest)
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    return False
                here = here.rpartition("/")[0]
                continue
            below = f"{here}/{part}" if here else part
            if below.count("/") >= MAX_PARTS or len(os.fsencode(below)) > MAX_NAME:
                raise Refused(f"a link leads to a name of more than {MAX_PARTS} parts or {MAX_NAME} bytes")
            if (another := self.link(below)) is None:
                here = below
            elif another.startswith("/"):
                return False
            elif (followed := followed + 1) > MAX_LINKS:
                return True  # the link leads nowhere, so also not out of the root
            else:
                todo.append(another)
        return True

    def link(self, name: str) -> str | None:
        """The target of a link in the archive, or of an existing link; None if the name is not a link."""
        if (target := self.soft.get(name)) is None:
            with contextlib.suppress(OSError):
                return os.readlink(name, dir_fd=self.root)
        return target


def _turns(target: str) -> bool:
    """Whether ".." follows a name in a link's target. A later archive can make the name a link, and then
    ".." leads elsewhere. At the beginning, ".." leads to the directories that hold the link, which stay."""
    names = False
    for part in target.split("/"):
        if part == ".." and names:
            return True
        names = names or part not in ("", ".", "..")
    return False


def _check_target(name: str, target: str) -> None:
    if not target or "\0" in target or len(os.fsencode(target)) >= MAX_NAME:
        raise Refused(f"the link {name!r} leads to a name that no file has")


def _set_time(fd: int, time: float) -> None:
    with contextlib.suppress(OverflowError, ValueError):  # no file system has such times
        os.utime(fd, (time, time))


def pack(directory: str, into: IO[bytes]) -> None:
    """Packs the content of a directory."""
    import tarfile

    if not os.path.isdir(directory):
        raise InvalidArgumentError(
            f"source: {directory}: want a directory of this host, or the bytes of a tar archive", field="source"
        )

    def plain(member: Any) -> Any:
        return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None

    with tarfile.open(fileobj=into, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        tar.add(directory, arcname=".", filter=plain)
    into.seek(0)
