"""A kernel provisioner for Jupyter (pip install 'forkd[jupyter]'). It starts every kernel in a sandbox of its own,
which is a fork of a snapshot. In kernel.json:

    {"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
     "display_name": "Python in forkd", "language": "python", "interrupt_mode": "signal",
     "metadata": {"kernel_provisioner": {"provisioner_name": "forkd", "config": {"snapshot": "warm"}}}}

The snapshot may contain a running kernel, with its imports and variables. warm_kernel makes such a snapshot, and
ForkdProvisioner.branch saves a notebook's kernel. A kernel in a fork gets a new key before a client can use it, because
all forks of a snapshot know the old one. If the snapshot has no kernel, argv starts one. Restarting a kernel forks the
snapshot again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from jupyter_client.session import Session
from traitlets import Any as AnyTrait
from traitlets import Float, List, Unicode

from .._async._client import AsyncClient
from .._async._sandbox import AsyncSandbox
from .._codes import SandboxNotFoundError
from .._errors import ForkdError, StreamBrokenError

T = TypeVar("T")
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
GUEST_PORTS = dict(zip(PORTS, range(19401, 19406)))  # outside of Linux's range of ephemeral ports
ARGV = ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
WRITE = 'umask 077; cat >"$1.new" && mv "$1.new" "$1"'


class _Loop:
    """An event loop in a thread. It forwards connections even while Jupyter's own event loops are blocked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="forkd-jupyter").start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)


