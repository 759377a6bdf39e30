"""The results of a try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._output import Collector, CommandResult, output_of

MAX_TRY = 64  # number of children


@dataclass
class ChildResult:
    """What a child of a try has done."""

    index: int
    """The number of the child, from 0."""
    sandbox_id: str
    command: CommandResult | None
    """How the command ended, with the first 256 KiB of each output; None if that is unknown."""
    ms: float
    """The run time of the command, in milliseconds."""
    stopped: bool = False
    """The command was stopped, because another child had succeeded first."""
    error: str | None = None
    """Why it is unknown how the command ended."""
    private_kib: int | None = None
    """The memory that only this child uses, after the command."""
    memory_written_kib: int | None = None
    """The guest memory that the child has written since the branch."""
    disk_written_kib: int | None = None
    """The disk that the child has written since the branch."""
    score: float | None = None
    """The score of the judge."""
    judge_error: str | None = None
    """Why the judge gave no score."""

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.command is not None and self.command.ok


def result_of(message: dict[str, Any]) -> ChildResult:
    """The result of a child, from a message of the API."""
    fields = dict(message)
    command = None
    if (found := fields.pop("exec", None)) is not None:
        collector = Collector(text=True)
        for stream in ("stdout", "stderr"):
            if f"{stream}_base64" in found:  # the text field is then incomplete
                found.pop(stream, None)
        for stream, data in output_of(found):
            collector.add(stream, data)
        collector.truncated = found.get("stdout_truncated", False) or found.get("stderr_truncated", False)
        command = collector.result(found)
    known = {name: value for name, value in fields.items() if name in ChildResult.__dataclass_fields__}
    return ChildResult(command=command, **known)
