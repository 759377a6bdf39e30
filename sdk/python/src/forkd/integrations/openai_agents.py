"""Sandboxes for the OpenAI Agents SDK (pip install 'forkd[openai-agents]'):

    from agents import Runner
    from agents.run_config import RunConfig
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from forkd.integrations.openai_agents import ForkdSandboxClient, ForkdSandboxClientOptions, ForkdSnapshotSpec

    client = ForkdSandboxClient()
    options = ForkdSandboxClientOptions(tag="python-numpy")
    async with await client.create(options=options, snapshot=ForkdSnapshotSpec()) as session:
        sandbox = SandboxRunConfig(session=session)
        await Runner.run(agent, "fix the test", run_config=RunConfig(sandbox=sandbox))
        before = await client.branch(session)
        attempts = await client.fork(session, 3)     # sessions that continue from this state
        await client.rollback(session, before)

When a session stops, its sandbox is saved as a branch, with its memory and processes. client.resume(state) continues
from the branch. With any snapshot of the framework (LocalSnapshotSpec, RemoteSnapshotSpec) this works in the same way:
the snapshot then stores a reference to the branch instead of an archive.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import shlex
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from agents.sandbox.errors import (
    ErrorCode,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    MountConfigError,
    SnapshotNotRestorableError,
    SnapshotPersistError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.bounded_read import collect_bounded
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
from agents.sandbox.workspace_paths import sandbox_path_str
from pydantic import ConfigDict, Field

from .._async._client import AsyncClient
from .._async._commands import AsyncCommandHandle
from .._async._sandbox import AsyncSandbox
from .._async._snapshot import AsyncSnapshot
from .._codes import NotFoundInSandboxError, SandboxNotFoundError
from .._errors import ForkdError, InvalidArgumentError
from ._capture import Capture

LABEL = "openai-agents-session"
"""The label of the sandboxes and branches of a session. Its value is the id of the session."""
LONGEST = 3600.0  # seconds that a command may take
MAX_OUTPUT = 16 << 20  # bytes of each output of a command that a result has
MAX_QUEUED = 4 << 20  # bytes of a process's output that wait to be collected; further output is dropped
MAX_REFERENCE = 4096  # bytes

_REFERENCE = b"FORKD_BRANCH_V1\n"  # begins a saved workspace that is a branch
_log = logging.getLogger(__name__)


class ForkdSandboxClientOptions(BaseSandboxClientOptions):
    """How sandboxes are forked and used. Unknown fields are refused, because one may be a misspelt policy."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["forkd"] = "forkd"
    tag: str
    """The tag of the snapshot of forkd that the sandbox is forked from."""
    user: str | None = None
    """The user that commands run as, and that new files belong to; None: the sandbox's own user."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of commands. The environment of the manifest overrides it."""
    network: str | dict[str, Any] | None = None
    """A mode such as "none", or the fields of a network policy; None: the snapshot's own policy."""
    ttl: float | None = None
    """Seconds after which the daemon deletes the sandbox; None: never."""
    idle_timeout: float | None = None
    """Seconds without a request after which the daemon suspends the sandbox; None: never."""
    exposed_ports: tuple[int, ...] = ()
    """Ports that resolve_exposed_port may be asked for. The daemon needs --proxy-domain."""
    workspace_persistence: Literal["branch", "tar"] = "branch"
    """What a stopped session saves: the sandbox with its memory, or an archive of the workspace."""
    on_exit: Literal["kill", "suspend"] = "kill"
    """What shutdown does. A suspended sandbox uses no memory of the host until the session is resumed."""


class ForkdSandboxSessionState(SandboxSessionState):
    """The state of a session, from which resume continues it."""

    type: Literal["forkd"] = "forkd"
    sandbox_id: str
    options: ForkdSandboxClientOptions


