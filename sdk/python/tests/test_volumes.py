"""Volumes, and requests of sandboxes that are held back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forkd import AsyncClient, Client, Hold, Sandbox
from forkd._sync._sandbox import fork_body
from forkd.errors import (
    InvalidFieldError,
    NoVolumeSlotsError,
    VolumeExistsError,
    VolumeNotFoundError,
)


def test_volumes_are_made_listed_copied_and_removed(client: Client) -> None:
    made = client.volumes.create("py.data", size_mib=16, labels={"job": "7"})
    try:
        assert made.name == "py.data" and made.size_bytes == 16 << 20 and made.labels == {"job": "7"}
        assert client.volumes.get("py.data").id == made.id
        copy = client.volumes.snapshot("py.data", "py.copy", labels={"job": "8"})
        assert copy.id != made.id and copy.size_bytes == made.size_bytes
        assert [v.name for v in client.volumes.list() if v.name.startswith("py.")] == ["py.copy", "py.data"]
        assert [v.name for v in client.volumes.list({"job": "7"})] == ["py.data"]
        with pytest.raises(VolumeExistsError):
            client.volumes.create("py.data")
    finally:
        assert client.volumes.delete("py.data")
    assert client.volumes.delete("py.copy") and not client.volumes.delete("py.copy")
    with pytest.raises(VolumeNotFoundError):
        client.volumes.get("py.data")


def test_volumes_of_the_asynchronous_client(rig: Any) -> None:
    async def run() -> None:
        async with AsyncClient() as client:
            await client.volumes.create("py.async", size_mib=16)
            assert "py.async" in [v.name for v in await client.volumes.list()]
            assert await client.volumes.delete("py.async") and not await client.volumes.delete("py.async")

    asyncio.run(run())


def body(**options: Any) -> dict[str, Any]:
    names = ("labels", "env", "network", "limits", "ttl", "idle_timeout", "unique", "hostname_prefix")
    defaults: dict[str, Any] = {
        "n": 1,
        **dict.fromkeys((*names, "hooks", "volumes", "hold_effects")),
        "allow_partial": False,
    }
    return fork_body(**(defaults | options))


def test_the_request_names_volumes_and_held_servers() -> None:
    assert body() == {"n": 1} == body(volumes={})
    assert body(volumes={"/a": "data", "/b": "other:ro", "/c": "x:copy"})["volumes"] == [
        {"name": "data", "path": "/a"},
        {"name": "other", "path": "/b", "mode": "ro"},
        {"name": "x", "path": "/c", "mode": "copy"},
    ]
    assert body(hold_effects=["*.example.com"])["hold_effects"] == {"hosts": ["*.example.com"]}
    hold = Hold(hosts=["a.example"], answer="record")
    assert body(hold_effects=hold)["hold_effects"] == {"hosts": ["a.example"], "answer": "record"}


def test_the_daemon_receives_the_volumes(rig: Any, client: Client, sandbox: Sandbox) -> None:
    """The daemon's snapshot has no slots, and its errors say what it has received."""
    client.volumes.create("py.mounted", size_mib=16)
    try:
        with pytest.raises(NoVolumeSlotsError):
            client.fork(rig.snapshot, volumes={"/data": "py.mounted:ro"})
        with pytest.raises(NoVolumeSlotsError):
            Sandbox.create(rig.snapshot, client=client, volumes={"/data": "py.mounted"})
        with pytest.raises(NoVolumeSlotsError):
            sandbox.fork(volumes={"/data": "py.mounted"})
        with pytest.raises(VolumeNotFoundError):
            client.fork(rig.snapshot, volumes={"/data": "py.none"})
        with pytest.raises(NoVolumeSlotsError):
            client.volumes.attach("py.mounted", sandbox.id, "/data", mode="ro")
        with pytest.raises(VolumeNotFoundError):
            client.volumes.attach("py.none", sandbox.id, "/data")
        with pytest.raises(VolumeNotFoundError):
            client.volumes.detach("py.mounted", sandbox.id)
    finally:
        client.volumes.delete("py.mounted")


def test_held_servers(rig: Any, client: Client, sandbox: Sandbox) -> None:
    assert sandbox.effects().hold is None and sandbox.effects().effects == []
    for call in (
        lambda hold: client.fork(rig.snapshot, hold_effects=hold),
        lambda hold: sandbox.fork(hold_effects=hold),
        lambda hold: sandbox.try_all(["true"], hold_effects=hold),
    ):
        with pytest.raises(InvalidFieldError) as refused:
            call(["10.1.2.3/8"])
        assert "hold_effects.hosts" in str(refused.value)
    with Sandbox.create(rig.snapshot, client=client, hold_effects=Hold(hosts=["api.example"], answer="record")) as held:
        hold = held.effects().hold
        assert hold is not None and hold.hosts == ["api.example"] and hold.answer == "record"
        assert held.release_effects().hold is None and held.effects().hold is None
