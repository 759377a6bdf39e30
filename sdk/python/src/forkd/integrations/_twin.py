"""The async form of a sandbox, for frameworks that call the same object from threads and from event loops."""

from __future__ import annotations

from .._async._client import AsyncClient
from .._async._sandbox import AsyncSandbox
from .._sync._sandbox import Sandbox


def async_twin(sandbox: Sandbox) -> AsyncSandbox:
    """Returns the same sandbox as an AsyncSandbox. A connection belongs to the event loop that uses it, and is closed
    when that loop is closed."""
    transport = sandbox.client._transport
    client = object.__new__(AsyncClient)
    client._set(transport.address, transport.timeout, transport.retries)
    return AsyncSandbox._of(client, sandbox._info)
