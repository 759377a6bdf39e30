# Made from _async/_sandbox.py by tools/unasync.py. Do not edit.
"""Sandboxes."""

from __future__ import annotations

from builtins import list as List
from collections.abc import Iterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from .. import _args, _tar
from .._codes import SandboxNotFoundError
from .._errors import PartialForkError
from .._execution import Execution, Result
from .._lines import Lines
from .._names import NamesOfE2B, knows_e2b
from .._tries import ChildResult
from .._wire import (
    Applied,
    CodeContext,
    Diff,
    Effects,
    Hold,
    Hooks,
    Limits,
    Metrics,
    Pong,
    RolledBack,
    SandboxInfo,
    Stats,
)
from . import _runtime
from ._code import Contexts, run_code
from ._commands import Commands, Pty, Command
from ._files import SPOOLED, Files
from ._settings import HooksOf, LimitsOf, NetworkOf, NetworkPolicy
from ._socket import PortConnection, open_port
from ._transport import Answer, Transport
from ._try import Tries, try_all, try_body

if TYPE_CHECKING:
    from ._client import Client
    from ._snapshot import Snapshot

T = TypeVar("T")


def _name_of(side: str | Snapshot | Sandbox) -> str:
    """The name of one side of a comparison."""
    return side if isinstance(side, str) else side.id if isinstance(side, Sandbox) else side.tag


BRANCH_MODES = ("live", "diff", "full")
UNIQUE_MODES = ("report", "strict")
COMPARE = 900.0  # seconds: the daemon compares for ten minutes at most, and first saves both sides


class Sandboxes(list["Sandbox"]):
    """The children of a fork. A with block kills them at its end."""

    def kill(self) -> None:
        """Kills all sandboxes. If some of them cannot be killed, it kills the others, and then raises the
        error."""
        _runtime.first_error(_runtime.gather([s.kill for s in self]))

    def map(
        self,
        call: Callable[[Sandbox], T],
    ) -> list[T]:
        """Calls call with every sandbox, concurrently, and returns the results in the order of the
        sandboxes. The first error is raised when all calls have ended."""
        results = _runtime.gather([partial(call, s) for s in self])
        _runtime.first_error(results)
        return results  # type: ignore[return-value]  # there is no error among the results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def fork_body(
    n: int,
    labels: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    network: NetworkPolicy | None,
    limits: Limits | Mapping[str, Any] | None,
    ttl: float | None,
    idle_timeout: float | None,
    unique: str | None,
    hostname_prefix: str | None,
    allow_partial: bool,
    hooks: Hooks | Mapping[str, Any] | None,
    volumes: Mapping[str, str] | None,
    hold_effects: Hold | Mapping[str, Any] | Sequence[str] | None,
) -> dict[str, Any]:
    return _args.given(
        n=_args.whole("n", n, 1, 1000),
        labels=_args.strings("labels", labels),
        env=_args.env(env),
        network=_args.network(network),
        limits=_args.message("limits", limits),
        ttl_secs=_args.seconds("ttl", ttl, zero=True),
        idle_timeout_secs=_args.seconds("idle_timeout", idle_timeout, zero=True),
        unique=_args.one_of("unique", unique, UNIQUE_MODES),
        hostname_prefix=_args.optional_text("hostname_prefix", hostname_prefix),
        allow_partial=allow_partial or None,
        hooks=_args.message("hooks", hooks),
        volumes=_args.volumes(volumes),
        hold_effects=_args.hold(hold_effects),
    )


def fork(client: Client, body: dict[str, Any]) -> Sandboxes:
    """Sends a fork request and returns its children."""
    answer = (client._transport.call("POST", "/v1/forks", body, once=True)).json()
    made = Sandboxes(Sandbox._of(client, SandboxInfo.from_json(s)) for s in answer["sandboxes"])
    if failed := answer.get("failed", 0):
        raise PartialForkError(
            f"{failed} of {body['n']} children did not start; the {len(made)} others live: see sandboxes",
            sandboxes=made,
            failed=failed,
        )
    return made


