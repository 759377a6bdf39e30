"""Sandboxes for Inspect AI (pip install 'forkd[inspect]'), which finds this module by its entry point:

    config = ForkdConfig(snapshot="python-numpy", network="none")
    Task(dataset, solver=solver, scorer=scorer, sandbox=("forkd", "python-numpy"))
    Task(dataset, solver=solver, scorer=scorer, sandbox=SandboxEnvironmentSpec("forkd", config))

Each sample of each epoch runs in a sandbox of its own, forked from the snapshot. If the snapshot is a branch of a
prepared sandbox, all of them start with the files, processes and memory of that sandbox.

A solver or a scorer can branch, roll back and fork its sandbox:

    machine = sandbox().as_type(ForkdSandboxEnvironment)
    before = await machine.branch()
    ...
    await machine.rollback(before)
"""

from __future__ import annotations

import hashlib
import posixpath
import shlex
import uuid
from contextlib import suppress
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)
from pydantic import BaseModel

from .._async._sandbox import AsyncSandbox
from .._async._snapshot import AsyncSnapshot
from .._codes import BadRequestError
from .._errors import ForkdError, InputClosedError, InvalidArgumentError
from ._capture import Capture

LABEL = "inspect-run"
"""The label of all sandboxes of samples. Its value names the process that runs the task, and the task."""

# The file API of a sandbox acts as root, so commands of the user read and write files. They exit with a key of
# _PROBLEMS. A write has all of its content before it changes the file.
_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 22
[ -f "$1" ] && [ -r "$1" ] || exit 23
exec cat -- "$1"
"""
_WRITE = """
[ -d "$1" ] && exit 21
if [ -e "$1" ]; then
    [ -f "$1" ] && [ -w "$1" ] || exit 23
else
    mkdir -p -- "${1%/*}/" && [ -w "${1%/*}/" ] || exit 23
fi
all=$(mktemp) || exit 1
trap 'rm -f -- "$all"' EXIT
cat >"$all" && [ "$(wc -c <"$all")" -eq "$2" ] && cat -- "$all" >"$1"
"""
_MESSAGE = 64 << 10  # bytes of an error
_FILE_TIME = 600  # seconds that reading or writing a file may take
_PROBLEMS: dict[int, tuple[type[OSError], str]] = {
    21: (IsADirectoryError, "is a directory"),
    22: (FileNotFoundError, "no such file"),
    23: (PermissionError, "permission denied"),
}


class ForkdConfig(BaseModel, frozen=True):
    """The configuration of a sample's sandbox. Instead of a ForkdConfig, a string names only the snapshot."""

    snapshot: str
    """The tag of the snapshot that samples are forked from."""
    user: str | None = None
    """The user that commands run as by default; None: the snapshot's own user."""
    working_dir: str | None = None
    """The directory of relative paths, which is created if it is missing; None: the directory in which commands
    start."""
    env: dict[str, str] = {}
    """Environment variables of all commands."""
    network: str | dict[str, Any] | None = None
    """A mode such as "none", or the fields of a network policy; None: the snapshot's own policy."""
    limits: dict[str, Any] | None = None
    """Limits on memory, CPU and disk."""
    ttl: float | None = None
    """Seconds after which the daemon deletes a sandbox that still exists."""

    def __hash__(self) -> int:  # Inspect groups samples by their configuration
        return hash(self.model_dump_json())


