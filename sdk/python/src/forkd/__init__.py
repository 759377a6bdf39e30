"""forkd: sandboxes that fork, branch and roll back while they run.

    from forkd import Sandbox

    with Sandbox.create("python-numpy") as sandbox:
        print(sandbox.commands.run(["uname", "-r"]).stdout)
        with sandbox.fork(8) as tries:
            ...

Client and AsyncClient call a daemon. Sandbox and AsyncSandbox are running sandboxes. Their methods make all
other objects. The messages of the API are in forkd.types, and a class for every error is in forkd.errors.
"""

from typing import TYPE_CHECKING, Any

from ._errors import (
    BuildFailed,
    CommandFailed,
    ConnectionFailedError,
    ForkdError,
    InvalidArgumentError,
    PartialForkError,
    StreamBrokenError,
)
from ._execution import Execution, ExecutionError, Result
from ._output import BytesResult, CommandResult, Output
from ._sync._best import Best, best_of
from ._sync._client import Client
from ._sync._commands import CommandHandle
from ._sync._sandbox import Sandbox, Sandboxes
from ._sync._snapshot import Snapshot
from ._sync._socket import PortConnection
from ._sync._try import Tries
from ._sync._workspace import Workspace
from ._tries import ChildResult
from ._version import VERSION as __version__
from ._wire import Hold, Hook, Hooks, Limits, Network, NetworkLimits, NetworkSecret

if TYPE_CHECKING:
    from ._async._best import AsyncBest
    from ._async._best import best_of as async_best_of
    from ._async._client import AsyncClient
    from ._async._commands import AsyncCommandHandle
    from ._async._sandbox import AsyncSandbox, AsyncSandboxes
    from ._async._snapshot import AsyncSnapshot
    from ._async._socket import AsyncPortConnection
    from ._async._try import AsyncTries
    from ._async._workspace import AsyncWorkspace
    from ._compat05 import BranchMode, Controller, ControllerError

# Loaded when they are first used, because programs without an event loop do not need them.
_LATER = {
    "AsyncBest": "_async._best",
    "AsyncClient": "_async._client",
    "AsyncCommandHandle": "_async._commands",
    "AsyncPortConnection": "_async._socket",
    "AsyncSandbox": "_async._sandbox",
    "AsyncSandboxes": "_async._sandbox",
    "AsyncSnapshot": "_async._snapshot",
    "AsyncTries": "_async._try",
    "AsyncWorkspace": "_async._workspace",
    "BranchMode": "_compat05",
    "Controller": "_compat05",
    "ControllerError": "_compat05",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "async_best_of":
        value = import_module("._async._best", __name__).best_of
    elif name in _LATER:
        value = getattr(import_module("." + _LATER[name], __name__), name)
    else:
        from ._e2b import MODULE

        if name in MODULE:  # `from forkd import …` would not show the text of an AttributeError
            raise ImportError(f"forkd has no {name}; here it is {MODULE[name]}", name=__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AsyncBest",
    "AsyncClient",
    "AsyncCommandHandle",
    "AsyncPortConnection",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncSnapshot",
    "AsyncTries",
    "AsyncWorkspace",
    "Best",
    "BranchMode",
    "BuildFailed",
    "BytesResult",
    "ChildResult",
    "Client",
    "CommandFailed",
    "CommandHandle",
    "CommandResult",
    "ConnectionFailedError",
    "Controller",
    "ControllerError",
    "Execution",
    "ExecutionError",
    "ForkdError",
    "InvalidArgumentError",
    "Hold",
    "Hook",
    "Hooks",
    "Limits",
    "Network",
    "NetworkLimits",
    "NetworkSecret",
    "Output",
    "PartialForkError",
    "PortConnection",
    "Result",
    "Sandbox",
    "Sandboxes",
    "Snapshot",
    "StreamBrokenError",
    "Tries",
    "Workspace",
    "__version__",
    "async_best_of",
    "best_of",
]
