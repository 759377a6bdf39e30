"""The table for users of E2B's SDK in docs/sdk.md contains only names that exist."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forkd
from forkd._e2b import ATTRIBUTES, MODULE, PARAMETERS, STATICS

DOCUMENT = Path(__file__).resolve().parent.parent.parent.parent / "docs/sdk.md"
PLACES = {
    "Sandbox": ("_sandbox", "Sandbox"),
    "sandbox": ("_sandbox", "Sandbox"),
    "sandbox.commands": ("_commands", "Commands"),
    "sandbox.pty": ("_commands", "Pty"),
    "sandbox.files": ("_files", "Files"),
    "sandbox.contexts": ("_code", "Contexts"),
    "sandbox.network": ("_settings", "NetworkOf"),
    "sandbox.limits": ("_settings", "LimitsOf"),
    "sandbox.hooks": ("_settings", "HooksOf"),
    "handle": ("_commands", "CommandHandle"),
    "client.snapshots": ("_snapshot", "Snapshots"),
    "client": ("_client", "Client"),
    "Snapshot": ("_snapshot", "Snapshot"),
}


def methods() -> list[tuple[str, str]]:
    """The cells of the Python column: methods, and their parameters."""
    if not DOCUMENT.exists():
        return []
    text = DOCUMENT.read_text()
    table = text[text.index("<!-- e2b:") : text.index("<!-- end of e2b -->")]
    return [
        (method, args)
        for row in table.splitlines()[3:]
        for method, args in re.findall(r"`([\w.]+)(?:\(([^)`]*)\))?`", row.split("|")[3])
        if "." in method
    ]


@pytest.mark.parametrize("method,args", methods(), ids=lambda m: m)
@pytest.mark.parametrize("half", ["", "Async"])
def test_what_the_table_names_is_there(method: str, args: str, half: str) -> None:
    place, _, name = method.rpartition(".")
    file, kind = PLACES[place]
    owner = getattr(importlib.import_module(f"forkd._{'async' if half else 'sync'}.{file}"), half + kind)
    assert hasattr(owner, name) or name in owner.__annotations__
    if args:
        assert set(args.split(", ")) <= set(inspect.signature(getattr(owner, name)).parameters)


def test_the_table_has_what_people_do() -> None:
    assert not DOCUMENT.exists() or len(methods()) >= 40


def test_e2bs_names(sandbox: forkd.Sandbox) -> None:
    assert sandbox.get_info().id == sandbox.sandbox_id == sandbox.id
    assert sandbox.is_running()
    sandbox.set_timeout(3600)
    assert sandbox.info().expires_at_unix is not None
    assert sandbox.set_ttl(0).expires_at_unix is None
    context = sandbox.create_code_context(language="python")
    assert context.id in [c.id for c in sandbox.list_code_contexts()]
    sandbox.run_code("x = 1", context=context)
    sandbox.restart_code_context(context)
    assert sandbox.run_code("x", context=context).error is not None
    assert sandbox.remove_code_context(context)
    assert sandbox.files.get_info("/").type == "directory"
    handle = sandbox.commands.start(["cat"], stdin=True)
    handle.send_stdin("hi")
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    again.close_stdin()
    again.wait()
    sandbox.pause()
    assert not sandbox.is_running()
    sandbox.kill()
    assert not sandbox.is_running()


def owner_of(place: str, half: str) -> type:
    file, kind = PLACES[place]
    return getattr(importlib.import_module(f"forkd._{'async' if half else 'sync'}.{file}"), half + kind)  # type: ignore[no-any-return]


@pytest.mark.parametrize("half", ["", "Async"])
def test_attributes_of_e2b_say_the_ones_here(half: str) -> None:
    places = {kind: (place, kind) for place, (_, kind) in PLACES.items()}
    for kind, names in ATTRIBUTES.items():
        owner = owner_of(places[kind][0], half)
        thing = object.__new__(owner)
        for name, here in names.items():
            with pytest.raises(AttributeError, match=f"^{half}{kind} has no {name}; here it is {re.escape(here)}$"):
                getattr(thing, name)
            if (path := re.match(r"([\w.]+)\(", here)) is None:
                continue
            of, _, method = path[1].rpartition(".")  # it is there
            of = of if of.startswith("client.") else f"sandbox.{of}" if of else places[kind][0]
            assert hasattr(owner_of(of, half), method), here
        with pytest.raises(AttributeError, match=f"^{half}{kind} has no nonsense$"):
            _ = thing.nonsense


@pytest.mark.parametrize("half", ["", "Async"])
def test_what_e2b_calls_on_a_class_says_the_call_here(half: str) -> None:
    kind = getattr(forkd, half + "Sandbox")
    for name, here in STATICS["Sandbox"].items():
        if name in vars(kind):
            with pytest.raises(TypeError, match=rf"^{half}Sandbox.{name}\(\) is .* of an id it is {re.escape(here)}$"):
                call = getattr(kind, name)("sb-a")
                call.send(None)
        else:
            with pytest.raises(AttributeError, match=f"^{half}Sandbox has no {name}; here it is {re.escape(here)}$"):
                getattr(kind, name)("sb-a")
            assert name not in dir(kind)
        of, _, method = re.sub(r"\([^)]*\)", "", here).rpartition(".")
        assert hasattr(owner_of("client.snapshots" if of == "client.snapshots" else "sandbox", half), method), here
    with pytest.raises(TypeError, match="of an id it is"):
        kill = forkd.Sandbox.kill(sandbox_id="sb-a")  # type: ignore[call-arg]
        assert kill
    with pytest.raises(AttributeError, match=f"^{half}Sandbox has no nonsense$"):
        _ = kind.nonsense
    assert not hasattr(kind, "nonsense") and hasattr(kind, "list") and hasattr(kind, "connect")


def test_what_is_imported_from_e2b_says_what_to_import() -> None:
    for name, here in MODULE.items():
        with pytest.raises(ImportError, match=f"^forkd has no {name}; here it is {re.escape(here)}$"):
            exec(f"from forkd import {name}", {})
        for there in re.findall(r"^(?:errors\.)?(\w+)|, or errors\.(\w+)", here):
            for found in filter(None, there):
                assert hasattr(forkd, found) or hasattr(importlib.import_module("forkd.errors"), found), here
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from forkd import nonsense", {})


PARAMETERS_OF_E2B = [
    ("create", "template", lambda c, s: forkd.Sandbox.create(template="base", client=c)),
    ("create", "envs", lambda c, s: forkd.Sandbox.create("base", envs={"A": "b"}, client=c)),
    ("create", "metadata", lambda c, s: forkd.Sandbox.create("base", metadata={}, client=c)),
    ("create", "timeout", lambda c, s: forkd.AsyncSandbox.create("base", timeout=60).send(None)),
    ("create", "allow_internet_access", lambda c, s: forkd.Sandbox.create("base", allow_internet_access=False)),
    ("create", "api_key", lambda c, s: forkd.Sandbox.create("base", api_key="e2b_…")),
    ("__init__", "api_key", lambda c, s: forkd.Client(api_key="e2b_…")),
    ("connect", "sandbox_id", lambda c, s: forkd.Sandbox.connect(sandbox_id=s.id, client=c)),
    ("list", "query", lambda c, s: forkd.Sandbox.list(query=None, client=c)),
    ("fork", "count", lambda c, s: s.fork(count=2)),
    ("fork", "metadata", lambda c, s: c.fork("base", metadata={})),
    ("run", "background", lambda c, s: s.commands.run("true", background=True)),
    ("run", "envs", lambda c, s: s.commands.run("true", envs={})),
    ("run", "request_timeout", lambda c, s: s.commands.run("true", request_timeout=1)),
    ("run_code", "envs", lambda c, s: s.run_code("1", envs={})),
    ("run_code", "on_error", lambda c, s: s.run_code("1", on_error=print)),
    ("create", "size", lambda c, s: s.pty.create(size=None)),
    ("rename", "old_path", lambda c, s: s.files.rename(old_path="/a", new_path="/b")),
    ("watch", "on_event", lambda c, s: s.files.watch("/", on_event=print)),
]  # fmt: skip


@pytest.mark.parametrize(("method", "name", "call"), PARAMETERS_OF_E2B, ids=lambda v: v if isinstance(v, str) else "")
def test_parameters_of_e2b_say_the_ones_here(
    rig: Any, client: forkd.Client, sandbox: forkd.Sandbox, method: str, name: str, call: Callable[..., Any]
) -> None:
    before = rig.state()["total"]
    with pytest.raises(
        TypeError, match=rf"\b{method}\(\) has no parameter {name}; here it is {re.escape(PARAMETERS[name])}"
    ):
        call(client, sandbox)
    assert rig.state()["total"] == before


def test_methods_are_what_they_were() -> None:
    """The check of parameters does not change the methods that it wraps."""
    assert inspect.iscoroutinefunction(forkd.AsyncSandbox.pause) and not inspect.iscoroutinefunction(
        forkd.Sandbox.pause
    )
    assert inspect.iscoroutinefunction(forkd.AsyncSandbox.create)
    assert list(inspect.signature(forkd.Sandbox.rollback).parameters) == ["self", "to", "unique"]
    assert forkd.Sandbox.pause.__doc__ == "Pauses the sandbox."
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        forkd.Sandbox.connect("sb-a", nonsense=1)  # type: ignore[call-arg]
