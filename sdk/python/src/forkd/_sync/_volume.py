# Made from _async/_volume.py by tools/unasync.py. Do not edit.
"""Volumes."""

from __future__ import annotations

from builtins import list as List
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import _args
from .._codes import VolumeNotFoundError
from .._wire import VolumeInfo

if TYPE_CHECKING:
    from ._client import Client


class Volumes:
    """The volumes of a daemon: disks with names, which outlive the sandboxes that mount them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _call(self, method: str, name: str, rest: str = "", json: Any = None, **more: Any) -> VolumeInfo:
        path = f"/v1/volumes/{quote(_args.name('name', name), safe='')}{rest}"
        return VolumeInfo.from_json((self._client._transport.call(method, path, json, **more)).json())

    def create(
        self, name: str, *, size_mib: int | None = None, labels: Mapping[str, str] | None = None
    ) -> VolumeInfo:
        """Makes an empty volume of 16 MiB to 1 TiB, by default 1 GiB. Raises VolumeExistsError if the name is in
        use."""
        body = _args.given(
            name=_args.name("name", name),
            size_mib=None if size_mib is None else _args.whole("size_mib", size_mib, 16, 1 << 20),
            labels=_args.strings("labels", labels),
        )
        answer = self._client._transport.call("POST", "/v1/volumes", body, once=True)
        return VolumeInfo.from_json(answer.json())

    def list(self, labels: Mapping[str, str | None] | None = None) -> List[VolumeInfo]:
        """The volumes, by name. labels selects volumes as in Sandbox.list."""
        answer = self._client._transport.call("GET", "/v1/volumes", params=_args.label_filter(labels))
        return [VolumeInfo.from_json(v) for v in answer.json()]

    def get(self, name: str) -> VolumeInfo:
        """The volume with a name. Raises VolumeNotFoundError if it does not exist."""
        return self._call("GET", name)

    def snapshot(self, name: str, to: str, *, labels: Mapping[str, str] | None = None) -> VolumeInfo:
        """Makes a second volume, named by to, with the same data. No sandbox may be writing to the first volume."""
        body = _args.given(name=_args.name("to", to), labels=_args.strings("labels", labels))
        return self._call("POST", name, "/snapshot", body, once=True)

    def attach(self, name: str, sandbox_id: str, path: str, *, mode: str | None = None) -> None:
        """Mounts a volume in a running sandbox, which needs a free volume slot. Without a mode, the sandbox writes
        to the volume; with "ro" it reads it, and with "copy" it has a private copy."""
        mounts = _args.volumes({path: name if mode is None else f"{name}:{mode}"}) or []
        sandbox = _args.identifier("sandbox_id", sandbox_id)
        self._client._transport.call("POST", f"/v1/sandboxes/{sandbox}/volumes", mounts[0])

    def detach(self, name: str, sandbox_id: str) -> None:
        """Unmounts a volume in a running sandbox. The volume keeps its data. If a program uses the volume,
        it stays mounted."""
        sandbox = _args.identifier("sandbox_id", sandbox_id)
        volume = quote(_args.name("name", name), safe="")
        self._client._transport.call("DELETE", f"/v1/sandboxes/{sandbox}/volumes/{volume}")

    def delete(self, name: str) -> bool:
        """Removes a volume and its data. Returns False if it no longer existed."""
        try:
            self._client._transport.call("DELETE", f"/v1/volumes/{quote(_args.name('name', name), safe='')}")
        except VolumeNotFoundError:
            return False
        return True
