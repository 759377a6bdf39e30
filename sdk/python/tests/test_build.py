"""Builds from Dockerfiles: the archive, refused contexts, and the progress."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import forkd
from forkd import AsyncClient, BuildFailed, Client, InvalidArgumentError, Snapshot
from forkd._builds import MAX_OUTPUT, Steps
from forkd._context import BuildContext
from forkd._ignore import MAX_KEPT, Automaton, BadPattern, Ignore, Parser, Part, expression
from forkd.errors import BadRequestError, SnapshotExistsError
from forkd.types import BuildOutput, BuildPlan, BuildStep

IGNORE = Path(__file__).resolve().parent.parent.parent.parent / "test/contract/ignore.yaml"
CASES = yaml.safe_load(IGNORE.read_text()) if IGNORE.exists() else []


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_ignore(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(BadPattern):
            Ignore(case["file"].encode())
        return
    ignore = Ignore(case["file"].encode())
    assert {p: ignore.out(p) for p in case.get("in", [])} == dict.fromkeys(case.get("in", []), False)
    assert {p: ignore.out(p) for p in case.get("out", [])} == dict.fromkeys(case.get("out", []), True)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("a*" * 1000 + "b", "a" * 2000), ("**/a/" * 300 + "b", "a/" * 1000 + "a"), ("x{1000}" * 200 + "*b", "x" * 2000)],
)
def test_a_hostile_pattern_takes_no_more_steps_than_pattern_times_path(pattern: str, path: str) -> None:
    parser = Parser(expression(pattern)[1])
    automaton, steps = Automaton(parser), 0

    class Counted(list[Part]):
        def __getitem__(self, i: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().__getitem__(i)

    automaton.parts = Counted(parser.parts)
    assert not automaton.matches(path)
    assert steps <= 2 * len(parser.parts) * (len(path) + 1)
    steps = 0
    for _ in range(100):
        automaton.matches(path[:100])
    assert steps <= 2 * len(parser.parts) * 101, "an automaton keeps what it has found out"


def test_an_automaton_keeps_only_so_much() -> None:
    automaton = Automaton(Parser(expression("*a" + "?" * 12 + "b")[1]))
    for i in range(3000):
        automaton.matches(f"{i:012b}".replace("0", "a").replace("1", "c") * 3)
        assert automaton.kept < 2 * MAX_KEPT
    with pytest.raises(BadPattern, match="it repeats too much"):
        Ignore(b"x{1000}" * 300 + b"*")


def made(root: Path, **files: str | Callable[[Path], Any]) -> Path:
    """A directory with files. In a name, __ means a slash, and _DOT_ a dot."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content) if isinstance(content, str) else content(path)
    return root


def packed(directory: Path, dockerfile: str | None = None) -> bytes:
    context, into = BuildContext(str(directory), dockerfile, None), io.BytesIO()
    try:
        context.pack({"tag": "x"}, into)
    finally:
        context.close()
    return into.getvalue()


def entries(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        assert members[0].name == "build.json" and {(m.uid, m.gid, m.uname) for m in members} == {(0, 0, "")}
        out = {}
        for m in members[1:]:
            name, mode = m.name.removeprefix("context/"), f"{m.mode:o}"
            content = tar.extractfile(m) if m.isreg() else None
            out[name] = f"-> {m.linkname}" if m.issym() else f"{mode} {content.read().decode()}" if content else mode
        return out


def test_what_is_packed(tmp_path: Path) -> None:
    directory = made(
        tmp_path,
        Dockerfile="FROM x",
        a_DOT_log="1",
        keep_DOT_log="2",
        sub__b_DOT_log="3",
        sub__c="4",
        out__big="5",
        out__deep__kept="6",
        run="7",
        link=lambda p: p.symlink_to("/etc"),
        same=lambda p: p.hardlink_to(tmp_path / "sub/c"),
        _DOT_dockerignore="**/*.log\n!keep.log\nout\n!out/deep/kept\n",
        Dockerfile_DOT_dev="FROM y",
        Dockerfile_DOT_dev_DOT_dockerignore="*\n!sub\n",
    )
    (directory / "run").chmod(0o4711)
    (directory / "out").chmod(0o750)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(directory / "socket"))
        first = packed(directory)
    found = entries(first)
    assert found == {
        ".dockerignore": "644 **/*.log\n!keep.log\nout\n!out/deep/kept\n",
        "Dockerfile": "644 FROM x",
        "Dockerfile.dev": "644 FROM y",
        "Dockerfile.dev.dockerignore": "644 *\n!sub\n",
        "keep.log": "644 2",
        "link": "-> /etc",
        "out": "750",
        "out/deep": "755",
        "out/deep/kept": "644 6",
        "run": "4711 7",
        "same": "644 4",
        "sub": "755",
        "sub/c": "644 4",
    }
    assert list(found) == sorted(found) and packed(directory) == first
    assert set(entries(packed(directory, "Dockerfile.dev"))) == {"sub", "sub/b.log", "sub/c"}


