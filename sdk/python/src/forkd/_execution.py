"""The results of code in an interpreter, and how the code ended. Notebooks display these objects like the
results themselves."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any, Literal

from ._output import MAX_KEPT
from ._wire import CodeContext

# Bytes that a part of an output and a result count for at least, because each takes memory of its own.
LEAST_PART = 64
LEAST_RESULT = 1024

# The attributes of a result and their media types. The names are those of E2B's SDK.
FORMATS = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
    "data": "e2b/data",
    "chart": "e2b/chart",
}


@dataclass(frozen=True)
class Result:
    """A value that code has shown, in the forms in which it can be displayed. A form that it lacks is None.
    Forms that are not text, such as png, are base64."""

    is_main_result: bool = False
    """The value is that of the last expression, and was not shown by display()."""
    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: str | None = None
    jpeg: str | None = None
    pdf: str | None = None
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    data: Any = None
    """The columns of a data frame."""
    chart: Any = None
    """The content of a figure: its kind, its axes and its values."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """All forms by media type, including those without an attribute."""

    @classmethod
    def of(cls, result: dict[str, Any]) -> Result:
        """The result of a message of the API."""
        raw = result.get("data") or {}
        return cls(bool(result.get("main")), **{name: raw.get(kind) for name, kind in FORMATS.items()}, raw=raw)

    def formats(self) -> list[str]:
        """The names of the forms that this result has."""
        return [name for name in FORMATS if getattr(self, name) is not None]

    def __str__(self) -> str:
        return self.text if self.text is not None else f"Result({', '.join(self.formats())})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return dict(self.raw)


@dataclass(frozen=True)
class ExecutionError:
    """An exception that code did not catch. The name is Timeout or InterpreterDied if the code was stopped."""

    name: str
    value: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


@dataclass
class Logs:
    """The output of code, in the parts in which it arrived."""

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)


@dataclass
class Execution:
    """A run of code: its results, its output, and how it ended."""

    results: list[Result] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    error: ExecutionError | None = None
    """None if the code ran to its end."""
    execution_count: int = 0
    """The number of this run in its interpreter, from 1."""
    outcome: str = "finished"
    """finished, exception, timeout, or died if the interpreter did."""
    state_lost: bool = False
    """The variables of the context are lost because its interpreter died or was killed."""
    truncated: bool = False
    """An output or the results had more than 64 MiB. The execution has the beginning of each output, and the
    results for which there was room. A part of an output counts for at least 64 bytes, a result for 1 KiB."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def timed_out(self) -> bool:
        return self.outcome == "timeout"

    @property
    def text(self) -> str | None:
        """The text of the main result."""
        return next((r.text for r in self.results if r.is_main_result), None)

    @property
    def stdout(self) -> str:
        return "".join(self.logs.stdout)

    @property
    def stderr(self) -> str:
        return "".join(self.logs.stderr)

    def end(self, message: dict[str, Any]) -> None:
        """Stores how the code ended."""
        self.execution_count = message.get("execution_count", self.execution_count)
        self.outcome, self.state_lost = message.get("outcome", "finished"), bool(message.get("state_lost"))
        if self.error is None and self.outcome == "timeout":
            self.error = ExecutionError("Timeout", "the code took longer than its timeout", "")
        elif self.error is None and self.outcome == "died":
            self.error = ExecutionError("InterpreterDied", "the interpreter ended while the code ran", "")

    def _repr_html_(self) -> str:
        """The HTML that a notebook displays."""
        parts = [pre(self.stdout, ""), pre(self.stderr, "background:#fdd")]
        for r in self.results:
            if r.html is not None:
                parts.append(r.html)
            elif r.svg is not None:
                parts.append(r.svg)
            elif image := next((k for k in ("png", "jpeg") if getattr(r, k)), None):
                parts.append(f'<img src="data:image/{image};base64,{html.escape(getattr(r, image))}">')
            elif r.text is not None:
                parts.append(pre(r.text, ""))
        if self.error is not None:
            parts.append(pre(self.error.traceback or str(self.error), "background:#fdd"))
        return "".join(parts)


class Collector:
    """Keeps the output and the results of code in an execution."""

    def __init__(self) -> None:
        self.execution = Execution()
        self.room = {"stdout": MAX_KEPT, "stderr": MAX_KEPT, "results": MAX_KEPT}  # bytes

    def output(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        kept: list[str] = getattr(self.execution.logs, stream)
        if self._fits(stream, max(LEAST_PART, len(text.encode("utf-8", "surrogatepass")))):
            kept.append(text)
        else:
            self.room[stream] = 0  # so that no later, shorter part is kept after a gap

    def result(self, result: Result, size: int) -> None:
        """size is the number of bytes of the message."""
        if self._fits("results", max(LEAST_RESULT, size)):
            self.execution.results.append(result)

    def _fits(self, name: str, size: int) -> bool:
        if size > self.room[name]:
            self.execution.truncated = True
            return False
        self.room[name] -= size
        return True


def pre(text: str, style: str) -> str:
    return f'<pre style="{style}">{html.escape(text)}</pre>' if text else ""


def context_id(context: CodeContext | str | None) -> str | None:
    return context.id if isinstance(context, CodeContext) else context
