# Made from _async/_try.py by tools/unasync.py. Do not edit.
"""Tries commands in children of a sandbox, and keeps some of the children."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _args
from .._answers import problem_of
from .._errors import StreamBrokenError
from .._lines import Lines
from .._output import event_of
from .._tries import MAX_TRY, ChildResult, result_of
from .._wire import SandboxInfo
from . import _runtime
from ._commands import Command

if TYPE_CHECKING:
    from ._sandbox import Sandbox, Sandboxes

SILENT = 600.0  # seconds: the daemon sends nothing while it branches and forks
KEEP = ("all", "first", "best", "none")


@dataclass
class Tries:
    """The results of try_all."""

    results: list[ChildResult]
    """The results of the children, in the order of the commands."""
    winner: ChildResult | None
    """The result of the first or the best child; None if there is none."""
    sandboxes: Sandboxes
    """The children that stay. The caller uses or kills them."""


def try_body(
    commands: Command | Sequence[Command],
    n: int | None,
    judge: Command | None,
    keep: str | None,
    promote: bool,
    mode: str | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    labels: Mapping[str, str] | None,
    modes: Sequence[str],
) -> dict[str, Any]:
    if n is None:
        if isinstance(commands, (str, bytes)) or not isinstance(commands, Sequence) or not commands:
            raise _args.wrong("commands", commands, "a list of commands; or one command, and n")
        if len(commands) > MAX_TRY:
            raise _args.wrong("commands", f"{len(commands)} commands", f"at most {MAX_TRY}")
        body: dict[str, Any] = {"each": [_args.command(c, "commands") for c in commands]}
    else:
        body = {"n": _args.whole("n", n, 1, MAX_TRY), "args": _args.command(commands, "commands")}
    return body | _args.given(
        judge=None if judge is None else _args.command(judge, "judge"),
        keep=_args.one_of("keep", keep, KEEP),
        promote=promote or None,
        mode=_args.one_of("mode", mode, modes),
        env=_args.env(env),
        cwd=None if cwd is None else _args.path("cwd", cwd),
        user=_args.optional_text("user", user),
        timeout_secs=_args.seconds("timeout", timeout, most=86400),
        labels=_args.strings("labels", labels),
    )


def try_all(
    sandbox: Sandbox, body: dict[str, Any], on_result: Callable[[ChildResult], Any] | None
) -> Tries:
    """Sends the request, and collects the results until the last line."""
    from ._sandbox import Sandbox, Sandboxes

    results: dict[int, ChildResult] = {}
    transport, lines, what = sandbox.client._transport, Lines(), f"the stream of a try in {sandbox.id}"
    with transport.stream(
        "POST", sandbox._path("/try"), json=body, headers={"Accept": "application/x-ndjson"}, idle=SILENT
    ) as response:
        for chunk in transport.chunks(response, what):
            for line in lines.feed(chunk):
                event = event_of(line)
                if event.get("error"):
                    raise problem_of(event["error"], event.get("code", ""), event.get("status", 0))
                if found := event.get("result"):
                    result = results[found["index"]] = result_of(found)
                    if on_result is not None:
                        _runtime.resolved(on_result(result))
                if (end := event.get("end")) is not None:
                    if promoted := end.get("promoted"):
                        sandbox._info = SandboxInfo.from_json(promoted)
                    kept = [Sandbox._of(sandbox.client, SandboxInfo.from_json(s)) for s in end["kept"]]
                    return Tries(
                        [results[i] for i in sorted(results)], results.get(end.get("winner", -1)), Sandboxes(kept)
                    )
    raise StreamBrokenError(f"{what} broke off before its end: the daemon went away")
