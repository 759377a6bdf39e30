"""An archive from a sandbox cannot write outside of the directory into which it is unpacked."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkd import ForkdError, InvalidArgumentError, Sandbox, _tar

FILE, HARD, SOFT, DIR = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE


def archive(*entries: tuple[Any, ...], **more: Any) -> io.BytesIO:
    """An archive of entries (type, name, content of a file or target of a link, mode)."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for kind, name, text, *mode in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = kind, mode[0] if mode else 0o644, 1234567890
            member.pax_headers = more
            content = text.encode() if kind == FILE else b""
            member.size, member.linkname = len(content), "" if kind == FILE else text
            tar.addfile(member, io.BytesIO(content))
    return made


def refused(tmp_path: Path, *entries: tuple[Any, ...], match: str = "cannot be unpacked") -> None:
    with pytest.raises(ForkdError, match=match) as caught:
        _tar.unpack(archive(*entries), str(tmp_path / "in"))
    assert caught.value.code == "bad_archive"


def test_a_path_that_is_too_long_for_realpath_leads_nowhere(tmp_path: Path) -> None:
    """CVE-2025-4517: the filters of tarfile use realpath, which gives up on long paths."""
    victim = tmp_path / ".ssh" / "authorized_keys"
    victim.parent.mkdir()
    victim.write_text("kept")
    entries: list[tuple[Any, ...]] = []
    path, long = "", "d" * 247
    for letter in "abcdefghijklmnop":
        entries += [(DIR, path + long, ""), (SOFT, path + letter, long)]
        path += long + "/"
    links = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    entries += [
        (SOFT, links, "../" * 16),
        (SOFT, "escape", links + "/../.ssh"),
        (HARD, "flag", "escape/authorized_keys"),
        (FILE, "flag", "overwritten"),
    ]
    refused(tmp_path, *entries)
    assert victim.read_text() == "kept"
    assert not os.path.lexists(tmp_path / "in/escape")


@pytest.mark.parametrize(
    "entries",
    [
        [(FILE, "../evil", "x")],
        [(FILE, "a/../../evil", "x")],
        [(DIR, "../evil", "")],
        [(SOFT, "l", "../out"), (FILE, "l/kept", "x")],
        [(SOFT, "l", ".."), (SOFT, "l/evil", "x")],
        [(SOFT, "l", "OUT")],
        [(SOFT, "a/l", "../../out")],
        [(DIR, "p/q", ""), (SOFT, "p/q/x", "."), (SOFT, "y", "p/q/x/../../../out")],
        [(HARD, "h", "../out/kept")],
        [(SOFT, "l", "."), (HARD, "h", "l/../out/kept")],
        [(SOFT, "l", "f"), (HARD, "h", "l")],
        [(HARD, "h", "missing")],
        [(DIR, "d", ""), (HARD, "h", "d")],
        [(FILE, "f", "x"), (FILE, "f/g", "x")],
        [(DIR, "d", ""), (FILE, "d", "x")],
        [(tarfile.CHRTYPE, "null", "")],
        [(tarfile.FIFOTYPE, "pipe", "")],
        [(FILE, "p" * 256, "x")],
        [(DIR, "d/" * 256, "")],
        [(FILE, "abc/" * 1100, "x")],
        [(SOFT, "l", "x" * 4096)],
    ],
    ids=lambda entries: f"{entries[-1][1]:.20}",
)
def test_nothing_leads_out(tmp_path: Path, entries: list[tuple[Any, ...]]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/kept").write_text("kept")
    refused(tmp_path, *[(kind, name, text.replace("OUT", str(tmp_path / "out"))) for kind, name, text in entries])
    assert os.listdir(tmp_path / "out") == ["kept"] and (tmp_path / "out/kept").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_only_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/old").symlink_to("../out")
    entries = [(DIR, "d", ""), (FILE, "d/f", "x"), (HARD, "h", "d/f"), (SOFT, "l", "/etc/passwd"), (SOFT, "m", "..")]
    entries += [(tarfile.FIFOTYPE, "pipe", ""), (tarfile.CHRTYPE, "null", ""), (FILE, "old", "new")]
    _tar.unpack(archive(*entries), str(tmp_path / "in"), True)
    assert sorted(os.listdir(tmp_path / "in")) == ["d", "h", "old"] and (tmp_path / "in/h").read_text() == "x"
    assert (tmp_path / "in/old").read_text() == "new" and os.listdir(tmp_path) == ["in"]
    with pytest.raises(ForkdError, match="leads out"):
        _tar.unpack(archive((FILE, "../evil", "x")), str(tmp_path / "in"), True)


def test_links_that_were_there_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "in/p/q").mkdir(parents=True)
    (tmp_path / "in/l").symlink_to("../out")
    (tmp_path / "in/p/q/x").symlink_to(".")
    refused(tmp_path, (FILE, "l/evil", "x"))
    refused(tmp_path, (DIR, "l", ""))
    refused(tmp_path, (SOFT, "y", "p/q/x/../../../out"))
    _tar.unpack(archive((FILE, "l", "x")), str(tmp_path / "in"))  # replaced
    assert (tmp_path / "in/l").read_text() == "x" and os.listdir(tmp_path / "out") == []


