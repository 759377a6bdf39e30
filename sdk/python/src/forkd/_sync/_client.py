# Made from _async/_client.py by tools/unasync.py. Do not edit.
"""The client of a daemon."""

from __future__ import annotations

import atexit
import os
import threading
from builtins import list as List
from collections.abc import Iterator, Callable, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from .. import _args
from .._address import Address, locate
from .._answers import parsed
from .._errors import ConnectionFailedError, ForkdError, StreamBrokenError
from .._lines import ServerEvents
from .._names import knows_e2b
from .._wire import Event, Hold, Hooks, HostMetrics, Limits, Version
from ._sandbox import Sandbox, Sandboxes, fork, fork_body
from ._settings import NetworkPolicy
from ._snapshot import Snapshot, Snapshots
from ._transport import Transport
from ._volume import Volumes
from ._workspace import Workspaces

if TYPE_CHECKING:
    from .._builds import BuildProgress


@knows_e2b
class Client:
    """Calls one daemon. Without url, the daemon is found as by the command forkd: by $FORKD_URL, else in a
    running emulated host, else at the local socket.

    A client may be used by several threads and event loops concurrently, and by a forked process. A with
    block closes its connections."""

    snapshots: Snapshots
    volumes: Volumes
    workspaces: Workspaces

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        timeout: float = 300.0,
        retries: int = 2,
    ) -> None:
        """url is unix:///path, http://host:port or https://host:port. token is the daemon's token. ca is a
        PEM file with the authority of the daemon's certificate. cert and key are files with a certificate
        of this client and its key. Parameters that are omitted come from $FORKD_URL, $FORKD_TOKEN,
        $FORKD_CA, $FORKD_CERT and $FORKD_KEY.

        timeout is how long a call waits for an answer, in seconds; commands and code have limits of their
        own. retries is how often a failed request is repeated, if repeating it does no harm."""
        seconds = _args.seconds("timeout", timeout)
        self._set(locate(url, token, ca, cert, key), seconds or 300.0, _args.whole("retries", retries, 0, 100))

    def _set(self, address: Address, timeout: float, retries: int) -> None:
        self._transport = Transport(address, timeout, retries)
        self.snapshots, self.workspaces = Snapshots(self), Workspaces(self)
        self.volumes = Volumes(self)

    _defaults: ClassVar[dict[Address, Client]] = {}
    _defaults_lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def default(cls) -> Client:
        """The client that Sandbox.create and others use by default. There is one for the whole process, or
        one for each daemon if the environment names another. It is closed when the process exits."""
        address = locate()
        with cls._defaults_lock:
            if address not in cls._defaults:
                client = cls._defaults[address] = object.__new__(cls)
                client._set(address, 300.0, 2)
                atexit.register(client.close)
            return cls._defaults[address]

    @property
    def url(self) -> str:
        """The daemon's URL."""
        return self._transport.address.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def version(self) -> Version:
        """The daemon's version, and the capabilities of its host."""
        return Version.from_json((self._transport.call("GET", "/version")).json())

    def host_metrics(
        self, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> HostMetrics:
        """The history of the daemon's host, with the arguments of Sandbox.metrics."""
        params = _args.span(since, until, step)
        return HostMetrics.from_json((self._transport.call("GET", "/v1/host/metrics", params=params)).json())

    def healthy(self) -> bool:
        """Whether a daemon answers. The call needs no token."""
        try:
            return bool((self._transport.call("GET", "/healthz")).json().get("ok"))
        except (ConnectionFailedError, ForkdError):
            return False

    def fork(
        self,
        snapshot: str,
        n: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        network: NetworkPolicy | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        ttl: float | None = None,
        idle_timeout: float | None = None,
        unique: str | None = None,
        hostname_prefix: str | None = None,
        allow_partial: bool = False,
        hooks: Hooks | Mapping[str, Any] | None = None,
        volumes: Mapping[str, str] | None = None,
        hold_effects: Hold | Mapping[str, Any] | Sequence[str] | None = None,
    ) -> Sandboxes:
        """Forks n sandboxes from a snapshot: all of them, or none. With allow_partial, some may fail to
        start. Then a PartialForkError is raised, which contains the sandboxes that did start.

        env holds environment variables for commands and code. network is the policy of the sandboxes, by default that
        of the snapshot. ttl is the number of seconds after which a sandbox is deleted. idle_timeout is the number of
        seconds without a request after which a sandbox is suspended until the next request. With unique="strict", the
        fork fails if programs in the sandboxes repeat random numbers. hooks are commands that run before or after
        operations, by default those of the snapshot.

        volumes are mounted at paths: {"/data": "data"} to write to the volume data, "data:ro" to read it, or
        "data:copy" for a private copy; docs/volumes.md says which snapshots can mount them. hold_effects is a list of
        servers, or a Hold: requests that may change something there are held (docs/network.md). sandbox.effects
        lists these requests."""
        options = (labels, env, network, limits, ttl, idle_timeout, unique, hostname_prefix, allow_partial, hooks)
        body = fork_body(n, *options, volumes, hold_effects)
        return fork(self, body | {"snapshot_tag": _args.name("snapshot", snapshot)})

    def build(
        self,
        context: str | os.PathLike[str] | None = None,
        *,
        tag: str | None = None,
        dockerfile: str | os.PathLike[str] | None = None,
        dockerfile_text: str | None = None,
        target: str | None = None,
        build_args: Mapping[str, str] | None = None,
        secrets: Mapping[str, str | bytes] | None = None,
        registry_auth: Mapping[str, Mapping[str, str]] | None = None,
        no_cache: bool = False,
        replace: bool = True,
        vcpus: int | None = None,
        memory_mib: int | None = None,
        disk_mib: int | None = None,
        on_progress: Callable[[BuildProgress], Any] | None = None,
    ) -> Snapshot:
        """Builds a snapshot from a Dockerfile, as `forkd build` does; docs/build.md lists the supported
        instructions. Steps of earlier builds are reused.

        context is the directory whose files the build may copy, except those that its .dockerignore
        excludes. dockerfile is a path relative to context, by default "Dockerfile". dockerfile_text is the
        text of a Dockerfile instead, which needs no context.

        target is a stage, build_args are values of ARG instructions, and secrets, by id, are for commands
        that ask for them by RUN --mount=type=secret. registry_auth has credentials for registries of images,
        by host: {"ghcr.io": {"username": "me", "password": "…"}}; the daemon keeps them for this build only.
        no_cache repeats all steps. vcpus, memory_mib and disk_mib are the size of a VM that boots from an
        image.

        on_progress is called with a BuildPlan, then with BuildSteps and BuildOutputs (forkd.types). If a
        step fails, BuildFailed contains the step and the end of its output. Cancelling this call ends the
        build."""
        from ._build import build

        return build(
            self,
            context,
            tag,
            dockerfile,
            dockerfile_text,
            target,
            build_args,
            secrets,
            registry_auth,
            no_cache,
            replace,
            vcpus,
            memory_mib,
            disk_mib,
            on_progress,
        )

    def sandboxes(self, labels: Mapping[str, str | None] | None = None) -> List[Sandbox]:
        """All sandboxes; see Sandbox.list."""
        return Sandbox.list(labels, client=self)

    def connect(self, id: str) -> Sandbox:
        """The sandbox with an id; see Sandbox.connect."""
        return Sandbox.connect(id, client=self)

    @contextmanager
    def events(
        self,
        *,
        sandbox: str | List[str] | None = None,
        labels: Mapping[str, str | None] | None = None,
        after: str | None = None,
        records: bool = False,
    ) -> Iterator[Iterator[Event]]:
        """Events of sandboxes and snapshots, beginning when the block is entered:

            with client.events(labels={"job": "7"}) as events:
                for event in events:
                    print(event.type, event.sandbox_id)

        sandbox and labels select sandboxes. after is the id of an event; the first events are those that
        follow it. With records, events of new objects have the present record in their sandbox or snapshot.
        If the stream breaks, the StreamBrokenError contains the id to continue after."""
        ids = [sandbox] if isinstance(sandbox, str) else sandbox or []
        params = [("sandbox", _args.identifier("sandbox", id)) for id in ids] + _args.label_filter(labels)
        if after is not None:
            params.append(("after", _args.text("after", after)))
        if records:
            params.append(("records", "true"))
        with self._transport.stream("GET", "/v1/events", params=params) as response:
            yield self._events(self._transport.chunks(response, "the stream of events"), after)

    def _events(self, chunks: Iterator[bytes], last: str | None) -> Iterator[Event]:
        events = ServerEvents()
        try:
            for chunk in chunks:
                for event in events.feed(chunk):
                    last = event.id or last
                    if event.data:
                        yield Event.from_json(parsed(event.data))
        except StreamBrokenError as e:
            e.after = last
            raise
        raise StreamBrokenError("the stream of events broke off: the daemon went away", after=last)

    def close(self) -> None:
        """Closes the client's connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
