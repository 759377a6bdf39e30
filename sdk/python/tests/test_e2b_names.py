"""The table of docs/sdk.md for those who know E2B's SDK names what there is."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import forkd

DOCUMENT = Path(__file__).resolve().parent.parent.parent.parent / "docs/sdk.md"
PLACES = {
    "Sandbox": ("_sandbox", "Sandbox"),
    "sandbox": ("_sandbox", "Sandbox"),
    "sandbox.commands": ("_commands", "Commands"),
    "sandbox.pty": ("_commands", "Pty"),
    "sandbox.files": ("_files", "Files"),
    "sandbox.contexts": ("_code", "Contexts"),
    "sandbox.network": ("_sandbox", "NetworkOf"),
    "sandbox.limits": ("_sandbox", "LimitsOf"),
    "handle": ("_commands", "CommandHandle"),
    "client.snapshots": ("_snapshot", "Snapshots"),
}


def methods() -> list[tuple[str, str]]:
    """The cells of the Python column: what is called, and with which parameters."""
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
