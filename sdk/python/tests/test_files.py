"""Files."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from forkd import ForkdError, Sandbox
from forkd.errors import NotFoundInSandboxError


@pytest.fixture
def place(rig: Any, request: pytest.FixtureRequest) -> Path:
    place: Path = rig.tmp / request.node.name.replace("[", "-").replace("]", "")
    place.mkdir()
    return place


def test_read_what_was_written(sandbox: Sandbox, place: Path) -> None:
    sandbox.files.write(place / "deep/er/text", "häll\u2028o")
    assert sandbox.files.read(place / "deep/er/text") == "häll\u2028o"
    data = bytes(range(256)) * 1000
    sandbox.files.write(place / "data", data)
    assert sandbox.files.read_bytes(place / "data") == sandbox.files.read(place / "data", format="bytes") == data
    assert sandbox.files.read(place / "data").encode("utf-8", "surrogateescape") == data, "nothing is lost as text"
    sandbox.files.write(place / "back", sandbox.files.read(place / "data"))
    assert sandbox.files.read_bytes(place / "back") == data


def test_write_a_stream_and_read_one(sandbox: Sandbox, place: Path) -> None:
    data = os.urandom(1 << 20)
    sandbox.files.write(place / "a", io.BytesIO(data))
    sandbox.files.write(place / "b", (data[i : i + 1000] for i in range(0, len(data), 1000)))
    with sandbox.files.read_stream(place / "a") as parts:
        assert b"".join(parts) == data
    assert sandbox.files.read_bytes(place / "b") == data


def test_stat_exists_list_make_dir_rename_remove(sandbox: Sandbox, place: Path) -> None:
    assert sandbox.files.make_dir(place / "d/e") is True
    assert sandbox.files.make_dir(place / "d/e") is False
    sandbox.files.write(place / "d/e/f", b"123")
    info = sandbox.files.stat(place / "d/e/f")
    assert (info.name, info.type, info.size) == ("f", "file", 3)
    assert [f.name for f in sandbox.files.list(place / "d")] == ["e"]
    assert [f.name for f in sandbox.files.list(place / "d", depth=3)] == ["e", "f"]
    assert sandbox.files.rename(place / "d/e/f", place / "g/h").path == str(place / "g/h")
    assert not sandbox.files.exists(place / "d/e/f") and sandbox.files.exists(place / "g/h")
    sandbox.files.remove(place / "g")
    sandbox.files.remove(place / "g")
    assert not sandbox.files.exists(place / "g")
    with pytest.raises(NotFoundInSandboxError) as caught:
        sandbox.files.read(place / "g/h")
    assert caught.value.status == 404 and caught.value.code == "not_found_in_sandbox"


def test_watch(sandbox: Sandbox, place: Path) -> None:
    with sandbox.files.watch(place) as changes:
        sandbox.files.write(place / "new", "x")
        assert (change := next(changes)).type == "create" and change.name == "new"
    (place / "below").mkdir()
    with sandbox.files.watch(place, recursive=True) as changes:
        (place / "below/file").write_text("")
        assert next(c for c in changes if c.type == "create").name == "below/file"
    with pytest.raises(NotFoundInSandboxError), sandbox.files.watch(place / "missing"):
        pass


def test_trees_up_and_down(sandbox: Sandbox, place: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/run").write_text("#!/bin/sh\n")
    (source / "a/b/run").chmod(0o755)
    (source / "link").symlink_to("a/b/run")
    os.mkfifo(source / "pipe")
    sandbox.files.write_tree(place / "up", source)
    assert os.readlink(place / "up/link") == "a/b/run" and os.access(place / "up/a/b/run", os.X_OK)
    assert not (place / "up/pipe").exists(), "what is neither file, directory nor link is left out"
    sandbox.files.read_tree(place / "up", tmp_path / "down")
    assert (tmp_path / "down/link").read_text() == "#!/bin/sh\n"
    archive = sandbox.files.read_tree(place / "up")
    assert "a/b/run" in {n.removeprefix("./") for n in tarfile.open(fileobj=io.BytesIO(archive)).getnames()}
    sandbox.files.write_tree(place / "again", archive)
    assert (place / "again/a/b/run").exists()


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "device"])
def test_no_archive_leads_out_of_its_directory(tmp_path: Path, kind: str) -> None:
    from forkd import _tar

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        name = {"parent": "../evil", "absolute": str(tmp_path / "evil"), "link": "link", "device": "null"}[kind]
        member = tarfile.TarInfo(name)
        if kind == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "../../evil"
        elif kind == "device":
            member.type = tarfile.CHRTYPE
        tar.addfile(member)
    if kind == "absolute":
        _tar.unpack(archive, str(tmp_path / "in"))  # the leading slash is removed
    else:
        with pytest.raises(ForkdError, match="cannot be unpacked"):
            _tar.unpack(archive, str(tmp_path / "in"))
    assert not (tmp_path / "evil").exists()