class ForkdProvisioner(KernelProvisionerBase):
    """Starts kernels in sandboxes. Kernels are reached through ports of 127.0.0.1 on this host."""

    snapshot = Unicode(config=True, help="tag of the snapshot that sandboxes are forked from")
    network = AnyTrait(None, config=True, help="network policy of sandboxes; None: that of the snapshot")
    ttl = Float(None, allow_none=True, config=True, help="seconds after which the daemon deletes a sandbox")
    user = Unicode(None, allow_none=True, config=True, help="user that starts kernels; None: that of the snapshot")
    argv = List(Unicode(), ARGV, config=True, help="starts a kernel, if the snapshot has none")
    kernel_file = Unicode("/tmp/forkd-kernel.json", config=True, help="connection file in the sandbox")
    start_timeout = Float(120.0, config=True, help="seconds within which a kernel must answer")

    sandbox: AsyncSandbox | None = None
    """The sandbox of the kernel. Its methods belong to another event loop: use branch."""
    warm: bool = False
    """Whether the kernel ran in the snapshot already."""
    _open: AsyncSandbox | None = None  # that clients reach
    _pid: int = 0  # of the kernel, in the sandbox
    _key: str = ""  # of all kernels of this provisioner, because clients keep it when a kernel restarts
    _loop: _Loop | None = None
    _client: AsyncClient | None = None
    _servers: list[asyncio.Server] = []

    @property
    def _record(self) -> str:
        """File in the sandbox with the key and the pid of its kernel. Some versions of ipykernel replace the connection
        file at any time after the start."""
        return self.kernel_file + ".forkd"

    @property
    def has_process(self) -> bool:
        return self.sandbox is not None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        kwargs.pop("extra_arguments", None)
        return await super().pre_launch(cmd=[], **kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        if self._loop is None:
            self._loop = _Loop()
            self._key = secrets.token_hex(32)
        try:
            old = await self._loop.run(self._fork())
            if self.warm:
                await self._loop.run(self._replace(old))
            await self._loop.run(self._start())
            info = await self._loop.run(self._listen())
        except BaseException:
            await self.cleanup()
            raise
        connection: Any = {**info, "key": self._key.encode()}
        self.connection_info = connection
        return self.connection_info

    async def _fork(self) -> str:
        """Forks the sandbox. Returns the key of the kernel that runs in it, if there is one."""
        if self._client is None:
            self._client = AsyncClient()
        self.sandbox = await AsyncSandbox.create(
            self.snapshot, client=self._client, network=self.network, ttl=self.ttl, labels={"jupyter-kernel": "yes"}
        )
        found = await self.sandbox.commands.run(["cat", self._record], user=self.user)
        self.warm, self._pid, key = False, 0, ""
        with suppress(ValueError, TypeError, KeyError):  # the content is the sandbox's own
            info = json.loads(found.stdout) if found.ok else {}
            if {name: info[name] for name in PORTS} == GUEST_PORTS and int(info["pid"]) > 0:
                self._pid, key = int(info["pid"]), str(info["key"])
                self.warm = await self._alive()
        return key

    async def _start(self) -> None:
        """Records the kernel's key. Starts a kernel if none runs, and waits until it listens."""
        assert self.sandbox is not None
        if self.warm:
            await self._save(self._record)
            return
        await self._save(self.kernel_file)
        args = [part.replace("{connection_file}", self.kernel_file) for part in self.argv]
        process = await self.sandbox.commands.start(args, user=self.user)
        self._pid = process.pid
        with suppress(StreamBrokenError):  # the kernel has ended: reported below
            await process.detach()
        await self._save(self._record)
        async with asyncio.timeout(self.start_timeout):
            for port in GUEST_PORTS.values():
                while not await self._listens(port):
                    if not await self._alive():
                        raise RuntimeError(f"the kernel ended before it listened: {args}")
                    await asyncio.sleep(0.1)

    async def _save(self, path: str) -> None:
        assert self.sandbox is not None
        info = {"transport": "tcp", "ip": "127.0.0.1", "signature_scheme": "hmac-sha256", **GUEST_PORTS}
        text = json.dumps({**info, "key": self._key, "kernel_name": "", "pid": self._pid})
        write = ["/bin/sh", "-c", WRITE, "sh", path]
        await self.sandbox.commands.run(write, stdin=text, user=self.user, check=True)

    async def _listens(self, port: int) -> bool:
        assert self.sandbox is not None
        try:
            async with self.sandbox.connect_port(port):
                return True
        except ForkdError:
            return False

    async def _replace(self, old: str) -> None:
        """Gives a warm kernel the key of this provisioner. Until then, no client may reach it."""
        server = await asyncio.start_server(self._carry(GUEST_PORTS["shell_port"], self.sandbox), "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            await asyncio.to_thread(_new_key, port, old, self._key, self.start_timeout)
        finally:
            server.close()

    async def _listen(self) -> dict[str, Any]:
        """Forwards ports of this host. Returns the connection info of the kernel, without its key. The
        ports stay the same when a kernel restarts, because clients keep them."""
        for port in list(GUEST_PORTS.values())[len(self._servers) :]:
            self._servers = [*self._servers, await asyncio.start_server(self._carry(port), "127.0.0.1", 0)]
        ports = {name: server.sockets[0].getsockname()[1] for name, server in zip(PORTS, self._servers)}
        self._open = self.sandbox
        return {"transport": "tcp", "ip": "127.0.0.1", "signature_scheme": "hmac-sha256", **ports}

    def _carry(self, port: int, sandbox: AsyncSandbox | None = None) -> Any:
        """Returns a handler that forwards a connection to a port of a sandbox, by default of the open sandbox."""

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                target = sandbox or self._open
                if target is None:
                    return  # one kernel has ended, and the next has not started
                async with target.connect_port(port) as guest:

                    async def send() -> None:
                        while data := await reader.read(1 << 16):
                            await guest.send(data)
                        await guest.end()

                    sending = asyncio.ensure_future(send())
                    try:
                        while data := await guest.receive():
                            writer.write(data)
                            await writer.drain()
                    finally:
                        sending.cancel()
            except (ForkdError, OSError):
                pass  # ZeroMQ connects again
            finally:
                writer.close()

        return carry

    async def branch(self, tag: str | None = None) -> str:
        """Saves the sandbox with the running kernel, and returns the tag. Kernels that start from this
        snapshot continue with all variables. If a cell was running, they can start only when the cell ends."""
        assert self.sandbox is not None and self._loop is not None
        snapshot, _ = await self._loop.run(self.sandbox.branch(tag=tag))
        return snapshot.tag

    async def _kill(self, name: str) -> bool:
        """Sends a signal to the kernel; False if it has ended."""
        assert self.sandbox is not None
        sent = await self.sandbox.commands.run(["/bin/sh", "-c", f"kill -{name} {self._pid}"], user=self.user)
        return bool(sent.ok)

    async def _alive(self) -> bool:
        try:
            return await self._kill("0")
        except SandboxNotFoundError:
            return False

    async def poll(self) -> int | None:
        if self.sandbox is None or self._loop is None:
            return 0
        try:
            return None if await self._loop.run(self._alive()) else 0
        except ForkdError:
            return None  # the daemon is starting again, or the sandbox is paused: the kernel is not lost

    async def wait(self) -> int | None:
        while await self.poll() is None:
            await asyncio.sleep(0.2)
        return 0

    async def send_signal(self, signum: int) -> None:
        if self._loop is not None and self.sandbox is not None and signum != 0:
            await self._loop.run(self._kill(signal.Signals(signum).name.removeprefix("SIG")))

    async def kill(self, restart: bool = False) -> None:
        await self._end()

    async def terminate(self, restart: bool = False) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._loop is not None:
            await self._loop.run(self._close())

    async def _close(self) -> None:
        sandbox, self.sandbox, self._open = self.sandbox, None, None
        if sandbox is not None:
            await sandbox.kill()

    async def cleanup(self, restart: bool = False) -> None:
        await self._end()
        if not restart and self._loop is not None:
            for server in self._servers:
                self._loop.loop.call_soon_threadsafe(server.close)
            self._servers = []
            if self._client is not None:
                await self._loop.run(self._client.aclose())
            self._loop.stop()
            self._loop = self._client = None

    async def get_provisioner_info(self) -> dict[str, Any]:
        info = await super().get_provisioner_info()
        return {**info, "sandbox": self.sandbox.id if self.sandbox else None}


def _new_key(port: int, old: str, new: str, timeout: float) -> None:
    """Gives a kernel a new key. All forks of a snapshot know the old one. port is its local shell port."""
    session = Session(key=old.encode())
    context = zmq.Context()
    try:
        shell = context.socket(zmq.DEALER)
        shell.linger = 0
        shell.connect(f"tcp://127.0.0.1:{port}")
        code = f"get_ipython().kernel.session.key = {new!r}.encode()"
        request = session.send(
            shell,
            "execute_request",
            {
                "code": code,
                "silent": True,
                "store_history": False,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": False,
            },
        )
        assert request is not None
        session.key = new.encode()  # the kernel signs its answer with the new key
        while shell.poll(int(timeout * 1000)):
            with suppress(ValueError):  # signed with another key
                _, answer = session.recv(shell, zmq.NOBLOCK)
                if answer and answer["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                    if answer["content"].get("status") != "ok":
                        raise RuntimeError("the kernel has refused a new key")
                    return
        raise TimeoutError("the kernel in the snapshot does not answer: was a cell running?")
    finally:
        context.destroy(linger=0)


async def warm_kernel(snapshot: str, code: str, tag: str | None = None, **config: Any) -> str:
    """Starts a kernel in a fork of snapshot, runs code in it, and returns the tag of a snapshot with this kernel.
    config has further settings of ForkdProvisioner."""
    provisioner = ForkdProvisioner(snapshot=snapshot, **config)
    client = AsyncKernelClient()
    try:
        client.load_connection_info(await provisioner.launch_kernel([]))
        client.start_channels()
        await client.wait_for_ready(timeout=provisioner.start_timeout)
        answer = await client.execute_interactive(code, store_history=False, timeout=provisioner.start_timeout)
        if answer["content"]["status"] != "ok":
            raise RuntimeError(f"{answer['content'].get('ename')}: {answer['content'].get('evalue')}")
        client.stop_channels()
        return await provisioner.branch(tag)
    finally:
        client.stop_channels()
        await provisioner.cleanup()
