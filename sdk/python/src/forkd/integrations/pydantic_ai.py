"""Sandboxes as workspaces of Pydantic AI (pip install 'forkd[pydantic-ai]'):

    from forkd.integrations.pydantic_ai import ForkdWorkspace
    from pydantic_ai import Agent

    agent = Agent(model, toolsets=[...])
    workspace = ForkdWorkspace("python-numpy")
    await agent.run("fix the test", workspace=workspace)
    before = await workspace.branch()
    attempts = await workspace.fork(3)           # workspaces that continue from this state
    await workspace.rollback(before)
    await workspace.kill()

The workspace forks its sandbox when it is first used. Another process can use the same sandbox by the workspace's ref.
Pydantic AI reads and writes files with commands, so the permissions of the user apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic_ai.workspaces import (
    CommandResult,
    SupportsCommands,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.protocol import validate_timeout

from .._async._client import AsyncClient
from .._async._sandbox import AsyncSandbox
from .._async._snapshot import AsyncSnapshot
from .._codes import SandboxNotFoundError
from .._errors import ForkdError, InvalidArgumentError
from ._capture import Capture

PROVIDER = "forkd"
MAX_OUTPUT = 10 << 20  # bytes; a command that writes more to stdout or to stderr is killed


class ForkdWorkspace(WorkspaceBackend, SupportsCommands):
    """A workspace that uses a sandbox. The holder of its ref kills the sandbox."""

    def __init__(
        self,
        snapshot: str | None = None,
        *,
        ref: WorkspaceRef | None = None,
        client: AsyncClient | None = None,
        user: str | None = None,
        working_dir: str | None = None,
        **options: Any,
    ) -> None:
        """Either forks a sandbox from snapshot, with the options of AsyncSandbox.create, or uses the sandbox of ref.
        Commands run as user; the default is the sandbox's own user. They start in working_dir, which is created if it
        is missing; the default is the directory in which commands of the sandbox start."""
        if (snapshot is None) == (ref is None):
            raise InvalidArgumentError("snapshot: give either a snapshot or a ref", field="snapshot")
        if ref is not None and (ref.provider != PROVIDER or options):
            raise InvalidArgumentError(f"ref: {ref}: want one of this provider, and no options", field="ref")
        self._snapshot, self._ref, self._client, self._options = snapshot, ref, client, options
        self._user, self._working_dir = user, working_dir
        self._entered: tuple[AsyncSandbox, str] | None = None
        self._entering: asyncio.Task[tuple[AsyncSandbox, str]] | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        """The identity of the sandbox; None before it is made."""
        return self._ref

    # Methods that only forkd's workspace has.

    async def sandbox(self) -> AsyncSandbox:
        """The sandbox, for all other operations."""
        return (await self._enter())[0]

    async def branch(self, tag: str | None = None) -> AsyncSnapshot:
        """Saves the running sandbox, with its memory, as a snapshot."""
        return (await (await self.sandbox()).branch(tag=tag))[0]

    async def rollback(self, to: str | AsyncSnapshot) -> None:
        """Rolls the files, processes and memory of the sandbox back to a branch. The sandbox keeps its id."""
        await (await self.sandbox()).rollback(to)

    async def fork(self, n: int = 1) -> list[ForkdWorkspace]:
        """Returns n workspaces that continue from the current state."""
        sandbox, where = await self._enter()
        refs = [WorkspaceRef(provider=PROVIDER, id=s.id) for s in await sandbox.fork(n)]
        return [ForkdWorkspace(ref=r, client=self._client, user=self._user, working_dir=where) for r in refs]

    async def kill(self) -> None:
        """Kills the sandbox, if it exists."""
        if self._ref is not None:
            with suppress(WorkspaceUnavailableError):
                await (await self.sandbox()).kill()

    # The interface of Pydantic AI.

    async def working_dir(self) -> str:
        """The directory in which commands start."""
        return (await self._enter())[1]

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Runs a command to its end. Cancelling this call kills the command."""
        validate_timeout(timeout)
        if isinstance(command, str) != shell:
            raise TypeError("command: a string needs shell=True, and an argv needs shell=False")
        sandbox, where = await self._enter()
        out, err = (Capture(MAX_OUTPUT, _exceeded) for _ in range(2))
        try:
            handle = await sandbox.commands.start(
                command, env=env, cwd=where, user=self._user, timeout=timeout, text=False
            )
            async with handle:
                result = await handle.wait(out, err)
            if result.outcome == "signaled":
                await sandbox.info()  # raises an error if the command ended because the machine did
        except ForkdError as e:
            raise await _unavailable(sandbox, e) from e
        if result.timed_out:
            raise WorkspaceTimeoutError(
                f"the command did not end within {timeout} seconds", stdout=out.text, stderr=err.text
            )
        text = err.text if result.outcome in ("exited", "signaled") else result.error or ""
        return CommandResult(exit_code=result.exit_code, stdout=out.text, stderr=text)

    async def _enter(self) -> tuple[AsyncSandbox, str]:
        """The sandbox and its working directory. Concurrent first calls fork only one sandbox. If such a call is
        cancelled, the fork continues, and the ref is set."""
        if self._entered is None:
            if self._entering is None:
                self._entering = asyncio.create_task(self._make())
                self._entering.add_done_callback(self._made)
            return await asyncio.shield(self._entering)
        return self._entered

    def _made(self, task: asyncio.Task[tuple[AsyncSandbox, str]]) -> None:
        self._entering = None  # if it has failed, the next call tries again
        if not task.cancelled() and task.exception() is None:
            self._entered = task.result()

    async def _make(self) -> tuple[AsyncSandbox, str]:
        try:
            if self._ref is None:
                assert self._snapshot is not None
                sandbox = await AsyncSandbox.create(self._snapshot, client=self._client, **self._options)
                self._ref = WorkspaceRef(provider=PROVIDER, id=sandbox.id)
            else:
                sandbox = await AsyncSandbox.connect(self._ref.id, client=self._client)
        except SandboxNotFoundError as e:
            raise WorkspaceUnavailableError(str(e)) from e
        enter = 'mkdir -p -- "$1" && cd -- "$1" && pwd -P' if self._working_dir else "pwd -P"
        where = await sandbox.commands.run(
            ["/bin/sh", "-c", enter, "sh", self._working_dir or ""], user=self._user, timeout=60, check=True
        )
        return sandbox, where.stdout.removesuffix("\n")


def _exceeded(text: str) -> Exception:
    return WorkspaceOutputLimitError(f"the command wrote more than {MAX_OUTPUT} bytes", limit=MAX_OUTPUT, stdout=text)


async def _unavailable(sandbox: AsyncSandbox, e: ForkdError) -> Exception:
    """The error to raise if a command failed with e. If the sandbox does not exist any more, it is the error that
    Pydantic AI has for this case."""
    try:
        gone = (await sandbox.info()).state in ("exited", "stopping")
    except SandboxNotFoundError:
        gone = True
    except ForkdError:
        gone = False
    return WorkspaceUnavailableError(f"{sandbox.id}: {e}") if gone else e
