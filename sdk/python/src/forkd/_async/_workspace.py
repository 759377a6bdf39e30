"""Workspaces."""

from __future__ import annotations

from builtins import list as List
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import _args
from .._codes import WorkspaceNotFoundError
from .._errors import ForkdError
from .._wire import Limits, WorkspaceInfo

if TYPE_CHECKING:
    from ._client import AsyncClient
    from ._sandbox import AsyncSandbox
    from ._settings import NetworkPolicy


class AsyncWorkspace:
    """A sandbox with a name, which survives suspensions."""

    client: AsyncClient
    name: str
    details: WorkspaceInfo
    """The daemon's latest answer."""

    def __init__(self, client: AsyncClient, info: WorkspaceInfo) -> None:
        self.client, self.details = client, info
        self.name = info.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.status}>"

    @property
    def status(self) -> str:
        """running, suspended or stale, as of the latest call."""
        return self.details.status

    async def info(self) -> WorkspaceInfo:
        """The daemon's current information about the workspace."""
        self.details = (await self.client.workspaces.get(self.name)).details
        return self.details

    async def sandbox(self) -> AsyncSandbox:
        """The workspace's sandbox. A suspended workspace has none and must be resumed first."""
        from ._sandbox import AsyncSandbox

        if not (id := (await self.info()).live_sandbox_id):
            raise ForkdError(
                f"workspace {self.name} is {self.status} and has no sandbox",
                code="sandbox_state",
                fix="call resume first",
            )
        return await AsyncSandbox.connect(id, client=self.client)

    async def suspend(self) -> WorkspaceInfo:
        """Saves the workspace's sandbox to disk and frees its memory."""
        self.details = (await self.client.workspaces.suspend(self.name)).details
        return self.details

    async def resume(self) -> WorkspaceInfo:
        """Restores the workspace's sandbox."""
        self.details = (await self.client.workspaces.resume(self.name)).details
        return self.details

    async def delete(self) -> bool:
        """Removes the workspace and its sandbox. Returns False if it no longer existed."""
        return await self.client.workspaces.delete(self.name)


class AsyncWorkspaces:
    """The workspaces of a daemon."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _call(self, method: str, name: str, rest: str = "", json: Any = None) -> AsyncWorkspace:
        path = f"/v1/workspaces/{quote(_args.name('name', name), safe='')}{rest}"
        answer = await self._client._transport.call(method, path, json)
        return AsyncWorkspace(self._client, WorkspaceInfo.from_json(answer.json()))

    async def create(
        self,
        name: str,
        snapshot: str,
        *,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        network: NetworkPolicy | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        idle_timeout: float | None = None,
    ) -> AsyncWorkspace:
        """Starts a sandbox with a name. Raises WorkspaceExistsError if the name is in use."""
        body = _args.given(
            name=_args.name("name", name),
            snapshot_tag=_args.name("snapshot", snapshot),
            labels=_args.strings("labels", labels),
            env=_args.env(env),
            network=_args.network(network),
            limits=_args.message("limits", limits),
            idle_timeout_secs=_args.seconds("idle_timeout", idle_timeout, zero=True),
        )
        answer = await self._client._transport.call("POST", "/v1/workspaces", body, once=True)
        return AsyncWorkspace(self._client, WorkspaceInfo.from_json(answer.json()))

    async def list(self) -> List[AsyncWorkspace]:
        """All workspaces, by name."""
        answer = await self._client._transport.call("GET", "/v1/workspaces")
        return [AsyncWorkspace(self._client, WorkspaceInfo.from_json(w)) for w in answer.json()]

    async def get(self, name: str) -> AsyncWorkspace:
        """The workspace with a name. Raises WorkspaceNotFoundError if it does not exist."""
        return await self._call("GET", name)

    async def suspend(self, name: str) -> AsyncWorkspace:
        """Saves the sandbox of a workspace to disk and frees its memory."""
        return await self._call("POST", name, "/suspend", {})

    async def resume(self, name: str) -> AsyncWorkspace:
        """Restores the sandbox of a workspace."""
        return await self._call("POST", name, "/resume", {})

    async def delete(self, name: str) -> bool:
        """Removes a workspace and its sandbox. Returns False if it no longer existed."""
        try:
            await self._client._transport.call("DELETE", f"/v1/workspaces/{quote(_args.name('name', name), safe='')}")
        except WorkspaceNotFoundError:
            return False
        return True