@sandboxenv(name="forkd")
class ForkdSandboxEnvironment(SandboxEnvironment):
    """The sandbox of a sample. sandbox().as_type(ForkdSandboxEnvironment) returns it."""

    def __init__(self, sandbox: AsyncSandbox, working_dir: str, user: str | None = None) -> None:
        super().__init__()
        self.sandbox: AsyncSandbox = sandbox
        self.working_dir: str = working_dir
        self.user: str | None = user

    # Methods that only forkd's environment has.

    async def branch(self, tag: str | None = None) -> AsyncSnapshot:
        """Saves the running sandbox, with its memory, as a snapshot."""
        return (await self.sandbox.branch(tag=tag))[0]

    async def rollback(self, to: str | AsyncSnapshot) -> None:
        """Rolls the files, processes and memory of the sandbox back to a branch. The sandbox keeps its id."""
        await self.sandbox.rollback(to)

    async def fork(self, n: int = 1) -> list[ForkdSandboxEnvironment]:
        """Returns n environments that continue from the current state, for example to score attempts without changing
        this environment. The caller kills their sandboxes. Those that remain are killed at the end of the task."""
        children = await self.sandbox.fork(n, labels=self.sandbox.labels)
        return [ForkdSandboxEnvironment(s, self.working_dir, self.user) for s in children]

    # The interface of Inspect AI.

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command. A command that times out is not retried. The command is killed if this call is cancelled, or
        if its output is above the limit."""
        try:
            handle = await self.sandbox.commands.start(
                cmd,
                stdin=input is not None,
                env=env,
                cwd=self._path(cwd or ""),
                user=user or self.user,
                timeout=timeout,
                text=False,
            )
        except BadRequestError as e:  # a user or a directory that the sandbox lacks, or too long arguments
            return ExecResult(False, 126, "", str(e))
        except ForkdError as e:
            raise SandboxUnavailableError(str(e)) from e
        async with handle:
            if input is not None:
                with suppress(InputClosedError):
                    await handle.write(input)
                    await handle.close_stdin()
            out, err = _capture(), _capture()
            result = await handle.wait(out, err)
        if result.timed_out:
            raise TimeoutError(f"{cmd[0]} did not end within {timeout} seconds")
        if result.outcome == "not_executable":
            raise PermissionError(f"{cmd[0]}: {result.error}")
        return ExecResult(
            result.ok, result.exit_code, out.text, result.error if result.outcome == "not_found" else err.text
        )

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Replaces the content of a file when all of it has arrived, and makes the file's directories."""
        data = contents.encode("utf-8") if isinstance(contents, str) else contents
        await self._file(_WRITE, self._path(file), str(len(data)), content=data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """The content of a file."""
        data = await self._file(_READ, self._path(file))
        return data.decode("utf-8") if text else data

    def _path(self, path: str) -> str:
        return posixpath.join(self.working_dir, path)

    async def _file(self, program: str, path: str, *args: str, content: bytes | None = None) -> bytes:
        """Runs a program that reads or writes a file. Returns what it prints, within the limit of a file."""
        handle = await self.sandbox.commands.start(
            ["/bin/sh", "-c", program, "sh", path, *args],
            stdin=False if content is None else content,
            user=self.user,
            timeout=_FILE_TIME,
            text=False,
        )
        limit, name = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
        out, err = Capture(limit, lambda _: OutputLimitExceededError(name, None)), Capture(_MESSAGE)
        async with handle:
            result = await handle.wait(out, err)
        if result.timed_out:
            raise TimeoutError(f"{path}: the sandbox did not answer within {_FILE_TIME} seconds")
        if not result.ok:
            kind, text = _PROBLEMS.get(result.exit_code, (OSError, err.text.strip() or result.error))
            raise kind(f"{path}: {text}")
        return out.data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """The command that opens a shell in the sandbox."""
        if not await self.sandbox.is_running():
            raise ConnectionError(f"the sandbox {self.sandbox.id} is not running")
        who = user or self.user
        command = shlex.join(["forkd", "shell", *(["--user", who] if who else []), self.sandbox.id])
        return SandboxConnection(type="forkd", command=command, container=self.sandbox.id)

    # The life of sandboxes.

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Forks the sandbox of a sample."""
        made = _config(config)
        sandbox = await AsyncSandbox.create(
            made.snapshot,
            labels={LABEL: _run(task_name)},
            env=made.env,
            network=made.network,
            limits=made.limits,
            ttl=made.ttl,
        )
        try:
            enter = 'mkdir -p -- "$1" && cd -- "$1" && pwd -P' if made.working_dir else "pwd -P"
            where = await sandbox.commands.run(
                ["/bin/sh", "-c", enter, "sh", made.working_dir or ""], user=made.user, timeout=60, check=True
            )
        except BaseException:
            await sandbox.kill()
            raise
        return {"default": cls(sandbox, where.stdout.removesuffix("\n"), made.user)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Kills the sandboxes of a sample that was not interrupted; task_cleanup kills the others."""
        if not interrupted:
            for environment in environments.values():
                await environment.as_type(ForkdSandboxEnvironment).sandbox.kill()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        """Kills the sandboxes of the task that remain."""
        if cleanup:
            await _kill(_run(task_name))

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Kills one sandbox, or all sandboxes of samples: `inspect sandbox cleanup forkd`."""
        if id is not None:
            await (await AsyncSandbox.connect(id)).kill()
        else:
            await _kill(None)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """The configuration from a log file."""
        return ForkdConfig(**config)


def _capture() -> Capture:
    limit, name = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
    return Capture(limit, lambda text: OutputLimitExceededError(name, text))


_PROCESS = uuid.uuid4().hex[:12]


def _run(task_name: str) -> str:
    return f"{_PROCESS}-{hashlib.sha256(task_name.encode()).hexdigest()[:12]}"


def _config(config: SandboxEnvironmentConfigType | None) -> ForkdConfig:
    if isinstance(config, str) and config:
        return ForkdConfig(snapshot=config)
    if isinstance(config, ForkdConfig):
        return config
    raise InvalidArgumentError(
        f'sandbox: {config!r}: want the tag of a snapshot, as in sandbox=("forkd", "python-numpy"), or a ForkdConfig',
        field="sandbox",
    )


async def _kill(run: str | None) -> None:
    for sandbox in await AsyncSandbox.list({LABEL: run}):
        await sandbox.kill()
