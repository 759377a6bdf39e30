"""The API of forkd 0.5.3. The compat group forkd-python-own runs all of it against real VMs."""

from __future__ import annotations

import inspect
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import forkd
from forkd import BranchMode, CommandResult, Controller, ControllerError, Sandbox


def test_every_name_of_05_with_its_signature() -> None:
    assert {"Sandbox", "CommandResult", "Controller", "ControllerError", "BranchMode"} <= set(forkd.__all__)
    assert BranchMode.__args__ == ("full", "diff", "live")  # type: ignore[attr-defined]  # a Literal
    for name, parameters in {
        "list_snapshots": [], "delete_snapshot": ["tag"], "list_sandboxes": [], "get_sandbox": ["sandbox_id"],
        "kill_sandbox": ["sandbox_id"], "ping_sandbox": ["sandbox_id"], "eval_code": ["sandbox_id", "code"],
        "exec_command": ["sandbox_id", "args", "timeout_secs"],
        "branch_sandbox": ["sandbox_id", "tag", "diff", "measure_diff", "mode", "wait"],
        "spawn_sandboxes": ["snapshot_tag", "n", "per_child_netns", "memory_limit_mib", "prewarm", "live_fork",
                            "hugepages"],
    }.items():  # fmt: skip
        assert list(inspect.signature(getattr(Controller, name)).parameters)[1:] == parameters, name
    assert list(inspect.signature(Sandbox).parameters) == ["tag", "target", "timeout", "spawn"]
    assert CommandResult("out", "err", 3) == CommandResult(stdout="out", stderr="err", exit_code=3)


def test_controller(rig: Any) -> None:
    c = Controller(rig.url, rig.token)
    assert rig.snapshot in [s["tag"] for s in c.list_snapshots()]
    made = c.spawn_sandboxes(
        rig.snapshot, n=2, per_child_netns=True, memory_limit_mib=400, prewarm=True, live_fork=True
    )
    ids = [s["id"] for s in made]
    try:
        assert set(ids) <= {s["id"] for s in c.list_sandboxes()} and c.get_sandbox(ids[0])["memory_limit_mib"] == 400
        assert c.ping_sandbox(ids[0])["pong"] is True
        got = c.exec_command(ids[0], ["sh", "-c", "echo hi; exit 7"])
        assert (got["stdout"], got["exit_code"]) == ("hi\n", 7)
        assert c.eval_code(ids[0], "1 + 1")["result"] == "2"
        assert c.branch_sandbox(ids[0], tag="of-05", mode="live", wait=False)["tag"] == "of-05"
        with pytest.raises(ControllerError) as caught:
            c.branch_sandbox(ids[0], tag="of-05")
        assert caught.value.status == 409 and "error" in caught.value.body and "HTTP 409" in str(caught.value)
        c.delete_snapshot("of-05")
    finally:
        for id in ids:
            c.kill_sandbox(id)
    with pytest.raises(ControllerError) as caught:
        c.get_sandbox(ids[0])
    assert caught.value.status == 404


@pytest.fixture
def agent() -> Iterator[str]:
    """A server with the protocol of 0.5's agent."""
    answers = {
        "ping": {"pong": True, "numpy_version": "2"},
        "eval": {"result": "2"},
        "exec": {"stdout": "hi\n", "stderr": "", "exit_code": 0},
    }
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, connection.makefile("rwb") as stream:
                    message = json.loads(stream.readline())
                    answer: dict[str, Any] = answers[message["action"]]
                    if message.get("code") == "fail":
                        answer = {"error": "NameError: fail"}
                    stream.write(json.dumps(answer).encode())

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)  # a thread in accept does not see that the socket is closed
        serving.join(60)
        assert not serving.is_alive()


def test_sandbox_of_05(agent: str) -> None:
    with Sandbox(target=agent, spawn=False) as sandbox:
        assert isinstance(sandbox, Sandbox) and sandbox.ping()["pong"] is True
        assert sandbox.commands.run("echo hi") == CommandResult("hi\n", "", 0)
        assert sandbox.eval("1 + 1") == "2"
        with pytest.raises(RuntimeError, match="NameError"):
            sandbox.eval("fail")
        with pytest.raises(AttributeError, match="Sandbox.create"):
            _ = sandbox.files
    assert isinstance(Sandbox.create(target=agent, spawn=False), Sandbox)
    with pytest.raises(ValueError, match="host:port"):
        Sandbox(target="nonsense", spawn=False).ping()


def test_sandbox_of_05_starts_one_by_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, agent: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="not on PATH"):
        Sandbox("tag", target=agent)
    command = tmp_path / "forkd"
    command.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/said\nexec /bin/sleep 1000\n')
    command.chmod(0o755)
    with Sandbox("mine", target=agent) as sandbox:
        assert sandbox.commands.run("echo hi").exit_code == 0
        while not (tmp_path / "said").exists() or not (tmp_path / "said").read_text():
            pass
    assert (tmp_path / "said").read_text() == "fork --tag mine -n 1 --settle-secs 3600\n"
    command.write_text("#!/bin/sh\necho no such snapshot >&2\nexit 3\n")
    with pytest.raises(RuntimeError, match="exited with code 3:\nno such snapshot"):
        Sandbox("none", target="127.0.0.1:1")


def test_what_create_returns_has_both_faces(sandbox: Sandbox) -> None:
    assert sandbox.eval("20 + 1") == "21" and sandbox.ping()["pong"] is True
    assert sandbox.commands.run("echo both").stdout == "both\n" and sandbox.run_code("20 + 2").text == "22"
