"""A sandbox backend for LangChain's deepagents (pip install 'forkd[deepagents]'):

    from deepagents import create_deep_agent
    from forkd import Sandbox
    from forkd.integrations.deepagents import ForkdSandbox

    with Sandbox.create("python-numpy") as sandbox:
        agent = create_deep_agent(backend=ForkdSandbox(sandbox))

The image needs python3, with which deepagents reads, edits and finds files. A ForkdSaver as checkpointer also rolls the
machine back when the conversation goes back to a checkpoint:

    saver = ForkdSaver(InMemorySaver(), sandbox)       # of forkd.integrations.langgraph
    agent = create_deep_agent(backend=ForkdSandbox(sandbox, saver=saver), checkpointer=saver)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langgraph.config import get_config

from .._codes import BadRequestError, DeniedInSandboxError, NotFoundInSandboxError
from .._errors import ForkdError, InvalidArgumentError
from .._output import BytesResult
from .._sync._sandbox import Sandbox
from .._sync._snapshot import Snapshot
from ._capture import MERGED, Capture
from ._twin import async_twin

if TYPE_CHECKING:
    from .langgraph import ForkdSaver

LONGEST = 3600  # seconds that a command may take
SHELL = (*MERGED, "/bin/sh", "-c")
MAX_OUTPUT = 16 << 20  # bytes of a command's output that a response has
MAX_DOWNLOAD = 1 << 30  # bytes of all files of a call
_TOO_MUCH = "the files of this call are too large together: read fewer files, or parts of them by commands"


class ForkdSandbox(BaseSandbox):
    """A backend that uses a sandbox. The owner of the sandbox kills it; the backend holds no resources of its own."""

    enable_capture_offload = True  # images have a POSIX shell and coreutils

    def __init__(
        self, sandbox: Sandbox, *, timeout: int = 1800, user: str | None = None, saver: ForkdSaver | None = None
    ) -> None:
        """timeout is the limit in seconds for commands that have none. Commands run as user, which also owns new files;
        the default is the sandbox's own user. saver is the checkpointer of the agent, if it saves this sandbox.
        Commands and uploads then wait until the latest checkpoint has been saved."""
        self.sandbox = sandbox
        self._async = async_twin(sandbox)
        self._timeout, self._user, self._saver = timeout, user, saver

    def _arrive(self) -> None:
        if self._saver is not None:
            self._saver.sandbox(get_config())

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self.sandbox.id

    # Methods that only forkd's backend has.

    def branch(self, tag: str | None = None) -> Snapshot:
        """Saves the running sandbox, with its memory, as a snapshot."""
        return self.sandbox.branch(tag=tag)[0]

    def rollback(self, to: str | Snapshot) -> None:
        """Rolls the files, processes and memory of the sandbox back to a branch. The sandbox keeps its id."""
        self.sandbox.rollback(to)

    def fork(self, n: int = 1) -> list[ForkdSandbox]:
        """Returns n backends that continue from the sandbox's current state. The caller kills their sandboxes."""
        return [ForkdSandbox(s, timeout=self._timeout, user=self._user) for s in self.sandbox.fork(n)]

    # The interface of deepagents.

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell command. A timeout of 0 is the longest one, an hour."""
        self._arrive()
        seconds, output = self._seconds(timeout), Capture(MAX_OUTPUT)
        result = self.sandbox.commands.run(
            [*SHELL, command], user=self._user, timeout=seconds, text=False, on_stdout=output
        )
        return _response(output, result, seconds)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell command. Cancelling this call kills the command."""
        await asyncio.to_thread(self._arrive)
        seconds, output = self._seconds(timeout), Capture(MAX_OUTPUT)
        result = await self._async.commands.run(
            [*SHELL, command], user=self._user, timeout=seconds, text=False, on_stdout=output
        )
        return _response(output, result, seconds)

    def _seconds(self, timeout: int | None) -> int:
        if timeout is not None and timeout < 0:
            raise InvalidArgumentError(f"timeout: {timeout}: want at least 0", field="timeout")
        return min((self._timeout if timeout is None else timeout) or LONGEST, LONGEST)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files and their parent directories. Each response has the error of its file."""
        self._arrive()
        responses = []
        for path, content in files:
            error = _wrong(path)
            if error is None:
                try:
                    self.sandbox.files.write(path, content, user=self._user)
                except BadRequestError:
                    error = "is_directory" if self._is_directory(path) else "invalid_path"
                except ForkdError as e:
                    error = _problem(e)
            responses.append(FileUploadResponse(path, error))
        return responses

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files, together at most 1 GiB. Each response has the content of its file, or its error."""
        responses, room = [], MAX_DOWNLOAD
        for path in paths:
            content, error = None, _wrong(path)
            if error is None:
                try:
                    content = self.sandbox.files._read(path, self._user, room)
                    room -= len(content)
                except BadRequestError:
                    error = "is_directory" if self._is_directory(path) else "invalid_path"
                except ForkdError as e:
                    error = _TOO_MUCH if e.code == "bad_answer" else _problem(e)
            responses.append(FileDownloadResponse(path, content, error))
        return responses

    def _is_directory(self, path: str) -> bool:
        try:
            return self.sandbox.files.stat(path, user=self._user).type == "directory"
        except ForkdError:
            return False


def _response(output: Capture, result: BytesResult, seconds: int) -> ExecuteResponse:
    text = output.text
    if result.timed_out:
        text += f"\nError: Command timed out after {seconds} seconds."
    return ExecuteResponse(text or result.error or "", result.exit_code, output.truncated)


def _wrong(path: str) -> str | None:
    return None if path.startswith("/") and "\0" not in path else "invalid_path"


def _problem(e: ForkdError) -> str:
    """The error of a file: deepagents' word for it if there is one, otherwise the text of e."""
    if isinstance(e, NotFoundInSandboxError):
        return "file_not_found"
    return "permission_denied" if isinstance(e, DeniedInSandboxError) else str(e)