@knows_e2b
class Sandbox(metaclass=NamesOfE2B):
    """A virtual machine that can be forked, branched and rolled back while it runs. Sandbox.create forks
    one from a snapshot, and connect finds a running one. A with block kills it when it ends.

    The object itself holds no resources, because connections belong to the client."""

    client: Client
    id: str
    snapshot_tag: str
    commands: Commands
    pty: Pty
    files: Files
    contexts: Contexts
    network: NetworkOf
    limits: LimitsOf
    hooks: HooksOf

    def __new__(
        cls, tag: str | None = None, target: str | None = None, timeout: int = 30, *, spawn: bool = True
    ) -> Self:
        """As in forkd 0.5: Sandbox(tag) forks a snapshot with the command forkd and connects to its agent."""
        from .._compat05 import LegacySandbox
    
        kind = cls if issubclass(cls, LegacySandbox) else LegacySandbox
        return object.__new__(kind)  # type: ignore[return-value]  # it is a Sandbox


    @classmethod
    def _of(cls, client: Client, info: SandboxInfo) -> Self:
        self = object.__new__(cls)
        self.client, self.id, self.snapshot_tag, self._info = client, info.id, info.snapshot_tag, info
        self.commands, self.pty, self.files = Commands(self), Pty(self), Files(self)
        self.contexts, self.network, self.limits = Contexts(self), NetworkOf(self), LimitsOf(self)
        self.hooks = HooksOf(self)
        return self

    _info: SandboxInfo

    @classmethod
    def create(
        cls,
        snapshot: str | None = None,
        *,
        client: Client | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        network: NetworkPolicy | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        ttl: float | None = None,
        idle_timeout: float | None = None,
        unique: str | None = None,
        hostname_prefix: str | None = None,
        hooks: Hooks | Mapping[str, Any] | None = None,
        volumes: Mapping[str, str] | None = None,
        hold_effects: Hold | Mapping[str, Any] | Sequence[str] | None = None,
        tag: str | None = None,
        target: str | None = None,
        timeout: int = 30,
        spawn: bool = True,
    ) -> Self:
        """Forks one sandbox from a snapshot. See Client.fork for the parameters. Without a client, it uses
        a shared client; see Client.default."""
        if snapshot is None:  # as in 0.5, where create is the constructor
            return cls(tag, target, timeout, spawn=spawn)
        client = client or _client_class().default()
        made = client.fork(
            snapshot,
            1,
            labels=labels,
            env=env,
            network=network,
            limits=limits,
            ttl=ttl,
            idle_timeout=idle_timeout,
            unique=unique,
            hostname_prefix=hostname_prefix,
            hooks=hooks,
            volumes=volumes,
            hold_effects=hold_effects,
        )
        return cls._of(client, made[0]._info)

    @classmethod
    def connect(cls, id: str, *, client: Client | None = None) -> Self:
        """The sandbox with an id. Raises SandboxNotFoundError if it does not exist."""
        client = client or _client_class().default()
        answer = client._transport.call("GET", f"/v1/sandboxes/{_args.identifier('id', id)}")
        return cls._of(client, SandboxInfo.from_json(answer.json()))

    @classmethod
    def list(
        cls, labels: Mapping[str, str | None] | None = None, *, client: Client | None = None
    ) -> List[Self]:
        """The existing sandboxes, oldest first. labels selects those with all of the given labels: {"job":
        "7"}, or {"job": None} for any value."""
        client = client or _client_class().default()
        answer = client._transport.call("GET", "/v1/sandboxes", params=_args.label_filter(labels))
        return [cls._of(client, SandboxInfo.from_json(s)) for s in answer.json()]

    def _path(self, rest: str = "") -> str:
        return f"/v1/sandboxes/{quote(self.id, safe='')}{rest}"

    def _call(self, method: str, rest: str = "", json: Any = None, **more: Any) -> Answer:
        return self._transport.call(method, self._path(rest), json, **more)

    @property
    def _transport(self) -> Transport:
        return self.client._transport

    def _changed(self, method: str, rest: str, json: Any = None) -> SandboxInfo:
        """Sends a request whose answer describes the changed sandbox."""
        self._info = SandboxInfo.from_json((self._call(method, rest, json)).json())
        return self._info

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.snapshot_tag}>"

    # The state of the sandbox.

    def info(self) -> SandboxInfo:
        """The daemon's current information about the sandbox."""
        return self._changed("GET", "")

    get_info = info
    """E2B's name for info."""

    @property
    def sandbox_id(self) -> str:
        """E2B's name for id."""
        return self.id

    def is_running(self) -> bool:
        """Whether the sandbox exists and is neither paused, suspended nor ended."""
        try:
            return (self.info()).state == "running"
        except SandboxNotFoundError:
            return False

    @property
    def labels(self) -> dict[str, str]:
        """The labels, as of the latest call that returned them."""
        return dict(self._info.labels or {})

    def set_labels(self, labels: Mapping[str, str | None]) -> dict[str, str]:
        """Sets labels, removes those whose value is None, and keeps the others. Returns all labels."""
        if not isinstance(labels, Mapping):
            raise _args.wrong("labels", labels, "a mapping of names to values, or to None")
        body = {
            _args.text("labels", k): None if v is None else _args.text("labels", v, empty=True)
            for k, v in labels.items()
        }
        self._changed("PATCH", "/labels", body)
        return self.labels

    def set_ttl(self, ttl: float) -> SandboxInfo:
        """Makes the daemon delete the sandbox ttl seconds from now, in place of a time that was set
        before; 0: never. expires_at_unix of the result is the time of the deletion."""
        return self._changed("PUT", "/ttl", {"ttl_secs": _args.life("ttl", ttl)})

    def set_timeout(self, timeout: float) -> None:
        """E2B's name for set_ttl."""
        self._changed("PUT", "/ttl", {"ttl_secs": _args.life("timeout", timeout)})

    def stats(self) -> Stats:
        """The resources that the sandbox uses on its host."""
        return Stats.from_json((self._call("GET", "/stats")).json())

    def metrics(self, *, since: str | None = None, until: str | None = None, step: str | None = None) -> Metrics:
        """The history of the resources that the sandbox used on its host: a point for each second of the last ten
        minutes (step "second"), or for each minute of the last day ("minute"). since and until are times (RFC 3339),
        or durations before now such as "10m". Without a step, points are of seconds, unless since is more than ten
        minutes ago."""
        params = _args.span(since, until, step)
        return Metrics.from_json((self._call("GET", "/metrics", params=params)).json())

    def ping(self) -> Pong:
        """Sends a request to the sandbox's agent, which has ten seconds to answer."""
        return Pong.from_json((self._call("POST", "/ping")).json())

    def console(self) -> str:
        """The last 64 KiB of the serial console."""
        return (self._call("GET", "/console")).body.decode("utf-8", "surrogateescape")

    def logs(
        self, *, follow: bool = False, tail: int | None = None, since: str | None = None
    ) -> Iterator[str]:
        """The lines of the serial console: the last `tail` lines and, with follow, new lines until the
        sandbox ends. since is a time (RFC 3339), or a duration before now such as "10m"."""
        params = [("follow", "true")] if follow else []
        if tail is not None:
            params.append(("tail", str(_args.whole("tail", tail, 0, 10**9))))
        if since is not None:
            params.append(("since", _args.text("since", since)))
        lines = Lines()
        with self._transport.stream("GET", self._path("/logs"), params=params, idle=None) as response:
            for chunk in self._transport.chunks(response, f"the log of {self.id}"):
                for line in lines.feed(chunk):
                    yield line.decode("utf-8", "surrogateescape")
        if lines.rest:
            yield bytes(lines.rest).decode("utf-8", "surrogateescape")

    # The life of the sandbox.

    def kill(self) -> bool:
        """Kills and removes the sandbox. Returns False if it no longer existed."""
        try:
            self._call("DELETE")
        except SandboxNotFoundError:
            return False
        return True

    def fork(
        self,
        n: int = 1,
        *,
        mode: str | None = None,
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
        """Makes n children that continue from the current state of memory, processes and disk. The sandbox
        keeps running. Other parameters are those of Client.fork; network, limits, unique and hooks default to
        the sandbox's own. Children have copies of the sandbox's volumes, in addition to those of the parameter
        volumes."""
        options = (labels, env, network, limits, ttl, idle_timeout, unique, hostname_prefix, allow_partial, hooks)
        body = fork_body(n, *options, volumes, hold_effects)
        body |= _args.given(source_id=self.id, mode=_args.one_of("mode", mode, BRANCH_MODES))
        return fork(self.client, body)

    def branch(
        self,
        n: int = 0,
        *,
        tag: str | None = None,
        mode: str | None = None,
        memory: bool = True,
        wait: bool = True,
        labels: Mapping[str, str] | None = None,
        encrypt: bool = False,
    ) -> tuple[Snapshot, Sandboxes]:
        """Makes a snapshot of the running sandbox, and n children of the snapshot: snap, kids =
        sandbox.branch(2). By default the daemon chooses a tag. With wait=False a live branch is returned
        before it is complete. With memory=False only the disk is saved, in a consistent state, and children
        boot from it. labels belong to the snapshot; its children do not inherit them. With encrypt=True the
        snapshot is encrypted, as it always is if the sandbox runs from an encrypted one."""
        from ._snapshot import branch

        _args.whole("n", n, 0, 1000)
        body = _args.given(
            tag=None if tag is None else _args.name("tag", tag),
            mode=_args.one_of("mode", mode, BRANCH_MODES),
            memory=None if memory else False,
            wait=wait,
            labels=_args.strings("labels", labels),
            encrypt=encrypt or None,
        )
        snapshot = branch(self.client, self._path("/branch"), body)
        return snapshot, snapshot.fork(n) if n else Sandboxes()

    def rollback(self, to: str | Snapshot | None = None, *, unique: str | None = None) -> RolledBack:
        """Rolls the sandbox back in place. The snapshot must come from the same parent as the sandbox: a
        branch of the sandbox or of its children, or an ancestor of such a branch. By default, it is the
        snapshot that the sandbox runs from."""
        tag = to if isinstance(to, str) or to is None else to.tag
        body = _args.given(
            to=None if tag is None else _args.name("to", tag), unique=_args.one_of("unique", unique, UNIQUE_MODES)
        )
        answer = (self._call("POST", "/rollback", body)).json()
        self._info = SandboxInfo.from_json(answer)
        return RolledBack.from_json(answer)

    def promote(
        self,
        child: str | Sandbox,
        *,
        tag: str | None = None,
        mode: str | None = None,
        unique: str | None = None,
    ) -> RolledBack:
        """Gives this sandbox the memory, files and processes that child has now. This sandbox keeps its own
        id, labels and network; its own state is lost, unless it is branched first. Both sandboxes must come
        from the same parent, and child continues. tag keeps the snapshot of child that this call makes."""
        body = _args.given(
            tag=None if tag is None else _args.name("tag", tag),
            mode=_args.one_of("mode", mode, BRANCH_MODES),
            unique=_args.one_of("unique", unique, UNIQUE_MODES),
        )
        body["from"] = _args.name("child", child if isinstance(child, str) else child.id)
        answer = (self._call("POST", "/promote", body)).json()
        self._info = SandboxInfo.from_json(answer)
        return RolledBack.from_json(answer)

    def apply(
        self,
        source: str | Snapshot | Sandbox,
        *,
        base: str | Snapshot | None = None,
        paths: Sequence[str] | None = None,
        prefer: str | None = None,
        dry_run: bool = False,
        max_files: int | None = None,
    ) -> Applied:
        """Makes the file changes of source, a snapshot or sandbox of the same family, in this running sandbox: all of
        them or none. The changes are those since base, by default the nearest common ancestor of both. A file that
        both have changed in different ways is a conflict: nothing is applied then (ApplyConflictError), unless prefer
        is "from" or "onto". dry_run only lists the changes and conflicts. paths selects files and directories."""
        if not isinstance(dry_run, bool):
            raise _args.wrong("dry_run", dry_run, "True or False")
        if isinstance(paths, str):
            raise _args.wrong("paths", paths, "a list of absolute paths")
        body = _args.given(
            base=None if base is None else _args.name("base", _name_of(base)),
            paths=None if paths is None else [_args.path("paths", p) for p in paths],
            prefer=_args.one_of("prefer", prefer, ("from", "onto")),
            dry_run=dry_run or None,
            max_files=None if max_files is None else _args.whole("max_files", max_files, 0, 20_000),
        )
        body["from"] = _args.name("source", _name_of(source))
        return Applied.from_json((self._call("POST", "/apply", body, timeout=COMPARE)).json())

    def try_all(
        self,
        commands: Command | Sequence[Command],
        n: int | None = None,
        *,
        judge: Command | None = None,
        keep: str | None = None,
        promote: bool = False,
        mode: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        labels: Mapping[str, str] | None = None,
        on_result: Callable[[ChildResult], Any] | None = None,
        hold_effects: Hold | Mapping[str, Any] | Sequence[str] | None = None,
    ) -> Tries:
        """Branches the sandbox once, forks up to 64 children of the branch, and runs a command in each child. commands
        is a list with one command for each child or, with n, one command for n children. on_result receives the
        results as they arrive.

        keep says which children stay: "all"; "first", the first child whose command exits with 0, which stops the
        other commands; "best", the child with the highest score; or "none". The default is "best" with a judge,
        otherwise "first" with promote, otherwise "none". The judge is a command that runs in each child after the
        child's own command. The last line that it prints is the score. With promote, the winner is promoted into
        the sandbox, and no child stays. hold_effects holds back requests of the children, as in Client.fork.

        timeout is the limit in seconds for each command and judge, by default 600 and at most 86400. The variable
        FORKD_TRY_INDEX in the environment of a command is the child's number. If this call is cancelled or fails,
        if its connection breaks, or if the daemon dies, no child stays, and the sandbox is unchanged."""
        body = try_body(commands, n, judge, keep, promote, mode, env, cwd, user, timeout, labels, BRANCH_MODES)
        body |= _args.given(hold_effects=_args.hold(hold_effects))
        return try_all(self, body, on_result)

    def diff(
        self,
        since: str | Snapshot | Sandbox | None = None,
        *,
        path: str | None = None,
        patch: bool = True,
        max_files: int | None = None,
        max_patch_bytes: int | None = None,
    ) -> Diff:
        """The files of the sandbox that differ from those of another snapshot or sandbox of its family, and the
        size of the memory that may differ. By default the other side is the snapshot that the sandbox runs from.
        path selects a file or directory. Each text file has a patch; all patches together have at most
        max_patch_bytes. At most max_files files are listed, and further files are only counted. Apply patches with
        git apply. Other programs may let a patch change .git/hooks, and then a sandbox can run programs on this
        host."""
        if not isinstance(patch, bool):
            raise _args.wrong("patch", patch, "True or False")
        body = _args.given(
            to=self.id,
            path=None if path is None else _args.path("path", path),
            patch=patch,
            max_files=None if max_files is None else _args.whole("max_files", max_files, 0, 20_000),
            max_patch_bytes=None
            if max_patch_bytes is None
            else _args.whole("max_patch_bytes", max_patch_bytes, 0, 4 << 20),
        )
        if since is not None:
            body["from"] = _args.name("since", _name_of(since))
        return Diff.from_json((self._transport.call("POST", "/v1/diff", body, timeout=COMPARE)).json())

    def export(
        self,
        since: str | Snapshot | Sandbox | None = None,
        *,
        path: str | None = None,
        partial: bool = False,
        to: str | PathLike[str] | None = None,
    ) -> bytes | None:
        """The files of the sandbox that differ from those of another snapshot or sandbox of its family, as the bytes
        of a tar archive; with to, writes the archive to this file of this host instead. By default the other side is
        the snapshot that the sandbox runs from. path selects a file or directory. An empty file .wh.NAME stands for a
        deleted file NAME. The sandbox determines the content, so unpack it with care. A file that an archive cannot
        have as it is, such as a damaged one, is an error, unless partial is set."""
        import tempfile

        if not isinstance(partial, bool):
            raise _args.wrong("partial", partial, "True or False")
        body = _args.given(
            to=self.id,
            path=None if path is None else _args.path("path", path),
            partial=partial or None,
        )
        if since is not None:
            body["from"] = _args.name("since", _name_of(since))
        target = None if to is None else _args.path("to", to)
        with tempfile.SpooledTemporaryFile(SPOOLED) as archive:
            with self._transport.stream("POST", "/v1/export", json=body, idle=COMPARE) as response:
                for chunk in self._transport.chunks(response, f"the export of {self.id}"):
                    _tar.add(archive, chunk)
            if target is not None:
                _runtime.in_thread(_tar.save, archive, target)
                return None
            archive.seek(0)
            return archive.read()

    def effects(self) -> Effects:
        """The held requests, and the hold, if there still is one; see hold_effects of Client.fork."""
        return Effects.from_json((self._call("GET", "/effects")).json())

    def release_effects(self) -> Effects:
        """Ends the hold: waiting requests are sent. Returns the requests that were held until then."""
        return Effects.from_json((self._call("POST", "/effects/release", {})).json())

    def pause(self) -> SandboxInfo:
        """Pauses the sandbox."""
        return self._changed("POST", "/pause", {})

    def resume(self, *, unique: str | None = None) -> SandboxInfo:
        """Continues after a pause, or restores the sandbox after a suspension."""
        return self._changed("POST", "/resume", _args.given(unique=_args.one_of("unique", unique, UNIQUE_MODES)))

    def suspend(self, *, encrypt: bool = False) -> SandboxInfo:
        """Saves the sandbox to disk and frees its memory. With encrypt=True the saved state is encrypted, as it
        always is if the sandbox runs from an encrypted snapshot."""
        return self._changed("POST", "/suspend", _args.given(encrypt=encrypt or None))

    # Code.

    def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: CodeContext | str | None = None,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Execution:
        """Runs code in a warm interpreter, which keeps its variables, and returns everything that the code
        has shown and written. An uncaught exception is in error. The callbacks receive output and results
        as they arrive.

        language is python, javascript, typescript or bash, if the image has it. context is an interpreter
        from contexts. timeout is in seconds, by default 30 and at most 3600. env applies only to this call.
        Cancelling this call interrupts the code."""
        return run_code(self, code, language, context, on_stdout, on_stderr, on_result, timeout, env)

    def create_code_context(self, cwd: str | None = None, language: str | None = None) -> CodeContext:
        """E2B's name for contexts.create."""
        return self.contexts.create(language, cwd=cwd)

    def list_code_contexts(self) -> List[CodeContext]:
        """E2B's name for contexts.list."""
        return self.contexts.list()

    def restart_code_context(self, context: CodeContext | str) -> None:
        """E2B's name for contexts.restart."""
        self.contexts.restart(context)

    def remove_code_context(self, context: CodeContext | str) -> bool:
        """E2B's name for contexts.remove."""
        return self.contexts.remove(context)

    def eval(self, code: str) -> str | None:
        """As in forkd 0.5: the repr of an expression in the warm Python interpreter. Raises RuntimeError if
        the expression does. run_code does more."""
        answer = (self._call("POST", "/eval", {"code": _args.text("code", code)})).json()
        if answer.get("error"):
            raise RuntimeError(f"forkd eval: {answer['error']}")
        return answer.get("result")  # type: ignore[no-any-return]  # a string

    # Ports.

    def url(self, port: int, *, ttl: float | None = None) -> str:
        """A URL that gives anyone who has it access to an HTTP server in the sandbox, for ttl seconds (by
        default an hour). The daemon must serve a domain (--proxy-domain)."""
        body = _args.given(ttl_secs=_args.seconds("ttl", ttl))
        answer = self._call("POST", f"/ports/{_args.whole('port', port, 1, 65535)}/url", body)
        return str(answer.json()["url"])

    def connect_port(self, port: int) -> AbstractContextManager[PortConnection]:
        """A TCP connection to a server on the sandbox's loopback address, open until the with block ends."""
        return open_port(self._transport, self._path(f"/tcp/{_args.whole('port', port, 1, 65535)}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _client_class() -> type[Client]:
    from ._client import Client

    return Client
