# Made from _async/_workspace.py by tools/unasync.py. Do not edit.
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
    from ._client import Client
    from ._sandbox import Sandbox
    from ._settings import NetworkPolicy


class Workspace:
    """A sandbox with a name, which survives suspensions."""

    client: Client
    name: str
    details: WorkspaceInfo
    """The daemon's latest answer."""

    def __init__(self, client: Client, info: WorkspaceInfo) -> None:
        self.client, self.details = client, info
        self.name = info.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.status}>"

    @property
    def status(self) -> str:
        """running, suspended or stale, as of the latest call."""
        return self.details.status

    def info(self) -> WorkspaceInfo:
        """The daemon's current information about the workspace."""
        self.details = (self.client.workspaces.get(self.name)).details
        return self.details

    def sandbox(self) -> Sandbox:
        """The workspace's sandbox. A suspended workspace has none and must be resumed first."""
        from ._sandbox import Sandbox

        if not (id := (self.info()).live_sandbox_id):
            raise ForkdError(
                f"workspace {self.name} is {self.status} and has no sandbox",
                code="sandbox_state",
                fix="call resume first",
            )
        return Sandbox.connect(id, client=self.client)

    def suspend(self) -> WorkspaceInfo:
        """Saves the workspace's sandbox to disk and frees its memory."""
        self.details = (self.client.workspaces.suspend(self.name)).details
        return self.details

    def resume(self) -> WorkspaceInfo:
        """Restores the workspace's sandbox."""
        self.details = (self.client.workspaces.resume(self.name)).details
        return self.details

    def delete(self) -> bool:
        """Removes the workspace and its sandbox. Returns False if it no longer existed."""
        return self.client.workspaces.delete(self.name)


class Workspaces:
    """The workspaces of a daemon."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _call(self, method: str, name: str, rest: str = "", json: Any = None) -> Workspace:
        path = f"/v1/workspaces/{quote(_args.name('name', name), safe='')}{rest}"
        answer = self._client._transport.call(method, path, json)
        return Workspace(self._client, WorkspaceInfo.from_json(answer.json()))

    def create(
        self,
        name: str,
        snapshot: str,
        *,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        network: NetworkPolicy | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        idle_timeout: float | None = None,
    ) -> Workspace:
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
        answer = self._client._transport.call("POST", "/v1/workspaces", body, once=True)
        return Workspace(self._client, WorkspaceInfo.from_json(answer.json()))

    def list(self) -> List[Workspace]:
        """All workspaces, by name."""
        answer = self._client._transport.call("GET", "/v1/workspaces")
        return [Workspace(self._client, WorkspaceInfo.from_json(w)) for w in answer.json()]

    def get(self, name: str) -> Workspace:
        """The workspace with a name. Raises WorkspaceNotFoundError if it does not exist."""
        return self._call("GET", name)

    def suspend(self, name: str) -> Workspace:
        """Saves the sandbox of a workspace to disk and frees its memory."""
        return self._call("POST", name, "/suspend", {})

    def resume(self, name: str) -> Workspace:
        """Restores the sandbox of a workspace."""
        return self._call("POST", name, "/resume", {})

    def delete(self, name: str) -> bool:
        """Removes a workspace and its sandbox. Returns False if it no longer existed."""
        try:
            self._client._transport.call("DELETE", f"/v1/workspaces/{quote(_args.name('name', name), safe='')}")
        except WorkspaceNotFoundError:
            return False
        return True
