"""A wrong argument fails before a request is sent. The error names the parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forkd import Client, InvalidArgumentError, Sandbox, best_of
from forkd.types import CodeContext

WRONG: list[tuple[str, Callable[[Client, Sandbox], Any]]] = [
    ("snapshot", lambda c, s: c.fork("")),
    ("snapshot", lambda c, s: c.fork("../etc")),
    ("snapshot", lambda c, s: Sandbox.create("a b", client=c)),
    ("volumes", lambda c, s: c.fork("base", volumes=["data:/data"])),  # type: ignore[arg-type]
    ("volumes", lambda c, s: c.fork("base", volumes={"/data": "a/b"})),
    ("volumes", lambda c, s: s.fork(volumes={"/data": "data:rw"})),
    ("volumes", lambda c, s: Sandbox.create("base", client=c, volumes={"/data": ""})),
    ("hold_effects", lambda c, s: c.fork("base", hold_effects="api.example.com")),
    ("hold_effects", lambda c, s: s.try_all(["true"], hold_effects=7)),  # type: ignore[arg-type]
    ("hold_effects", lambda c, s: s.fork(hold_effects=[""])),
    ("n", lambda c, s: c.fork("base", 0)),
    ("n", lambda c, s: c.fork("base", 1001)),
    ("n", lambda c, s: s.fork(True)),
    ("n", lambda c, s: s.fork(1.5)),  # type: ignore[arg-type]
    ("n", lambda c, s: s.branch(-1)),
    ("mode", lambda c, s: s.fork(1, mode="fast")),
    ("mode", lambda c, s: s.branch(mode="slow")),
    ("tag", lambda c, s: s.branch(tag=".hidden")),
    ("labels", lambda c, s: s.branch(labels={"turn": 7})),  # type: ignore[dict-item]
    ("to", lambda c, s: s.rollback("")),
    ("child", lambda c, s: s.promote("")),
    ("mode", lambda c, s: s.promote("sb-1", mode="fast")),
    ("commands", lambda c, s: s.try_all([])),
    ("commands", lambda c, s: s.try_all("true")),
    ("commands", lambda c, s: s.try_all(["true", []])),
    ("n", lambda c, s: s.try_all("true", 65)),
    ("judge", lambda c, s: s.try_all(["true"], judge="")),
    ("keep", lambda c, s: s.try_all(["true"], keep="some")),
    ("timeout", lambda c, s: s.try_all(["true"], timeout=86401)),
    ("since", lambda c, s: s.diff("")),
    ("path", lambda c, s: s.diff(path="")),
    ("patch", lambda c, s: s.diff(patch="no")),
    ("max_files", lambda c, s: s.diff(max_files=-1)),
    ("max_patch_bytes", lambda c, s: s.diff(max_patch_bytes=1 << 30)),
    ("since", lambda c, s: s.export("")),
    ("path", lambda c, s: s.export(path="")),
    ("partial", lambda c, s: s.export(partial=1)),
    ("to", lambda c, s: s.export(to="")),
    ("unique", lambda c, s: s.resume(unique="yes")),
    ("ttl", lambda c, s: c.fork("base", ttl=-1)),
    ("ttl", lambda c, s: s.url(80, ttl=0)),
    ("ttl", lambda c, s: s.set_ttl(None)),  # type: ignore[arg-type]
    ("ttl", lambda c, s: s.set_ttl(366 * 86400)),
    ("timeout", lambda c, s: s.set_timeout(-1)),
    ("idle_timeout", lambda c, s: c.fork("base", idle_timeout="1h")),  # type: ignore[arg-type]
    ("env", lambda c, s: c.fork("base", env={"A": 1})),  # type: ignore[dict-item]
    ("env", lambda c, s: s.commands.run("true", env=["A=1"])),  # type: ignore[call-overload]
    ("labels", lambda c, s: c.fork("base", labels="job=7")),  # type: ignore[arg-type]
    ("labels", lambda c, s: s.set_labels(["job"])),  # type: ignore[arg-type]
    ("labels", lambda c, s: c.sandboxes(["job"])),  # type: ignore[arg-type]
    ("network", lambda c, s: c.fork("base", network="closed")),
    ("network", lambda c, s: s.network.set("closed")),
    ("policy", lambda c, s: s.network.set()),
    ("modes", lambda c, s: s.network.set(modes="none")),
    ("memory", lambda c, s: s.limits.set(memory=1)),
    ("id", lambda c, s: c.connect("")),
    ("id", lambda c, s: c.connect("a/b")),
    ("cmd", lambda c, s: s.commands.run([])),
    ("cmd", lambda c, s: s.commands.run("")),
    ("cmd", lambda c, s: s.commands.run([""])),
    ("cmd", lambda c, s: s.commands.run(["a", 1])),  # type: ignore[list-item]
    ("cmd", lambda c, s: s.commands.run(b"ls")),  # type: ignore[call-overload]
    ("cmd", lambda c, s: s.commands.start(["a\0b"])),
    ("stdin", lambda c, s: s.commands.run(["cat"], stdin=3)),  # type: ignore[call-overload]
    ("stdin", lambda c, s: s.commands.run(["cat"], stdin=b"x" * (8 << 20) + b"x")),
    ("timeout", lambda c, s: s.commands.run("true", timeout=0)),
    ("timeout", lambda c, s: s.run_code("1", timeout=-1)),
    ("timeout", lambda c, s: s.commands.run("true", timeout=3601)),
    ("timeout", lambda c, s: s.run_code("1", timeout=3601)),
    ("env", lambda c, s: s.commands.run("true", env={"A=B": "x"})),
    ("cwd", lambda c, s: s.commands.run("true", cwd="")),
    ("user", lambda c, s: s.commands.run("true", user="")),
    ("pid", lambda c, s: s.commands.kill(0)),
    ("pid", lambda c, s: s.commands.connect(-1)),
    ("name", lambda c, s: s.commands.signal(1, "")),
    ("cols", lambda c, s: s.pty.create(cols=0)),
    ("rows", lambda c, s: s.pty.resize(1, 80, 70000)),
    ("path", lambda c, s: s.files.read("")),
    ("path", lambda c, s: s.files.write("a\0b", "")),
    ("path", lambda c, s: s.files.read(7)),  # type: ignore[call-overload]
    ("data", lambda c, s: s.files.write("/a", 7)),  # type: ignore[arg-type]
    ("format", lambda c, s: s.files.read("/a", format="blob")),  # type: ignore[call-overload]
    ("depth", lambda c, s: s.files.list("/", depth=0)),
    ("old", lambda c, s: s.files.rename("", "/b")),
    ("source", lambda c, s: s.files.write_tree("/a", "/no/such/directory")),
    ("port", lambda c, s: s.url(0)),
    ("port", lambda c, s: s.connect_port(65536)),
    ("tail", lambda c, s: list(s.logs(tail=-1))),
    ("after", lambda c, s: c.events(after="").__enter__()),
    ("sandbox", lambda c, s: c.events(sandbox="a b").__enter__()),
    ("tag", lambda c, s: c.snapshots.get("")),
    ("force", lambda c, s: c.snapshots.delete("a", cascade=True, force=True)),
    ("to", lambda c, s: c.snapshots.compact("a", "")),
    ("memory_mib", lambda c, s: c.snapshots.bake("a", kernel="/k", rootfs="/r", memory_mib=1)),
    ("kernel", lambda c, s: c.snapshots.bake("a", kernel="", rootfs="/r")),
    ("name", lambda c, s: c.volumes.create("a/b")),
    ("size_mib", lambda c, s: c.volumes.create("a", size_mib=15)),
    ("name", lambda c, s: c.volumes.get("")),
    ("name", lambda c, s: c.volumes.delete("..")),
    ("to", lambda c, s: c.volumes.snapshot("a", "")),
    ("name", lambda c, s: c.workspaces.create("", "base")),
    ("name", lambda c, s: c.workspaces.get("a/b")),
    ("language", lambda c, s: s.run_code("1", language="bash", context="python")),
    ("context", lambda c, s: s.contexts.remove(CodeContext())),
    ("attempts", lambda c, s: best_of(s, [], lambda s, r: 1)),
    ("attempts", lambda c, s: best_of(s, "echo 1", lambda s, r: 1)),
    ("cmd", lambda c, s: best_of(s, ["echo 1", []], lambda s, r: 1)),
]


@pytest.mark.parametrize(("field", "call"), WRONG, ids=[f"{i}-{field}" for i, (field, _) in enumerate(WRONG)])
def test_wrong_argument_fails_before_a_request(
    rig: Any, client: Client, sandbox: Sandbox, field: str, call: Callable[[Client, Sandbox], Any]
) -> None:
    before = rig.state()["total"]
    with pytest.raises(InvalidArgumentError) as caught:
        call(client, sandbox)
    assert caught.value.field == field and str(caught.value).startswith(field)
    assert isinstance(caught.value, ValueError)
    assert rig.state()["total"] == before


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("url", {"url": "ftp://host"}),
        ("url", {"url": "unix://host/path"}),
        ("url", {"url": "http://"}),
        ("url", {"url": "http://user:pw@host"}),
        ("timeout", {"timeout": 0}),
        ("retries", {"retries": -1}),
        ("ca", {"ca": "/no/such/file"}),
        ("cert", {"cert": __file__}),
        ("key", {"key": __file__}),
    ],
)
def test_wrong_client(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Client(**{"url": "http://127.0.0.1:1", **options})
    assert field in (caught.value.field or "") or field in str(caught.value)
