"""The parts of builds that need no connection: requests, and the progress of steps."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping
from typing import Any

from . import _args
from ._context import MAX_DOCKERFILE, BuildContext, bad
from ._errors import BuildFailed, ForkdError
from ._wire import BuildOutput, BuildPlan, BuildStep

BuildProgress = BuildPlan | BuildStep | BuildOutput
"""The progress of a build: first the plan, then steps and their output, by number."""

MAX_SECRETS = 64
MAX_SECRET = 500 << 10  # bytes
MAX_OUTPUT = 64 << 10  # characters of a step's output that are kept for its error
MAX_STEPS = 64  # steps that write output at the same time
SHOWN = 20  # lines of output in the message of an error


def opened(context: Any, dockerfile: Any, text: str | None) -> BuildContext:
    """The context of a build, which the caller closes."""
    if context is None and text is None:
        raise bad("context", "want a directory with a Dockerfile, or dockerfile_text")
    if dockerfile is not None and text is not None:
        raise bad("dockerfile_text", "dockerfile or dockerfile_text, not both")
    where = None if context is None else _args.path("context", context)
    if text is not None and not _args.text("dockerfile_text", text).strip():
        raise bad("dockerfile_text", "it is empty")
    return BuildContext(where, None if dockerfile is None else _args.path("dockerfile", dockerfile), text)


def tag_of(tag: Any, context: Any) -> str:
    """The tag of the snapshot, by default the name of the directory."""
    import os

    if tag is not None or context is None:
        return _args.name("tag", tag)
    name = os.path.basename(os.path.abspath(context)).lower()
    try:
        return _args.name("tag", name)
    except ForkdError:
        raise bad("tag", f"the name of the directory is no tag: {name!r}: give one") from None


def secrets_of(secrets: Mapping[str, str | bytes] | None) -> dict[str, str] | None:
    """Secrets in the form of the request."""
    if secrets is None:
        return None
    if not isinstance(secrets, Mapping) or len(secrets) > MAX_SECRETS:
        raise bad("secrets", f"want a mapping of at most {MAX_SECRETS} ids to text or bytes")
    out = {}
    for id, secret in secrets.items():
        data = _args.data("secrets", secret)
        if len(data) > MAX_SECRET:
            raise bad("secrets", f"{id}: {len(data)} bytes: want at most {MAX_SECRET}")
        out[_args.text("secrets", id)] = base64.b64encode(data).decode()
    return out


AUTH_FIELDS = ("username", "password", "identity_token", "registry_token")


def registry_auth_of(auth: Mapping[str, Mapping[str, str]] | None) -> dict[str, dict[str, str]] | None:
    """Credentials for registries, in the form of the request."""
    if auth is None:
        return None
    if not isinstance(auth, Mapping):
        raise bad("registry_auth", "want a mapping of hosts to credentials")
    out = {}
    for host, fields in auth.items():
        where = f"registry_auth[{host!r}]"
        if not isinstance(fields, Mapping) or not fields or any(name not in AUTH_FIELDS for name in fields):
            fields_of = f"{', '.join(AUTH_FIELDS[:2])}, or with {' or '.join(AUTH_FIELDS[2:])}"
            raise bad(where, f"want a mapping with {fields_of}")
        out[_args.text("registry_auth", host)] = {name: _args.text(where, value) for name, value in fields.items()}
    return out


def request(context: BuildContext, tag: str, **fields: Any) -> dict[str, Any]:
    """The request of a build."""
    if not context.text.strip():
        raise bad("dockerfile", f"{context.shown(context.name)}: it is empty")
    if len(context.text.encode("utf-8", "surrogatepass")) > MAX_DOCKERFILE:
        raise bad("dockerfile_text", f"it has more than {MAX_DOCKERFILE} bytes")
    return _args.given(tag=tag, dockerfile=context.text, name=context.name, **fields)


class Steps:
    """The progress of a build's steps."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.output: dict[int, Ending] = {}  # output of running steps
        self.failed: tuple[int, str] | None = None  # number and output of the step whose failure ended the others

    def add(self, event: BuildProgress) -> None:
        if isinstance(event, BuildPlan):
            self.names = event.steps
        elif isinstance(event, BuildOutput):
            if event.number in self.output or len(self.output) < MAX_STEPS:
                self.output.setdefault(event.number, Ending()).add(event.line)
        elif event.state == "failed":
            if self.failed is None:
                self.failed = event.number, self.output.get(event.number, Ending()).text()
        elif event.state != "started":
            self.output.pop(event.number, None)

    def error(self, why: ForkdError) -> ForkdError:
        """The error of a failed build, from the daemon's error."""
        if self.failed is None:
            return why
        number, output = self.failed
        step = self.names[number] if 0 <= number < len(self.names) else f"step {number}"
        last = "\n".join(output.splitlines()[-SHOWN:])
        error = BuildFailed(
            why.message + ("\n" + last if last else ""),
            step=step,
            number=number,
            output=output,
            status=why.status,
            field=why.field,
        )
        error.__cause__ = why
        return error


class Ending:
    """The last lines of an output."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque()
        self.size = 0

    def add(self, line: str) -> None:
        self.lines.append(line[-MAX_OUTPUT:])
        self.size += len(self.lines[-1]) + 1
        while self.size > MAX_OUTPUT + 1:
            self.size -= len(self.lines.popleft()) + 1

    def text(self) -> str:
        return "\n".join(self.lines)
