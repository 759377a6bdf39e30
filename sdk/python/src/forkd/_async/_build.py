"""Builds from Dockerfiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import _args
from .._answers import problem_of
from .._builds import BuildProgress, Steps, opened, registry_auth_of, request, secrets_of, tag_of
from .._errors import StreamBrokenError
from .._lines import Lines
from .._output import event_of
from .._wire import BuildEvent
from . import _runtime
from ._snapshot import AsyncSnapshot

if TYPE_CHECKING:
    from ._client import AsyncClient

SILENT = 600.0  # seconds: the daemon sends nothing while it asks registries for the plan


async def build(
    client: AsyncClient,
    context: str | os.PathLike[str] | None,
    tag: str | None,
    dockerfile: str | os.PathLike[str] | None,
    dockerfile_text: str | None,
    target: str | None,
    build_args: Mapping[str, str] | None,
    secrets: Mapping[str, str | bytes] | None,
    registry_auth: Mapping[str, Mapping[str, str]] | None,
    no_cache: bool,
    replace: bool,
    vcpus: int | None,
    memory_mib: int | None,
    disk_mib: int | None,
    on_progress: Callable[[BuildProgress], Any] | None,
) -> AsyncSnapshot:
    """Builds a snapshot; see AsyncClient.build. The archive is written to a file before it is sent."""
    import tempfile

    fields = {
        "replace": replace or None,
        "target": _args.optional_text("target", target),
        "args": _args.strings("build_args", build_args),
        "no_cache": no_cache or None,
        "secrets": secrets_of(secrets),
        "registry_auth": registry_auth_of(registry_auth),
        "vcpus": None if vcpus is None else _args.whole("vcpus", vcpus, 1, 4096),
        "memory_mib": None if memory_mib is None else _args.whole("memory_mib", memory_mib, 64, 1 << 30),
        "disk_mib": None if disk_mib is None else _args.whole("disk_mib", disk_mib, 1, 1 << 20),
    }
    files = await _runtime.in_thread(opened, context, dockerfile, dockerfile_text)
    try:
        body = request(files, tag_of(tag, context), **fields)
        with tempfile.TemporaryFile() as archive:
            await _runtime.in_thread(files.pack, body, archive)
            made = await follow(client, archive, on_progress)
    finally:
        files.close()
    info = await client.snapshots.info(made.tag)
    snapshot = AsyncSnapshot(client, made.tag, info)  # type: ignore[arg-type]  # its fields are more
    snapshot.built = made
    return snapshot


async def follow(client: AsyncClient, archive: Any, on_progress: Callable[[BuildProgress], Any] | None) -> Any:
    """Sends the archive of a build, and follows the build's progress until its result."""
    transport, lines, steps, what = client._transport, Lines(), Steps(), "the stream of the build"
    headers = {"Content-Type": "application/x-tar", "Accept": "application/x-ndjson"}
    async with transport.stream(
        "POST", "/v1/builds", content=_runtime.bytes_of(archive), headers=headers, idle=SILENT
    ) as response:
        async for chunk in transport.chunks(response, what):
            for line in lines.feed(chunk):
                event = BuildEvent.from_json(event_of(line))
                if event.result is not None:
                    return event.result
                if event.error:
                    raise steps.error(problem_of(event.error, event.code or "", event.status or 0))
                told = event.plan or event.step or event.output
                if told is not None:
                    steps.add(told)
                    if on_progress is not None:
                        await _runtime.resolved(on_progress(told))
    raise StreamBrokenError(f"{what} broke off before its result: the daemon went away")
