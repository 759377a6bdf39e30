# Made from _async/_snapshot.py by tools/unasync.py. Do not edit.
"""Snapshots."""

from __future__ import annotations

import os
from builtins import list as List
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import _args
from .._builds import registry_auth_of
from .._errors import StreamBrokenError
from .._wire import Baked, BuildResult, HubFile, HubResult, Limits, SnapshotInfo, SnapshotInfoDetail, Verified
from ._hub import TRUST, move

if TYPE_CHECKING:
    from ._client import Client
    from ._sandbox import Sandboxes
    from ._settings import NetworkPolicy

BAKE = 7200.0  # seconds: a boot and any number of warm-up steps, each with a limit of its own
TEMPLATES = ("host", "portable")


class Snapshot:
    """A snapshot, from which sandboxes are forked. client.snapshots finds snapshots, and branch makes them."""

    def __init__(self, client: Client, tag: str, info: SnapshotInfo | None = None) -> None:
        self.client = client
        self.tag = tag
        self.details = info
        """The daemon's answer when this snapshot was made or listed; None if there was none."""
        self.built: BuildResult | None = None
        """The result of the build that made it; None unless this program has built it."""
        self.pulled: HubResult | None = None
        """The result of the pull that made it; None unless this program has pulled it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tag}>"

    @classmethod
    def build(
        cls, context: str | os.PathLike[str] | None = None, *, client: Client | None = None, **options: Any
    ) -> Snapshot:
        """Builds a snapshot from a Dockerfile; the options are those of Client.build."""
        if client is None:
            from ._client import Client

            client = Client.default()
        return client.build(context, **options)

    @classmethod
    def pull(cls, reference: str, *, client: Client | None = None, **options: Any) -> Snapshot:
        """Pulls a snapshot from a registry; the options are those of Snapshots.pull."""
        if client is None:
            from ._client import Client

            client = Client.default()
        return client.snapshots.pull(reference, **options)

    def push(self, reference: str, **options: Any) -> HubResult:
        """Writes the snapshot to a registry; see Snapshots.push."""
        return self.client.snapshots.push(self.tag, reference, **options)

    def info(self) -> SnapshotInfoDetail:
        """All information about the snapshot."""
        return self.client.snapshots.info(self.tag)

    def fork(self, n: int = 1, **options: Any) -> Sandboxes:
        """Forks n sandboxes from the snapshot; the options are those of Client.fork."""
        return self.client.fork(self.tag, n, **options)

    def delete(self, *, cascade: bool = False, force: bool = False) -> bool:
        """Removes the snapshot; see Snapshots.delete."""
        return self.client.snapshots.delete(self.tag, cascade=cascade, force=force)

    def verify(self) -> Verified:
        """Compares every file with its digest. Raises SnapshotUnusableError if one differs."""
        return self.client.snapshots.verify(self.tag)

    def compact(self, to: str) -> Snapshot:
        """Makes a snapshot that has the same content and depends on no other snapshot."""
        return self.client.snapshots.compact(self.tag, to)


def branch(client: Client, path: str, body: dict[str, Any]) -> Snapshot:
    """Makes a snapshot of the sandbox at a path of the API."""
    info = SnapshotInfo.from_json((client._transport.call("POST", path, body, once=True)).json())
    return Snapshot(client, info.tag, info)


class Snapshots:
    """The snapshots of a daemon."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _call(self, method: str, tag: str, rest: str = "", json: Any = None, **more: Any) -> Any:
        path = f"/v1/snapshots/{quote(_args.name('tag', tag), safe='')}{rest}"
        answer = self._client._transport.call(method, path, json, **more)
        return answer.json() if answer.body else None

    def list(self) -> List[Snapshot]:
        """All snapshots, by tag."""
        answer = self._client._transport.call("GET", "/v1/snapshots")
        infos = [SnapshotInfo.from_json(s) for s in answer.json()]
        return [Snapshot(self._client, i.tag, i) for i in infos]

    def get(self, tag: str) -> Snapshot:
        """The snapshot with a tag. Raises SnapshotNotFoundError if it does not exist."""
        return Snapshot(self._client, tag, self.info(tag))  # type: ignore[arg-type]  # its fields are more

    def info(self, tag: str) -> SnapshotInfoDetail:
        """All information about a snapshot."""
        return SnapshotInfoDetail.from_json(self._call("GET", tag, "/info"))

    def delete(self, tag: str, *, cascade: bool = False, force: bool = False) -> bool:
        """Removes a snapshot. With cascade, it also removes the snapshots that build on it; with force, it
        keeps these. Returns False if the snapshot no longer existed."""
        from .._codes import SnapshotNotFoundError

        if cascade and force:
            raise _args.wrong("force", force, "cascade or force, not both")
        params = [("cascade", "true")] if cascade else [("force", "true")] if force else []
        try:
            self._call("DELETE", tag, params=params)
        except SnapshotNotFoundError:
            return False
        return True

    def verify(self, tag: str) -> Verified:
        """Compares every file of a snapshot with its digest."""
        return Verified.from_json(self._call("POST", tag, "/verify"))

    def compact(self, tag: str, to: str) -> Snapshot:
        """Makes a snapshot that has the same content and depends on no other snapshot, with the tag to."""
        info = SnapshotInfo.from_json(self._call("POST", tag, "/compact", {"to": _args.name("to", to)}))
        return Snapshot(self._client, info.tag, info)

    def pull(
        self,
        reference: str,
        *,
        tag: str | None = None,
        lazy: bool = False,
        reuse: bool = False,
        trust: str | None = None,
        mirrors: Sequence[str] = (),
        registry_auth: Mapping[str, Mapping[str, str]] | None = None,
        on_progress: Callable[[HubFile], Any] | None = None,
    ) -> Snapshot:
        """Pulls the snapshot at a reference, such as "ghcr.io/owner/python-numpy:1". By default it gets the
        tag of the pushed snapshot. With lazy=True it can be forked before all of it has arrived. With
        reuse=True, a snapshot that an earlier pull has made from the same artifact is returned. trust is
        what happens without a trusted signature: "require", "warn" or "off"; by default the daemon decides.
        mirrors are up to four repositories with the same files. registry_auth has credentials by host, as in
        Client.build. on_progress is called with each change of a file; the pull waits for it."""
        if isinstance(mirrors, str) or len(mirrors) > 4:
            raise _args.wrong("mirrors", mirrors, "a list of at most four repositories")
        body = _args.given(
            reference=_args.text("reference", reference),
            tag=None if tag is None else _args.name("tag", tag),
            lazy=lazy or None,
            reuse=reuse or None,
            trust=_args.one_of("trust", trust, TRUST),
            mirrors=[_args.text("mirrors", m) for m in mirrors] or None,
            registry_auth=registry_auth_of(registry_auth),
        )
        result = move(self._client, "/v1/pulls", body, on_progress)
        if result.snapshot is None:
            raise StreamBrokenError("the result of the pull names no snapshot")
        snapshot = Snapshot(self._client, result.snapshot.tag, result.snapshot)
        snapshot.pulled = result
        return snapshot

    def push(
        self,
        tag: str,
        reference: str,
        *,
        record_hot: bool = False,
        registry_auth: Mapping[str, Mapping[str, str]] | None = None,
        on_progress: Callable[[HubFile], Any] | None = None,
    ) -> HubResult:
        """Writes a snapshot to a registry, as "ghcr.io/owner/python-numpy:1". With record_hot=True, the daemon
        runs it twice, and adds a list of what its first forks need. registry_auth and on_progress are those
        of pull. The result has the reference with the digest."""
        body = _args.given(
            reference=_args.text("reference", reference),
            record_hot=record_hot or None,
            registry_auth=registry_auth_of(registry_auth),
        )
        path = f"/v1/snapshots/{quote(_args.name('tag', tag), safe='')}/push"
        return move(self._client, path, body, on_progress)

    def bake(
        self,
        tag: str,
        *,
        kernel: str,
        rootfs: str,
        initrd: str | None = None,
        memory_mib: int | None = None,
        vcpus: int | None = None,
        cpu_template: str | None = None,
        env: Mapping[str, str] | None = None,
        commands: Sequence[str] = (),
        python: str | None = None,
        network: NetworkPolicy | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        unique: str | None = None,
        ready_timeout: float | None = None,
        warmup_timeout: float | None = None,
    ) -> Snapshot:
        """Boots a parent, warms it up with commands and Python code, and makes a snapshot of it.
        kernel, rootfs and initrd are paths on the daemon's host. `forkd build RECIPE` makes these
        files; see docs/recipes.md."""
        warmup = _args.given(
            commands=[_args.text("commands", c) for c in commands] or None, python=_args.optional_text("python", python)
        )
        body = _args.given(
            tag=_args.name("tag", tag),
            kernel=_args.path("kernel", kernel),
            rootfs=_args.path("rootfs", rootfs),
            initrd=None if initrd is None else _args.path("initrd", initrd),
            mem_size_mib=None if memory_mib is None else _args.whole("memory_mib", memory_mib, 64, 1 << 30),
            vcpus=None if vcpus is None else _args.whole("vcpus", vcpus, 1, 4096),
            cpu_template=_args.one_of("cpu_template", cpu_template, TEMPLATES),
            env=_args.env(env),
            warmup=warmup or None,
            network=_args.network(network),
            limits=_args.message("limits", limits),
            unique=_args.one_of("unique", unique, ("report", "strict")),
            ready_timeout_secs=_args.seconds("ready_timeout", ready_timeout),
            warmup_timeout_secs=_args.seconds("warmup_timeout", warmup_timeout),
        )
        answer = self._client._transport.call("POST", "/v1/snapshots", body, once=True, timeout=BAKE)
        info = Baked.from_json(answer.json())
        return Snapshot(self._client, info.tag, info)  # type: ignore[arg-type]  # its fields are more
