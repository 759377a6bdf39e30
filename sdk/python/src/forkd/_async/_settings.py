"""The network policy, the limits and the hooks of a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _args
from .._wire import Hooks, Limits, Network, SandboxLimits, SandboxNetwork

if TYPE_CHECKING:
    from ._sandbox import AsyncSandbox

NetworkPolicy = Network | str | Mapping[str, Any]
"""A policy, or only a mode: none, public, allow or open."""


class AsyncNetworkOf:
    """The network policy of a sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def get(self) -> SandboxNetwork:
        """The policy, and statistics of the sandbox's connections."""
        return SandboxNetwork.from_json((await self._sandbox._call("GET", "/network")).json())

    async def set(self, policy: NetworkPolicy | None = None, /, **fields: Any) -> SandboxNetwork:
        """Replaces the policy: set("none"), set(Network(…)), or by its fields: set(mode="allow",
        allow=["pypi.org"]). The policy applies when this call returns. Connections that it denies are reset."""
        if (policy is None) == (not fields):
            raise _args.wrong("policy", policy, "a mode, a Network, or its fields by name")
        if unknown := set(fields) - set(Network.__dataclass_fields__):
            raise _args.wrong(
                min(unknown), fields[min(unknown)], "one of the fields " + ", ".join(Network.__dataclass_fields__)
            )
        body = _args.network(fields if policy is None else policy)
        return SandboxNetwork.from_json((await self._sandbox._call("PUT", "/network", body)).json())


class AsyncLimitsOf:
    """Limits on the host resources of a sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def get(self) -> SandboxLimits:
        """The limits, and the current use."""
        return SandboxLimits.from_json((await self._sandbox._call("GET", "/limits")).json())

    async def set(self, limits: Limits | None = None, /, **fields: Any) -> SandboxLimits:
        """Replaces the limits: set(Limits(…)), or by fields: set(memory_mib=512, cpus=0.5). Omitted limits
        are removed."""
        if unknown := set(fields) - set(Limits.__dataclass_fields__):
            raise _args.wrong(
                min(unknown), fields[min(unknown)], "one of the fields " + ", ".join(Limits.__dataclass_fields__)
            )
        body = _args.message("limits", fields if limits is None else limits)
        return SandboxLimits.from_json((await self._sandbox._call("PUT", "/limits", body)).json())


class AsyncHooksOf:
    """Commands that the daemon runs in a sandbox before or after some operations. docs/hooks.md describes
    them."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def get(self) -> Hooks:
        """The hooks."""
        return Hooks.from_json((await self._sandbox._call("GET", "/hooks")).json())

    async def set(self, hooks: Hooks | None = None, /, **fields: Any) -> Hooks:
        """Replaces the hooks: set(Hooks(…)), or by fields: set(before_branch={"args": ["sync"]}). Omitted
        hooks are removed."""
        if unknown := set(fields) - set(Hooks.__dataclass_fields__):
            raise _args.wrong(
                min(unknown), fields[min(unknown)], "one of the fields " + ", ".join(Hooks.__dataclass_fields__)
            )
        body = _args.message("hooks", fields if hooks is None else hooks)
        return Hooks.from_json((await self._sandbox._call("PUT", "/hooks", body)).json())
