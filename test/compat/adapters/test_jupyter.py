"""forkd.integrations.jupyter with the real jupyter-client, and ipykernel in sandboxes. Faked VMs have the processes and
ports of this host, so there a fork meets the kernel that the snapshot has."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from jupyter_client import AsyncKernelClient, AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.provisioning import KernelProvisionerFactory

from conftest import Daemon
from forkd import Client
from forkd.integrations.jupyter import ForkdProvisioner, warm_kernel

LONG = 300  # seconds that an operation may take on an emulated host


@pytest.fixture(scope="module")
def daemon(daemon: Daemon) -> Daemon:
    """The daemon of the other adapters. With real VMs, its snapshot is one with ipykernel (recipe.yaml)."""
    return replace(daemon, snapshot=os.environ.get("COMPAT_JUPYTER_TAG") or daemon.snapshot) if daemon.real else daemon


@asynccontextmanager
async def kernel(daemon: Daemon, there: Path, snapshot: str) -> AsyncIterator[tuple[AsyncKernelManager, AsyncKernelClient]]:
    """A kernel of Jupyter, by its kernel.json."""
    folder = there / "kernels" / "forkd"
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": ["not-used"],
        "display_name": "forkd",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "forkd", "config": settings(daemon, there, snapshot)}},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    manager = AsyncKernelManager(
        kernel_name="forkd", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(there / "kernels")])
    )
    await manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        await client.wait_for_ready(timeout=LONG)
        yield manager, client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def settings(daemon: Daemon, there: Path, snapshot: str = "") -> dict[str, object]:
    program = "python3" if daemon.real else sys.executable
    return {
        **({"snapshot": snapshot} if snapshot else {}),
        "argv": [program, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "kernel_file": "/tmp/forkd-kernel.json" if daemon.real else str(there / "kernel.json"),
        "start_timeout": LONG,
    }


async def value(client: AsyncKernelClient, code: str) -> str:
    said: list[str] = []
    answer = await client.execute_interactive(
        code, timeout=LONG, output_hook=lambda m: said.append(m["content"].get("text", ""))
    )
    assert answer["content"]["status"] == "ok", answer["content"]
    return "".join(said).strip()


@pytest.fixture
def ipykernel(daemon: Daemon) -> None:
    if daemon.real:
        with daemon.sandbox() as sandbox:
            if not sandbox.commands.run(["python3", "-c", "import ipykernel"]).ok:
                pytest.skip("the snapshot has no ipykernel")


def left() -> list[str]:
    return [box.id for box in Client.default().sandboxes(labels={"jupyter-kernel": "yes"})]


def test_entry_point() -> None:
    assert "forkd" in KernelProvisionerFactory.instance().get_provisioner_entries()


async def test_a_kernel_runs_is_interrupted_and_ends(daemon: Daemon, ipykernel: None, tmp_path: Path) -> None:
    async with kernel(daemon, tmp_path, daemon.snapshot) as (manager, client):
        assert await manager.is_alive()
        assert not manager.provisioner.warm
        assert await value(client, "x = 6 * 7; print(x)") == "42"
        [box] = left()
        # For some time after an error, ipykernel would abort the next request.
        running = asyncio.ensure_future(
            client.execute_interactive("import time; time.sleep(600)", timeout=LONG, stop_on_error=False))
        await asyncio.sleep(2)
        await manager.interrupt_kernel()
        assert (await running)["content"]["ename"] == "KeyboardInterrupt"
        assert await value(client, "print(x)") == "42"
        assert box in left()
    assert not await manager.is_alive()
    assert left() == []


async def test_a_warm_kernel_gets_a_new_key(daemon: Daemon, ipykernel: None, tmp_path: Path) -> None:
    first = ForkdProvisioner(snapshot=daemon.snapshot, **settings(daemon, tmp_path))
    client = AsyncKernelClient()
    client.load_connection_info(await first.launch_kernel([]))
    client.start_channels()
    await client.wait_for_ready(timeout=LONG)
    await value(client, "import json as warm")
    tag = await first.branch()
    old = first.connection_info["key"]
    client.stop_channels()
    if daemon.real:
        await first.cleanup()  # with faked VMs, this kernel is also that of the snapshot
    try:
        async with kernel(daemon, tmp_path, tag) as (manager, other):
            assert manager.provisioner.warm
            assert manager.session.key != old
            assert await value(other, "print(warm.__name__)") == "json"  # its variables are there
            spy = AsyncKernelClient()
            spy.load_connection_info({**manager.get_connection_info(), "key": old})
            spy.start_channels(stdin=False)
            spy.kernel_info()
            with pytest.raises(Exception):  # no answer to the old key
                await spy.get_shell_msg(timeout=5)
            spy.stop_channels()
            assert await value(other, "print(2)") == "2"
    finally:
        await first.cleanup()
        Client.default().snapshots.delete(tag)
    assert left() == []


async def test_forks_of_a_warm_kernel_are_separate(daemon: Daemon, real: None, ipykernel: None, tmp_path: Path) -> None:
    tag = await warm_kernel(daemon.snapshot, "x = [1]", **settings(daemon, tmp_path))
    try:
        async with kernel(daemon, tmp_path / "a", tag) as (a, one), kernel(daemon, tmp_path / "b", tag) as (b, two):
            assert a.session.key != b.session.key
            assert await value(one, "x.append(2); print(x)") == "[1, 2]"
            assert await value(two, "print(x)") == "[1]"
            await a.restart_kernel(now=True)  # the state of the snapshot
            await one.wait_for_ready(timeout=LONG)
            assert a.provisioner.warm
            assert await value(one, "print(x)") == "[1]"
    finally:
        Client.default().snapshots.delete(tag)


async def test_a_kernel_that_cannot_start_leaves_no_sandbox(daemon: Daemon, tmp_path: Path) -> None:
    bad = {**settings(daemon, tmp_path), "argv": ["/bin/sh", "-c", "exit 3"]}
    provisioner = ForkdProvisioner(snapshot=daemon.snapshot, **bad)
    with pytest.raises(RuntimeError, match="ended before it listened"):
        await provisioner.launch_kernel([])
    assert left() == []


@pytest.mark.parametrize("content", ["", "no JSON", "[1]", '{"pid": "x"}', '{"shell_port": 1, "pid": -1, "key": 3}'])
async def test_a_bad_file_in_the_sandbox_is_ignored(
    daemon: Daemon, ipykernel: None, tmp_path: Path, content: str
) -> None:
    if daemon.real:
        pytest.skip("the file is written beforehand only with faked VMs, which share the host's files")
    (tmp_path / "kernel.json.forkd").write_text(content)
    provisioner = ForkdProvisioner(snapshot=daemon.snapshot, **settings(daemon, tmp_path))
    try:
        await provisioner.launch_kernel([])
        assert not provisioner.warm
    finally:
        await provisioner.cleanup()