class ForkdSnapshot(SnapshotBase):
    """Holds the branch of a stopped session in the session's state. It stores nothing outside of forkd."""

    model_config = ConfigDict(frozen=False)

    type: Literal["forkd"] = "forkd"
    branch: str | None = None
    """The tag of the branch; None if the session was not saved."""

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        """Takes over the branch in data."""
        tag = _tag_of(data.read(MAX_REFERENCE))
        if tag is None:
            reason = 'an archive was saved: use workspace_persistence="branch" and no ephemeral entries in the manifest'
            raise SnapshotPersistError(snapshot_id=self.id, path=Path("<forkd>"), context={"reason": reason})
        self.branch = tag

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        """Returns a reference to the branch."""
        if self.branch is None:
            raise SnapshotNotRestorableError(snapshot_id=self.id, path=Path("<forkd>"))
        return io.BytesIO(_reference(self.branch))

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        """Whether there is a branch."""
        return self.branch is not None


class ForkdSnapshotSpec(SnapshotSpec):
    """Makes a ForkdSnapshot for each session."""

    type: Literal["forkd"] = "forkd"

    def build(self, snapshot_id: str) -> SnapshotBase:
        """Returns a snapshot without a branch."""
        return ForkdSnapshot(id=snapshot_id)


@dataclass
class _Process:
    """A process that pty_exec_start has started, and its output that was not collected yet."""

    handle: AsyncCommandHandle
    tty: bool
    chunks: deque[bytes] = field(default_factory=deque)
    queued: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    used: float = field(default_factory=time.monotonic)
    exit_code: int = -1
    reader: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Reads the output until the process ends."""
        try:
            async for part in self.handle:
                data = part.data if isinstance(part.data, bytes) else part.data.encode()
                async with self.lock:
                    self.queued = sum(map(len, self.chunks))
                    if self.queued + len(data) <= MAX_QUEUED:
                        self.chunks.append(data)
                self.arrived.set()
            self.exit_code = (await self.handle.wait()).exit_code
        except ForkdError as e:
            async with self.lock:
                self.chunks.append(f"\nforkd: {e}\n".encode())
        finally:
            self.ended.set()
            self.arrived.set()

    async def close(self) -> None:
        """Kills the process, if it has not ended."""
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)
        await self.handle.aclose()


class ForkdSandboxSession(BaseSandboxSession):
    """A session in a sandbox. ForkdSandboxClient makes it."""

    state: ForkdSandboxSessionState

    def __init__(self, state: ForkdSandboxSessionState, sandbox: AsyncSandbox, restored: str | None = None) -> None:
        """restored is the tag of the branch that the sandbox has just been forked from, if it was saved by a session
        with this state."""
        self.state, self.sandbox, self._restored = state, sandbox, restored
        self._processes: dict[int, _Process] = {}
        self._ready = state.workspace_root_ready

    async def _env(self) -> dict[str, str]:
        return {**self.state.options.env, **await self.state.manifest.environment.resolve()}

    # Commands.

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv, user = _as_user([str(c) for c in command], self.state.options.user)
        out, err = Capture(MAX_OUTPUT), Capture(MAX_OUTPUT)
        seconds = LONGEST if timeout is None else min(max(timeout, 0.001), LONGEST)
        try:
            result = await self.sandbox.commands.run(
                argv,
                env=await self._env(),
                cwd=self.state.manifest.root if self._ready else None,
                user=user,
                timeout=seconds,
                text=False,
                on_stdout=out,
                on_stderr=err,
            )
        except ForkdError as e:
            raise _transport(command, e) from e
        if result.timed_out:
            output = {"stdout": out.text, "stderr": err.text}
            raise ExecTimeoutError(command=command, timeout_s=seconds, context=output)
        text = err.data if result.outcome in ("exited", "signaled") else (result.error or "").encode()
        return ExecResult(stdout=out.data, stderr=text, exit_code=result.exit_code)

    def supports_pty(self) -> bool:
        """Terminals are supported."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Starts a process, with a terminal if tty is true, and returns its first output."""
        argv, name = _as_user(self._prepare_exec_command(*command, shell=shell, user=user), self.state.options.user)
        where, env = self.state.manifest.root if self._ready else None, await self._env()
        try:
            if tty:
                handle = await self.sandbox.pty.create(cmd=argv, env=env, cwd=where, user=name, timeout=timeout)
            else:
                handle = await self.sandbox.commands.start(
                    argv, env=env, cwd=where, user=name, timeout=timeout, text=False
                )
        except ForkdError as e:
            raise _transport(command, e) from e
        process = _Process(handle, tty)
        process.reader = asyncio.create_task(process.read())
        if len(self._processes) >= PTY_PROCESSES_MAX:
            meta = [(n, p.used, p.ended.is_set()) for n, p in self._processes.items()]
            if (oldest := process_id_to_prune_from_meta(meta)) is not None:
                await self._processes.pop(oldest).close()
        number = allocate_pty_process_id(set(self._processes))
        self._processes[number] = process
        wait = clamp_pty_yield_time_ms(10_000 if yield_time_s is None else int(yield_time_s * 1000))
        return await self._update(number, process, wait, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Sends input to a process with a terminal, and returns its output."""
        process = self._resolve_pty_session_entry(pty_processes=self._processes, session_id=session_id)
        process.used = time.monotonic()
        if chars:
            if not process.tty:
                raise RuntimeError("stdin is not available for this process")
            try:
                await process.handle.write(chars.encode())
            except ForkdError as e:
                raise _transport(("pty_write_stdin", str(session_id)), e) from e
            await asyncio.sleep(0.1)  # time for the answer
        milliseconds = 250 if yield_time_s is None else int(yield_time_s * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=milliseconds, input_empty=chars == "")
        return await self._update(session_id, process, wait, max_output_tokens)

    async def _update(self, number: int, process: _Process, wait: int, most: int | None) -> PtyExecUpdate:
        output, tokens, ended = await collect_pty_output(
            output_chunks=process.chunks,
            output_lock=process.lock,
            output_notify=process.arrived,
            is_done=process.ended.is_set,
            yield_time_ms=wait,
            max_output_tokens=most,
        )
        if ended:
            self._processes.pop(number, None)
            await process.close()
        return PtyExecUpdate(None if ended else number, output, process.exit_code if ended else None, tokens)

    async def pty_terminate_all(self) -> None:
        """Kills all processes that pty_exec_start has started."""
        processes, self._processes = list(self._processes.values()), {}
        for process in processes:
            await process.close()

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            url = urlsplit(await self.sandbox.url(port))
        except ForkdError as e:
            ports = self.state.exposed_ports
            raise ExposedPortUnavailableError(
                port=port, exposed_ports=ports, reason="backend_unavailable", context={"detail": str(e)}, cause=e
            ) from e
        tls = url.scheme == "https"
        return ExposedPortEndpoint(url.hostname or "", url.port or (443 if tls else 80), tls, url.query)

    # Files.

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.state.sandbox_id

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """The content of a file of at most 1 GiB."""
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        where = sandbox_path_str(await self._validate_path_access(path))
        try:
            return io.BytesIO(await self.sandbox.files.read_bytes(where))
        except NotFoundInSandboxError as e:
            raise WorkspaceReadNotFoundError(path=path, cause=e) from e
        except ForkdError as e:
            raise WorkspaceArchiveReadError(path=path, context={"detail": str(e)}, cause=e) from e

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        where = sandbox_path_str(await self._validate_path_access(path))
        try:
            async with self.sandbox.files.read_stream(where) as parts:
                return await collect_bounded(parts, max_bytes)
        except NotFoundInSandboxError:
            raise WorkspaceReadNotFoundError(path=path) from None
        except ForkdError:
            raise WorkspaceArchiveReadError(path=path) from None

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Replaces a file, and makes its directories. The file belongs to the user."""
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        content = data.read()
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, (bytes, bytearray)):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
        where = await self._validate_path_access(path, for_write=True)
        owner = user.name if isinstance(user, User) else user or self.state.options.user
        try:
            await self.sandbox.files.write(sandbox_path_str(where), bytes(content), user=owner)
        except ForkdError as e:
            raise WorkspaceArchiveWriteError(path=where, context={"detail": str(e)}, cause=e) from e

    # The life of the session.

    async def running(self) -> bool:
        """Whether the session was started, and its sandbox runs."""
        try:
            return self._ready and await self.sandbox.is_running()
        except ForkdError:
            return False

    async def _prepare_backend_workspace(self) -> None:
        root = self._workspace_root_path()
        try:
            made = await self.sandbox.commands.run(
                ["mkdir", "-p", "--", sandbox_path_str(root)], cwd="/", user=self.state.options.user, timeout=60
            )
        except ForkdError as e:
            raise WorkspaceStartError(path=root, context={"detail": str(e)}, cause=e) from e
        if not made.ok:
            raise WorkspaceStartError(path=root, context={"stderr": made.stderr or made.error or ""})
        self._ready = True

    def _mark_workspace_root_ready_from_probe(self) -> None:
        super()._mark_workspace_root_ready_from_probe()
        self._ready = True

    async def _can_skip_snapshot_restore_on_resume(self, *, is_running: bool) -> bool:
        if self._restored is not None:
            return is_running  # the sandbox has just been forked from the saved branch
        return await super()._can_skip_snapshot_restore_on_resume(is_running=is_running)

    async def _after_start(self) -> None:
        self._restored = None
        if self._runtime_helper_cache_key != self._current_runtime_helper_cache_key():
            await self._ensure_runtime_helpers()

    async def _shutdown_backend(self) -> None:
        try:
            if self.state.options.on_exit == "suspend":
                await self.sandbox.suspend()
            else:
                await self.sandbox.kill()
        except ForkdError as e:
            _log.warning("the sandbox %s could not be shut down: %s", self.sandbox.id, e)

    async def branch(self) -> AsyncSnapshot:
        """Saves the sandbox as a branch."""
        labels = {LABEL: str(self.state.session_id)}
        return (await self.sandbox.branch(labels=labels))[0]

    async def rollback(self, to: str | AsyncSnapshot) -> None:
        """Rolls the sandbox back, and forgets the processes of pty_exec_start."""
        await self.pty_terminate_all()
        await self.sandbox.rollback(to)

    async def persist_workspace(self) -> io.IOBase:
        """Saves the sandbox as a branch. If the options ask for an archive, or parts of the workspace
        must not be saved, it saves the workspace as an archive instead."""
        root, skip = self._workspace_root_path(), self._persist_workspace_skip_relpaths()
        try:
            if self.state.options.workspace_persistence == "branch" and not skip:
                return io.BytesIO(_reference((await self.branch()).tag))
            archive = f"/tmp/forkd-workspace-{uuid.uuid4().hex}.tar"
            excluded = " ".join(shell_tar_exclude_args(skip))
            script = f"tar {excluded} -C {shlex.quote(root.as_posix())} -cf {archive} ."
            try:
                await self.sandbox.commands.run(script, cwd="/", timeout=LONGEST, check=True)
                raw = await self.sandbox.files.read_bytes(archive)
            finally:
                await self.sandbox.files.remove(archive)
            if raw.startswith(_REFERENCE):  # the guest, which wrote this, must not choose a branch to resume
                raise WorkspaceArchiveReadError(path=root, context={"detail": "the sandbox made no tar archive"})
            return io.BytesIO(raw)
        except ForkdError as e:
            raise WorkspaceArchiveReadError(path=root, context={"detail": str(e)}, cause=e) from e

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Replaces the sandbox by a fork of the saved branch, or adds the files of an archive to the workspace."""
        root, raw = self._workspace_root_path(), data.read()
        raw = raw.encode() if isinstance(raw, str) else bytes(raw)
        tag = _tag_of(raw)
        try:
            if tag is not None:
                made = await _fork(self.sandbox.client, tag, self.state.options, self.state.session_id)
                await self.pty_terminate_all()
                old, self.sandbox, self.state.sandbox_id = self.sandbox, made, made.id
                self._ready = True
                await old.kill()
                return
            validate_tar_bytes(raw, allow_external_symlink_targets=False)
            archive = f"/tmp/forkd-workspace-{uuid.uuid4().hex}.tar"
            await self._prepare_backend_workspace()
            try:
                await self.sandbox.files.write(archive, raw, user=self.state.options.user)
                await self.sandbox.commands.run(
                    ["tar", "-C", root.as_posix(), "-xf", archive],
                    cwd="/",
                    user=self.state.options.user,
                    timeout=LONGEST,
                    check=True,
                )
            finally:
                await self.sandbox.files.remove(archive)
        except UnsafeTarMemberError as e:
            raise WorkspaceArchiveWriteError(path=root, context={"member": e.member, "detail": str(e)}, cause=e) from e
        except ForkdError as e:
            raise WorkspaceArchiveWriteError(path=root, context={"detail": str(e)}, cause=e) from e


class ForkdSandboxClient(BaseSandboxClient[ForkdSandboxClientOptions]):
    """Makes sessions in sandboxes of forkd."""

    backend_id = "forkd"

    def __init__(
        self,
        client: AsyncClient | None = None,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        """Without a client, it uses a shared client; see AsyncClient.default."""
        self._client = client
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    # Methods that only forkd's client has.

    def sandbox(self, session: SandboxSession) -> AsyncSandbox:
        """The sandbox of a session, for all other operations."""
        return _inner(session).sandbox

    async def branch(self, session: SandboxSession) -> AsyncSnapshot:
        """Saves the running sandbox of a session, with its memory, as a snapshot."""
        return await _inner(session).branch()

    async def rollback(self, session: SandboxSession, to: str | AsyncSnapshot) -> None:
        """Rolls the files, processes and memory of a session's sandbox back to a branch. The sandbox keeps its id.
        The session loses the processes that it has started with pty_exec_start."""
        await _inner(session).rollback(to)

    async def fork(self, session: SandboxSession, n: int = 1) -> list[SandboxSession]:
        """Returns n sessions that continue from the current state of a session. They are not started yet."""
        inner = _inner(session)
        ids = [uuid.uuid4() for _ in range(n)]
        made = await inner.sandbox.fork(n, ttl=inner.state.options.ttl, idle_timeout=inner.state.options.idle_timeout)
        try:
            for id, sandbox in zip(ids, made):
                await sandbox.set_labels({LABEL: str(id)})
        except BaseException:
            await made.kill()
            raise
        sessions = []
        for id, sandbox in zip(ids, made):
            update = {"session_id": id, "sandbox_id": sandbox.id, "snapshot_fingerprint": None}
            update["snapshot"] = resolve_snapshot(ForkdSnapshotSpec(), str(id))
            child = ForkdSandboxSession(inner.state.model_copy(update=update, deep=True), sandbox)
            child._set_start_state_preserved(True)
            sessions.append(self._wrap_session(child, instrumentation=self._instrumentation))
        return sessions

    # The interface of the framework.

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ForkdSandboxClientOptions,
    ) -> SandboxSession:
        """Forks a sandbox for a new session."""
        manifest = manifest if manifest is not None else Manifest()
        self._validate_manifest_for_create(manifest)
        _without_mounts(manifest)
        id = uuid.uuid4()
        resolved = resolve_snapshot(snapshot, str(id))
        sandbox = await _fork(self._daemon, options.tag, options, id)
        state = ForkdSandboxSessionState(
            session_id=id,
            manifest=manifest,
            snapshot=resolved,
            sandbox_id=sandbox.id,
            options=options,
            exposed_ports=options.exposed_ports,
        )
        return self._wrap_session(ForkdSandboxSession(state, sandbox), instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Continues a session in its sandbox. If the sandbox does not exist any more, it is forked again: from the
        branch that the session has saved, or else from the snapshot of the options."""
        if not isinstance(state, ForkdSandboxSessionState):
            raise TypeError("ForkdSandboxClient.resume expects a ForkdSandboxSessionState")
        state.assert_path_grants_rebound()
        _without_mounts(state.manifest)
        try:
            sandbox = await AsyncSandbox.connect(state.sandbox_id, client=self._daemon)
            if sandbox._info.state in ("suspended", "paused"):
                await sandbox.resume()
            exists = sandbox._info.state == "running"
        except SandboxNotFoundError:
            exists = False
        preserved, restored = True, None
        if not exists:
            restored = await self._saved(state.snapshot)
            preserved = restored is not None
            sandbox = await _fork(self._daemon, restored or state.options.tag, state.options, state.session_id)
            state.sandbox_id = sandbox.id
            state.workspace_root_ready = preserved and state.workspace_root_ready
        inner = ForkdSandboxSession(state, sandbox, restored)
        inner._set_start_state_preserved(preserved)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def _saved(self, snapshot: SnapshotBase) -> str | None:
        """The branch that a snapshot refers to; None if it has an archive, or nothing."""
        dependencies = self._resolve_dependencies()
        try:
            if not await snapshot.restorable(dependencies=dependencies):
                return None
            data = await snapshot.restore(dependencies=dependencies)
            try:
                return _tag_of(data.read(MAX_REFERENCE))
            finally:
                data.close()
        finally:
            if dependencies is not None:
                await dependencies.aclose()

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Kills the sandbox, unless shutdown has suspended it. A saved branch stays, so that resume can use it."""
        inner = _inner(session)
        if inner.state.options.on_exit == "kill":
            await inner.sandbox.kill()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """The state in a payload of serialize_session_state."""
        return self._deserialize_session_state_payload(payload, ForkdSandboxSessionState)

    @property
    def _daemon(self) -> AsyncClient:
        return self._client or AsyncClient.default()


def _inner(session: SandboxSession) -> ForkdSandboxSession:
    inner = session._inner
    if not isinstance(inner, ForkdSandboxSession):
        raise InvalidArgumentError("session: want one that a ForkdSandboxClient has made", field="session")
    return inner


async def _fork(client: AsyncClient, tag: str, options: ForkdSandboxClientOptions, session: uuid.UUID) -> AsyncSandbox:
    return await AsyncSandbox.create(
        tag,
        client=client,
        labels={LABEL: str(session)},
        network=options.network,
        ttl=options.ttl,
        idle_timeout=options.idle_timeout,
    )


def _as_user(argv: list[str], default: str | None) -> tuple[list[str], str | None]:
    """The command and the user of an argv that the framework may have begun with sudo."""
    if len(argv) > 4 and argv[:2] == ["sudo", "-u"] and argv[3] == "--":
        return argv[4:], argv[2]
    return argv, default


def _transport(command: tuple[str | Path, ...], e: ForkdError) -> ExecTransportError:
    return ExecTransportError(command=command, context={"provider_error": str(e), "code": e.code}, cause=e)


def _without_mounts(manifest: Manifest) -> None:
    if targets := manifest.mount_targets():
        raise MountConfigError(
            message=f"manifest: {targets[0][1]}: forkd's client supports no mounts: attach a volume to the sandbox",
            context={"error_code": ErrorCode.MOUNT_CONFIG_INVALID.value},
        )


def _reference(tag: str) -> bytes:
    return _REFERENCE + json.dumps({"tag": tag}).encode()


def _tag_of(data: bytes | str) -> str | None:
    """The branch in a saved workspace; None if it is an archive."""
    raw = data.encode() if isinstance(data, str) else bytes(data)
    if not raw.startswith(_REFERENCE):
        return None
    try:
        body = json.loads(raw[len(_REFERENCE) :])
    except ValueError:
        body = None
    if not isinstance(body, Mapping) or not isinstance(body.get("tag"), str) or not body["tag"]:
        raise InvalidArgumentError("the saved workspace has an unreadable reference to a branch", field="snapshot")
    return str(body["tag"])