def test_names_of_any_bytes_and_lengths(tmp_path: Path) -> None:
    made(tmp_path, Dockerfile="FROM x", **{"d__" * 40 + "x" * 200: "1"})
    with open(os.fsencode(tmp_path) + b"/\xff\xe9", "wb"):
        pass
    names = {os.fsencode(name) for name in entries(packed(tmp_path))}
    assert b"\xff\xe9" in names and b"d/" * 40 + b"x" * 200 in names


IGNORED = "_DOT_dockerignore"
LINK = "the link leads to no file of the build context: put the file itself there"


@pytest.mark.parametrize(
    ("want", "files"),
    [
        (f"dockerfile: DIR/Dockerfile: {LINK}", {"Dockerfile": lambda p: p.symlink_to("/etc/passwd")}),
        (f"dockerfile: DIR/Dockerfile: {LINK}", {"Dockerfile": lambda p: p.symlink_to("../../../../etc/passwd")}),
        (f"dockerfile: DIR/Dockerfile: {LINK}", {"Dockerfile": lambda p: p.symlink_to("Dockerfile")}),
        (f"context: DIR/.dockerignore: {LINK}", {"Dockerfile": "FROM x", IGNORED: lambda p: p.symlink_to("/etc")}),
        (f"context: DIR/.dockerignore: {LINK}", {"Dockerfile": "FROM x", IGNORED: lambda p: p.symlink_to("nothing")}),
        ("dockerfile: DIR/Dockerfile: it is a pipe: want a file", {"Dockerfile": os.mkfifo}),
        ("context: DIR/.dockerignore: it is a pipe: want a file", {"Dockerfile": "FROM x", IGNORED: os.mkfifo}),
        ("dockerfile: DIR/Dockerfile: it is a directory: want a file", {"Dockerfile": os.mkdir}),
        ("context: DIR/sub/p: it is a pipe, and a build context has", {"Dockerfile": "FROM x", "sub__p": os.mkfifo}),
        ("dockerfile: DIR/Dockerfile: there is no such file", {"x": ""}),
        ("context: DIR/.dockerignore: the pattern '[a-'", {"Dockerfile": "FROM x", IGNORED: "b\n[a-\n"}),
        ("context: DIR/.dockerignore has more than 1048576", {"Dockerfile": "FROM x", IGNORED: "#" * (1 << 20) + "#"}),
        ("dockerfile: DIR/Dockerfile has more than 1048576 bytes", {"Dockerfile": "#" * (1 << 20) + "#"}),
        ("dockerfile: DIR/Dockerfile: it is not UTF-8", {"Dockerfile": lambda p: p.write_bytes(b"FROM x\nRUN \xe9")}),
    ],
)  # fmt: skip
def test_hostile_contexts(tmp_path: Path, want: str, files: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidArgumentError) as caught:
        packed(made(tmp_path, **files))
    assert str(caught.value).startswith(want.replace("DIR", str(tmp_path))) and caught.value.field == want.split(":")[0]
    assert time.monotonic() - began < 5


def test_links_within_the_context_and_dockerfiles_that_were_chosen(tmp_path: Path) -> None:
    directory = made(
        tmp_path / "context",
        Dockerfile=lambda p: p.symlink_to("docker/link"),
        docker__link=lambda p: p.symlink_to("../docker/./real"),
        docker__real="FROM inside",
    )
    made(tmp_path, other="FROM outside")
    for dockerfile, text in ((None, "FROM inside"), ("docker/real", "FROM inside"), ("../other", "FROM outside")):
        context = BuildContext(str(directory), dockerfile, None)
        assert context.text == text
        context.close()


