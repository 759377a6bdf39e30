"""Snapshots that move between the daemon and registries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._answers import problem_of
from .._errors import StreamBrokenError
from .._lines import Lines
from .._output import event_of
from .._wire import HubEvent, HubFile, HubResult
from . import _runtime

if TYPE_CHECKING:
    from ._client import AsyncClient

TRUST = ("require", "warn", "off")
SILENT = 600.0  # seconds: the daemon sends nothing while it checks a reference and its signatures


async def move(
    client: AsyncClient, path: str, body: dict[str, Any], on_progress: Callable[[HubFile], Any] | None
) -> HubResult:
    """Sends a request, and follows its progress until its result."""
    transport, lines, what = client._transport, Lines(), f"the stream of {path}"
    headers = {"Accept": "application/x-ndjson"}
    async with transport.stream("POST", path, json=body, headers=headers, idle=SILENT) as response:
        async for chunk in transport.chunks(response, what):
            for line in lines.feed(chunk):
                event = HubEvent.from_json(event_of(line))
                if event.result is not None:
                    return event.result
                if event.error:
                    raise problem_of(event.error, event.code or "", event.status or 0)
                if event.file is not None and on_progress is not None:
                    await _runtime.resolved(on_progress(event.file))
    raise StreamBrokenError(f"{what} broke off before its result: the daemon went away")