def test_links_of_earlier_archives_lead_nowhere(tmp_path: Path) -> None:
    """A later archive can turn a name, a file or a link of an earlier one into a link to elsewhere."""
    (tmp_path / "home").mkdir()
    to = tmp_path / "work/out"
    for first in ((), ((FILE, "a", "x"),), ((DIR, "d/e", ""), (SOFT, "a", "d/e"))):
        for target in ("a/b/../../../home", "a/../../../home", "./a/../home"):
            with pytest.raises(ForkdError, match="leads out of the directory"):
                _tar.unpack(archive(*first, (SOFT, "proj", target)), str(to))
        assert not os.path.lexists(to / "proj")
    _tar.unpack(archive((DIR, "d/e", ""), (SOFT, "d/e/up", ".././../f"), (FILE, "f", "x")), str(to))
    assert (to / "d/e/up").read_text() == "x"


def test_a_link_is_no_target(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "proj").symlink_to("home")
    (tmp_path / "new").symlink_to("home/new")
    for name in ("proj", "new"):
        with pytest.raises(InvalidArgumentError, match="is a symbolic link") as caught:
            _tar.unpack(archive((FILE, "file", "x")), str(tmp_path / name))
        assert caught.value.field == "to"
    assert os.listdir(home) == []
    _tar.unpack(archive((FILE, "file", "x")), f"{tmp_path}/proj/")
    assert (home / "file").read_text() == "x"


def test_ordinary_trees(tmp_path: Path) -> None:
    to = tmp_path / "in"
    to.mkdir()
    (to / "keep").write_text("kept")
    (to / "other").write_text("of before")
    os.link(to / "other", tmp_path / "outside")
    entries = [
        (DIR, ".", ""),
        (DIR, "./a/", "", 0o700),
        (DIR, "a/empty", ""),
        (FILE, "a/run", "#!/bin/sh\n", 0o6777),
        (FILE, "a/odd", "x", 0o011),
        (FILE, "other", "new"),
        (FILE, "/absolute", "x"),
        (HARD, "first", "a/run"),  # an earlier entry than its target, which GNU tar never writes
        (SOFT, "a/link", "../other"),
        (SOFT, "chain", "a/link"),
        (SOFT, "loop", "loop"),
        (SOFT, "dangling", "a/none"),
        (FILE, "twice", "x"),
        (SOFT, "twice", "other"),
        (SOFT, "again", "other"),
        (FILE, "again", "x" * 600000),
    ]
    for _ in range(2):  # the second time, it replaces an existing tree
        _tar.unpack(archive(*entries), str(to))
        assert (to / "a/run").stat().st_mode & 0o7777 == 0o755 and (to / "a/odd").stat().st_mode & 0o7777 == 0o600
        assert (to / "a/run").stat().st_mtime == (to / "a").stat().st_mtime == 1234567890
        assert os.listdir(to / "a/empty") == []
        assert (to / "keep").read_text() == "kept" and (to / "absolute").read_text() == "x"
        assert (to / "chain").read_text() == "new" and os.readlink(to / "a/link") == "../other"
        assert (tmp_path / "outside").read_text() == "of before", "a file is replaced, not written to"
        assert os.path.samefile(to / "first", to / "a/run") and not (to / "first").is_symlink()
        assert os.readlink(to / "twice") == "other" and os.readlink(to / "loop") == "loop"
        assert (to / "again").stat().st_size == 600000 and not (to / "again").is_symlink()
        assert os.readlink(to / "dangling") == "a/none"


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(tmp_path, (FILE, "f", "x", 0o644), (SOFT, "l", "\0"))
    with pytest.raises(ForkdError, match="a header is too long"):
        _tar.unpack(archive((FILE, "f", "x"), comment="x" * (2 << 20)), str(tmp_path / "in"))
    with pytest.raises(ForkdError, match="cannot be unpacked"):
        _tar.unpack(archive((FILE, "f", "x"), size="-1024"), str(tmp_path / "in"))
    with pytest.raises(ForkdError, match="of content"):
        _tar.unpack(archive((FILE, "f", "x"), size=str(1 << 62)), str(tmp_path / "in"))
    whole = archive((FILE, "f", "x" * 3000)).getvalue()
    for length in (100, 1000, 3000):
        with pytest.raises(ForkdError, match="cannot be unpacked"):
            _tar.unpack(io.BytesIO(whole[:length]), str(tmp_path / "in"))
    monkeypatch.setattr(_tar, "MAX_ENTRIES", 2)
    refused(tmp_path, *[(DIR, name, "") for name in "abc"], match="more than 2 entries")