def test_a_file_that_is_replaced_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file takes the name between the check and the opening: a link, a pipe or a regular file."""
    made(tmp_path, Dockerfile="FROM x", a="1", secret="2")
    real = os.stat

    def replaced(by: Callable[[], Any]) -> Callable[..., Any]:
        def stat(path: Any, **more: Any) -> Any:
            info = real(path, **more)
            if path == "a":
                by()
            return info

        return stat

    a, ways = tmp_path / "a", {}
    ways["link"] = lambda: (a.unlink(), a.symlink_to("secret"))
    ways["outside"] = lambda: (a.unlink(), a.symlink_to("/etc/passwd"))
    ways["pipe"] = lambda: (a.unlink(), os.mkfifo(a))
    ways["file"] = lambda: (tmp_path / "secret").replace(a)
    for name, way in ways.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", replaced(way))
            with pytest.raises(InvalidArgumentError, match="^context: .*/a: "):
                packed(tmp_path)
        a.unlink()
        made(tmp_path, a="1", secret="2")
        assert name in ways


def test_no_descriptor_is_left_and_the_archive_is_not_in_memory(tmp_path: Path, client: Client) -> None:
    made(tmp_path, Dockerfile="FROM no-such-snapshot-here.invalid/x", bad__p=os.mkfifo)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(InvalidArgumentError):
            client.build(tmp_path, tag="x")
    assert len(os.listdir("/proc/self/fd")) == before
    (tmp_path / "bad/p").unlink()
    with open(tmp_path / "big", "wb") as big:
        big.truncate(64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(forkd.ForkdError):
            client.build(tmp_path, tag="x")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, Dockerfile="FROM x", a="1", b="2")
    for name, most in (("MAX_ENTRIES", 2), ("MAX_CONTENT", 7), ("MAX_NAMES", 11)):
        with monkeypatch.context() as patch:
            patch.setattr(f"forkd._context.{name}", most)
            with pytest.raises(InvalidArgumentError, match="leave files out in .dockerignore"):
                packed(tmp_path)
    with open(tmp_path / "huge", "wb") as huge:
        huge.truncate(9 << 30)
    with pytest.raises(InvalidArgumentError, match="more than 8 GiB"):
        packed(tmp_path)


def test_what_failed_first_and_the_end_of_its_output() -> None:
    steps = Steps()
    steps.add(BuildPlan(steps=["[a 1/2] FROM x", "[a 2/2] RUN make"]))
    for n in range(10_000):
        steps.add(BuildOutput(number=1, line=f"line {n:06}" + "x" * 88))
        steps.add(BuildOutput(number=0, line="other"))
    for number in range(1000):
        steps.add(BuildOutput(number=number, line="y"))
    assert len(steps.output) == 64
    steps.add(BuildOutput(number=1, line="last"))
    for number in (1, 0):
        steps.add(BuildStep(number=number, state="failed"))
    error = steps.error(BadRequestError("exit status 3", code="bad_request", status=400))
    assert isinstance(error, BuildFailed) and (error.number, error.step) == (1, "[a 2/2] RUN make")
    assert 60_000 < len(error.output) <= MAX_OUTPUT and error.output.endswith("\ny\nlast")
    assert str(error).startswith("exit status 3\nline ") and len(str(error)) < 3000
    assert error.code == "build_failed" and error.status == 400 and isinstance(error.__cause__, BadRequestError)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("context", {}),
        ("context", {"context": "/no/such/directory", "tag": "x"}),
        ("context", {"context": 7, "tag": "x"}),
        ("tag", {"dockerfile_text": "FROM x"}),
        ("tag", {"dockerfile_text": "FROM x", "tag": "a b"}),
        ("tag", {"context": "/"}),
        ("dockerfile", {"dockerfile": "x", "dockerfile_text": None, "tag": "x", "context": "/"}),
        ("dockerfile_text", {"dockerfile": "x", "dockerfile_text": "FROM x", "tag": "x"}),
        ("dockerfile_text", {"dockerfile_text": " \n", "tag": "x"}),
        ("dockerfile_text", {"dockerfile_text": "#" * ((1 << 20) + 1), "tag": "x"}),
        ("target", {"dockerfile_text": "FROM x", "tag": "x", "target": ""}),
        ("build_args", {"dockerfile_text": "FROM x", "tag": "x", "build_args": {"A": 1}}),
        ("registry_auth['h']", {"dockerfile_text": "FROM x", "tag": "x", "registry_auth": {"h": {"user": "me"}}}),
        ("secrets", {"dockerfile_text": "FROM x", "tag": "x", "secrets": {"a": 1}}),
        ("secrets", {"dockerfile_text": "FROM x", "tag": "x", "secrets": {"a": b"x" * 512_001}}),
        ("secrets", {"dockerfile_text": "FROM x", "tag": "x", "secrets": {str(i): "" for i in range(65)}}),
        ("vcpus", {"dockerfile_text": "FROM x", "tag": "x", "vcpus": 0}),
        ("disk_mib", {"dockerfile_text": "FROM x", "tag": "x", "disk_mib": -1}),
    ],
)
def test_wrong_arguments_are_refused_before_a_request(
    rig: Any, client: Client, tmp_path: Path, field: str, arguments: dict[str, Any]
) -> None:
    if arguments.get("context") == "/":
        arguments = {**arguments, "context": made(tmp_path / "a b", Dockerfile="FROM x")}
        if "dockerfile" in arguments:
            arguments["dockerfile"] = "nothing"
    before = rig.state()["total"]
    with pytest.raises(InvalidArgumentError) as caught:
        client.build(**arguments)
    assert caught.value.field == field, caught.value
    assert rig.state()["total"] == before


def test_build(rig: Any, client: Client, tmp_path: Path) -> None:
    work = rig.tmp / f"build-{tmp_path.name}"
    directory = made(
        tmp_path / "app",
        Dockerfile=f"FROM {rig.snapshot} AS one\nARG WORD=none\nWORKDIR {work}\nCOPY . .\n"
        "RUN echo $WORD $(cat in) >out; cat out\n"
        "FROM one AS two\nRUN exit 7\n",
        _DOT_dockerignore="*\n!in\n",
        _DOT_env="secret",
    )
    (directory / "in").write_text("there")
    told: list[Any] = []
    with client.build(directory, target="one", build_args={"WORD": "hello"}, on_progress=told.append).fork() as made_of:
        assert made_of[0].snapshot_tag == "app"
        assert made_of[0].commands.run(["ls", "-A", str(work)]).stdout == "in\nout\n"
    assert isinstance(told[0], BuildPlan) and len(told[0].steps) == 5
    states = [(e.number, e.state) for e in told if isinstance(e, BuildStep)]
    assert states[0] == (0, "cached") and states[-1] == (4, "done") and (3, "started") in states
    assert [(e.number, e.line) for e in told if isinstance(e, BuildOutput)] == [(3, "hello there")]
    again = Snapshot.build(directory, client=client, target="one", build_args={"WORD": "hello"})
    assert again.tag == "app" and again.built is not None and (again.built.run, again.built.cached) == (0, 5)
    assert again.details is not None and again.details.tag == "app"
    with pytest.raises(SnapshotExistsError):
        client.build(directory, target="one", replace=False)
    with pytest.raises(BuildFailed) as caught:
        client.build(directory, tag="two")
    assert caught.value.step == "[two 2/2] RUN exit 7" and caught.value.output == ""
    assert "Dockerfile:7: [two 2/2] RUN exit 7: exit status 7" in str(caught.value)
    with pytest.raises(BadRequestError, match="Dockerfile:1: unknown instruction: NOPE"):
        client.build(dockerfile_text="NOPE", tag="x")
    again.delete()


def test_async_build_without_a_context(rig: Any) -> None:
    async def run() -> None:
        told = []

        async def tell(event: Any) -> None:
            await asyncio.sleep(0)
            told.append(type(event).__name__)

        text = f"FROM {rig.snapshot}\nRUN echo async\n"
        async with AsyncClient(rig.url, token=rig.token) as client:
            snapshot = await client.build(dockerfile_text=text, tag="async", secrets={"a": b"x"}, on_progress=tell)
            assert told[:5] == ["BuildPlan", "BuildStep", "BuildStep", "BuildOutput", "BuildStep"]
            await snapshot.delete()

    asyncio.run(run())


def test_a_callback_that_fails_ends_the_build(rig: Any, client: Client) -> None:
    def fail(event: Any) -> None:
        raise KeyError(event)

    with pytest.raises(KeyError):
        client.build(dockerfile_text=f"FROM {rig.snapshot}\nRUN sleep 600\n", tag="ended", on_progress=fail)
    for _ in range(100):
        if not (left := client.sandboxes()):
            break
        time.sleep(0.05)
    assert not left


def test_a_daemon_that_goes_away(rig: Any, client: Client) -> None:
    rig.fault(requests={"path": "^/v1/builds$", "after_bytes": 150})
    with pytest.raises(forkd.StreamBrokenError):
        client.build(dockerfile_text=f"FROM {rig.snapshot}\nRUN true\n", tag="broken")
