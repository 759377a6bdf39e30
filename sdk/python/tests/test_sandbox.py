"""Forks, branches, rollbacks, and the other methods of a sandbox and a daemon."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forkd import Client, Limits, Network, NetworkLimits, PartialForkError, Sandbox, Sandboxes, best_of
from forkd.errors import (
    InvalidArgumentError,
    InvalidFieldError,
    SandboxNotFoundError,
    SandboxStateError,
    SnapshotExistsError,
    SnapshotNotFoundError,
    WorkspaceExistsError,
    WorkspaceNotFoundError,
)


def test_create_connect_list_kill(rig: Any, client: Client) -> None:
    with Sandbox.create(
        rig.snapshot, client=client, labels={"job": "create"}, ttl=3600, idle_timeout=600, env={"A": "b"}
    ) as sandbox:
        assert (
            sandbox.id.startswith("sb-")
            and sandbox.snapshot_tag == rig.snapshot
            and sandbox.labels == {"job": "create"}
        )
        info = sandbox.info()
        assert info.state == "running" and info.expires_at_unix and info.idle_timeout_secs == 600
        assert Sandbox.connect(sandbox.id, client=client).id == client.connect(sandbox.id).id == sandbox.id
        assert [s.id for s in Sandbox.list({"job": "create"}, client=client)] == [sandbox.id]
        assert sandbox.id in [s.id for s in client.sandboxes({"job": None})]
        assert not client.sandboxes({"job": "none such"})
        assert sandbox.set_labels({"job": None, "owner": "me"}) == {"owner": "me"}
        assert sandbox.ping().pong and sandbox.stats().vmm_pid > 0
    with pytest.raises(SandboxNotFoundError):
        Sandbox.connect(sandbox.id, client=client)
    with pytest.raises(SnapshotNotFoundError):
        Sandbox.create("none-such", client=client)


def test_environment_names_the_daemon(rig: Any) -> None:
    with Sandbox.create(rig.snapshot) as sandbox:
        assert sandbox.client is Client.default() and sandbox.client.url == rig.url
        assert [s.id for s in Sandbox.list() if s.id == sandbox.id]


def test_fork_of_a_sandbox(sandbox: Sandbox) -> None:
    with sandbox.fork(8, labels={"try": "1"}) as tries:
        assert isinstance(tries, Sandboxes) and len({s.id for s in tries}) == 8
        assert tries[0].labels == {"try": "1"}
        assert tries.map(lambda s: s.commands.run(["echo", s.id]).stdout.strip()) == [s.id for s in tries]
    assert not {s.id for s in tries} & {s.id for s in sandbox.client.sandboxes()}


def test_branch_rollback_and_the_family_of_a_sandbox(sandbox: Sandbox, rig: Any) -> None:
    snap, kids = sandbox.branch(2, tag="branched")
    assert (
        snap.tag == "branched"
        and snap.details
        and snap.details.sandbox_id == sandbox.id
        and [k.snapshot_tag for k in kids] == ["branched"] * 2
    )
    with pytest.raises(SnapshotExistsError):
        sandbox.branch(tag="branched")
    assert sandbox.rollback(snap).rolled_back_to == "branched"
    assert sandbox.rollback(rig.snapshot).rolled_back_to == rig.snapshot
    unnamed, none = sandbox.branch(mode="full", labels={"turn": "7"})
    assert unnamed.details and unnamed.details.labels == {"turn": "7"}
    assert unnamed.tag.startswith("branch-") and none == []
    other, _ = kids[0].branch()
    assert sandbox.rollback(other).rolled_back_to == other.tag
    assert sandbox.promote(kids[1], tag="promoted").rolled_back_to == "promoted"
    sandbox.rollback(rig.snapshot)
    kids.kill()
    sandbox.client.snapshots.delete("promoted")
    assert [other.delete(), unnamed.delete(), snap.delete(cascade=True), snap.delete()] == [True, True, True, False]


def test_diff_takes_snapshots_and_sandboxes(sandbox: Sandbox) -> None:
    snapshot, kids = sandbox.branch(1)
    for since in (None, snapshot, kids[0], kids[0].id, snapshot.tag):
        found = sandbox.diff(since, path="/srv")
        assert [f.path for f in found.files] == ["/srv/a"]
        assert found.files[0].patch.endswith("@@ -1 +1 @@\n-old\n+new\n")
    assert sandbox.diff(patch=False).files[0].patch is None
    assert sandbox.diff(max_files=0).omitted == 1
    kids.kill()
    snapshot.delete()


def test_apply_takes_snapshots_and_sandboxes(sandbox: Sandbox) -> None:
    snapshot, kids = sandbox.branch(1)
    for source in (snapshot, kids[0], kids[0].id, snapshot.tag):
        found = sandbox.apply(source, paths=["/srv"], dry_run=True)
        assert [f.path for f in found.files] == ["/srv/a"]
        assert not found.applied
    assert sandbox.apply(snapshot, base=snapshot, dry_run=True, max_files=0).files == []
    for wrong in ({"paths": "/srv"}, {"prefer": "ours"}, {"dry_run": 1}, {"max_files": -1}):
        with pytest.raises(InvalidArgumentError):
            sandbox.apply(snapshot, **wrong)
    kids.kill()
    snapshot.delete()


def test_export_takes_snapshots_and_sandboxes(sandbox: Sandbox, tmp_path: Path) -> None:
    snapshot, kids = sandbox.branch(1)
    for since in (None, snapshot, kids[0], kids[0].id, snapshot.tag):
        found = sandbox.export(since, path="/srv")
        with tarfile.open(fileobj=io.BytesIO(found)) as tar:
            assert tar.getnames() == ["srv/a"]
            assert tar.extractfile("srv/a").read() == b"new\n"
    assert sandbox.export(partial=True, to=tmp_path / "a.tar") is None
    assert (tmp_path / "a.tar").read_bytes() == sandbox.export()
    with pytest.raises(InvalidFieldError) as caught:
        sandbox.export(sandbox, to=tmp_path / "none.tar")
    assert caught.value.field == "from"
    assert not (tmp_path / "none.tar").exists()
    kids.kill()
    snapshot.delete()


def test_an_encrypted_suspended_state(rig: Any, client: Client) -> None:
    with client.fork(rig.snapshot, 1) as (one,):
        assert one.suspend(encrypt=True).state == "suspended"
        states = [s for s in client.snapshots.list() if s.tag.startswith(f"suspended-{one.id}")]
        assert [s.info().encrypted for s in states] == [True]
        assert one.resume().state == "running"


def test_pause_resume_suspend(sandbox: Sandbox) -> None:
    assert sandbox.pause().state == "paused"
    with pytest.raises(SandboxStateError):
        sandbox.commands.run("true")
    assert sandbox.resume().state == "running"
    assert sandbox.suspend().state == "suspended"
    assert sandbox.resume(unique="report").state == "running"


def test_partial_fork_raises_with_the_living(rig: Any, client: Client) -> None:
    rig.fault(fail_children=2)
    with pytest.raises(PartialForkError) as caught:
        client.fork(rig.snapshot, 5, allow_partial=True)
    assert caught.value.failed == 2 and len(caught.value.sandboxes) == 3
    with caught.value.sandboxes as living:
        assert living.map(lambda s: s.commands.run("echo here").stdout) == ["here\n"] * 3


def test_best_of_keeps_the_best_and_kills_the_rest(sandbox: Sandbox, client: Client) -> None:
    def fails(child: Sandbox) -> int:
        raise ValueError("no idea")

    before = {s.id for s in client.sandboxes()}
    best = best_of(
        sandbox,
        ["echo 1", lambda s: s.commands.run("echo 7"), ["echo", "3"], fails, "echo none"],
        lambda s, r: int(r.stdout) if r.stdout != "none\n" else None,
    )
    assert (best.index, best.score, best.result.stdout) == (1, 7.0, "7\n")
    assert best.scores == [1.0, 7.0, 3.0, None, None] and isinstance(best.results[3], ValueError)
    assert {s.id for s in client.sandboxes()} - before == {best.sandbox.id}
    best.sandbox.kill()
    with pytest.raises(ExceptionGroup, match="none of 2 attempts") as caught:
        best_of(sandbox, [fails, "true"], lambda s, r: None)
    assert isinstance(caught.value.exceptions[0], ValueError)
    assert {s.id for s in client.sandboxes()} == before


def test_network_and_limits(sandbox: Sandbox) -> None:
    assert sandbox.network.set("none").mode == sandbox.network.get().mode == "none"
    got = sandbox.network.set(mode="allow", allow=["pypi.org", "10.0.0.0/8:5432"])
    assert (
        got.mode == "allow"
        and got.allow == ["pypi.org:80", "pypi.org:443", "10.0.0.0/8:5432"]
        or got.allow == ["pypi.org", "10.0.0.0/8:5432"]
    )
    got = sandbox.network.set(Network(mode="public", deny=["10.0.0.0/8"], limits=NetworkLimits(connections=5)))
    assert got.limits is not None and got.limits.connections == 5
    limits = sandbox.limits.set(Limits(memory_mib=512, cpus=0.5))
    assert (limits.memory_mib, limits.cpus) == (512, 0.5) and limits.usage.memory_bytes >= 0
    assert sandbox.limits.set(cpu_weight=50).memory_mib in (None, 0)
    assert sandbox.limits.get().cpu_weight == 50


def test_ports(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def echo() -> None:
            conn, _ = server.accept()
            with conn:
                while data := conn.recv(100):
                    conn.sendall(data.upper())

        threading.Thread(target=echo, daemon=True).start()
        with sandbox.connect_port(port) as conn:
            conn.send(b"hello")
            assert conn.receive() == b"HELLO"
            with pytest.raises(TimeoutError):
                conn.receive(timeout=0.1)
            conn.end()
            assert conn.receive() == b""
    assert sandbox.url(port, ttl=60).startswith(f"http://{port}-{sandbox.id}")


def test_console_and_logs(sandbox: Sandbox) -> None:
    assert "hello" in sandbox.console()
    assert list(sandbox.logs(tail=1)) == ["bye"]
    followed = sandbox.logs(follow=True)
    assert next(iter(followed)) == "hello"
    followed.close()  # type: ignore[attr-defined]  # it is a generator


def test_snapshots(client: Client, sandbox: Sandbox, rig: Any) -> None:
    assert rig.snapshot in [s.tag for s in client.snapshots.list()]
    assert client.snapshots.get(rig.snapshot).info().chain_depth >= 0
    with pytest.raises(SnapshotNotFoundError):
        client.snapshots.get("none-such")
    snap, _ = sandbox.branch(tag="to-compact")
    assert snap.verify().ok
    assert snap.compact("compacted").tag == "compacted"
    with client.snapshots.get("compacted").fork(2) as made:
        assert len(made) == 2
    assert client.snapshots.delete("compacted") is True and snap.delete(force=True) is True


def test_bake(client: Client, rig: Any) -> None:
    part = rig.tmp / "part"
    part.write_bytes(bytes(4096))
    try:
        snap = client.snapshots.bake(
            "baked",
            kernel=str(part),
            rootfs=str(part),
            initrd=str(part),
            memory_mib=64,
            commands=["true"],
            network="none",
        )
        assert snap.tag == "baked" and snap.details and snap.details.bootable
    finally:
        client.snapshots.delete("baked")


def test_workspaces(client: Client, rig: Any) -> None:
    workspace = client.workspaces.create("mine", rig.snapshot, labels={"w": "1"})
    try:
        assert workspace.status == "running" and workspace.sandbox().labels == {"w": "1"}
        with pytest.raises(WorkspaceExistsError):
            client.workspaces.create("mine", rig.snapshot)
        assert workspace.suspend().status == "suspended" and client.workspaces.get("mine").status == "suspended"
        assert workspace.resume().status == "running"
        assert "mine" in [w.name for w in client.workspaces.list()]
    finally:
        assert workspace.delete() is True
    assert client.workspaces.delete("mine") is False
    with pytest.raises(WorkspaceNotFoundError):
        workspace.info()


def test_events(client: Client, rig: Any) -> None:
    with Sandbox.create(rig.snapshot, client=client, labels={"watched": "yes"}) as sandbox:
        with client.events(labels={"watched": "yes"}) as events:
            sandbox.pause()
            sandbox.resume()
            paused, running = next(events), next(events)
        assert [(e.type, e.sandbox_id) for e in (paused, running)] == [
            ("sandbox.paused", sandbox.id),
            ("sandbox.running", sandbox.id),
        ]
        with client.events(sandbox=[sandbox.id], after=paused.id) as events:
            assert next(events).id == running.id
        with client.events(sandbox=[sandbox.id], after=paused.id, records=True) as events:
            told = next(events).sandbox
            assert told is not None and told.labels == {"watched": "yes"}


def test_version(client: Client) -> None:
    assert client.version().api == "v1" and client.healthy() and "http" in repr(client)


def test_try_all_reports_as_it_goes_and_keeps_what_it_should(sandbox: Sandbox, client: Client) -> None:
    before = {s.id for s in client.sandboxes()}
    seen: list[int] = []
    tries = sandbox.try_all(
        ["exit 1", ["sleep", "1000"], "printf '\\377'; echo won >&2"],
        keep="first",
        on_result=lambda r: seen.append(r.index),
    )
    assert sorted(seen) == [0, 1, 2] and [r.index for r in tries.results] == [0, 1, 2]
    assert tries.winner is tries.results[2] and tries.winner.ok and tries.winner.command
    assert tries.winner.command.stdout_bytes == b"\xff" and tries.winner.command.stderr == "won\n"
    assert tries.results[1].stopped and tries.results[1].command is None and tries.results[1].error
    with tries.sandboxes as kept:
        assert [s.id for s in kept] == [tries.winner.sandbox_id]
        assert {s.id for s in client.sandboxes()} == before | {kept[0].id}

    def leave(result: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        sandbox.try_all(["exit 1", ["sleep", "1000"]], keep="all", on_result=leave)
    deadline = time.monotonic() + 30
    while {s.id for s in client.sandboxes()} != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {s.id for s in client.sandboxes()} == before
    big = sandbox.try_all("head -c 300000 /dev/zero", 1).results[0].command
    assert big and big.truncated and big.stdout_bytes == bytes(256 << 10)