def test_links_are_checked_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looked = os.readlink, 0

    def counted(*args: Any, **more: Any) -> str:
        nonlocal looked
        looked += 1
        return read(*args, **more)

    monkeypatch.setattr(os, "readlink", counted)
    chain = [(SOFT, f"c{n}", (f"c{n + 1}/" if n < 7 else "") + "b/" * 1000) for n in range(8)]
    refused(tmp_path, *chain, match="a link leads to a name of more than 255 parts")
    assert looked <= _tar.MAX_STEPS
    dots = [(SOFT, f"t{n}", (f"t{n + 1}/" if n < 7 else "") + "./" * 1000) for n in range(8)]
    refused(tmp_path, *dots, match="its links have too many parts")
    assert looked <= 2 * (_tar.MAX_STEPS + 8 * _tar.STEPS_PER_LINK)
    assert os.listdir(tmp_path / "in") == []


def test_names_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tar, "MAX_KEPT", 1000)
    for kind in (DIR, HARD, SOFT):
        entries = [(kind, f"{n}" * 100, "" if kind == DIR else "x") for n in range(1, 20)]
        refused(tmp_path, *entries, match="more than 1000 bytes")
    _tar.unpack(archive(*[(FILE, f"f{n}" * 50, "x") for n in range(20)]), str(tmp_path / "in"))


def test_an_archive_of_any_length_is_not_kept(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "file").write_bytes(bytes(100_000))
    sandbox.files.read_tree(directory, tmp_path / "in")
    monkeypatch.setattr(_tar, "MAX_BYTES", 50_000)
    with pytest.raises(ForkdError, match="more than 50000 bytes"):
        sandbox.files.read_tree(directory, tmp_path / "in")


def header(kind: bytes, size: int, extended: bool = False) -> bytes:
    """A header with a checksum. extended: the map of a sparse file continues in the next block."""
    made = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    made[124:136], made[156:157], made[482] = b"%011o\0" % size, kind, extended
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def records(prefix: str) -> bytes:
    """An extended header of almost 1 MiB with records of minimum length."""
    return b"".join(b"11 %s%05x=\n" % (prefix.encode(), n) for n in range(80000))


def padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 512)


def global_headers() -> Iterator[bytes]:
    for n in range(16):
        text = records(chr(ord("g") + n))
        yield header(b"g", len(text)) + padded(text) + header(DIR, 0)


def sparse_map() -> Iterator[bytes]:
    yield header(b"S", 0, extended=True)
    block = (b"%011o\0" % 1) * 42 + b"\1" + b"\0" * 7
    yield block * (16 << 20 >> 9)


def chained_headers() -> Iterator[bytes]:
    for n in range(16):
        text = records(chr(ord("g") + n))
        yield header(b"x", len(text)) + padded(text)
    yield header(DIR, 0)


@pytest.mark.parametrize("parts", [global_headers, sparse_map, chained_headers])
def test_headers_do_not_fill_the_memory(tmp_path: Path, parts: Any) -> None:
    made = io.BytesIO()
    for part in parts():
        made.write(part)
    made.write(bytes(1024))
    tracemalloc.start()
    try:
        with pytest.raises(ForkdError, match="header") as caught:
            _tar.unpack(made, str(tmp_path / "in"))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == "bad_archive"
    assert most < 64 << 20


def test_a_long_file_is_no_header(tmp_path: Path) -> None:
    """The bound on headers does not count content, and starts again with every entry."""
    long = "x" * (3 << 20)
    entries = [(FILE, "d" * 200 + str(n), long if n == 0 else "") for n in range(2000)]
    _tar.unpack(archive(*entries), str(tmp_path / "in"))
    assert (tmp_path / "in" / ("d" * 200 + "0")).read_text() == long
    assert len(os.listdir(tmp_path / "in")) == len(entries)
