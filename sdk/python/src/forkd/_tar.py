"""Directories of this host as tar archives."""

from __future__ import annotations

import os
from typing import IO, Any

from ._errors import ForkdError, InvalidArgumentError


def unpack(archive: IO[bytes], to: str) -> None:
    """Unpacks what a sandbox made. It may have put anything into it: nothing leads out of the directory,
    and there are no devices."""
    import tarfile

    os.makedirs(to, exist_ok=True)
    archive.seek(0)
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            tar.extractall(to, filter="data")
    except tarfile.TarError as e:
        raise ForkdError(f"the archive of the sandbox cannot be unpacked in {to}: {e}", code="bad_archive") from e


def pack(directory: str, into: IO[bytes]) -> None:
    """Packs what is below a directory."""
    import tarfile

    if not os.path.isdir(directory):
        raise InvalidArgumentError(
            f"source: {directory}: want a directory of this host, or the bytes of a tar archive", field="source"
        )

    def plain(member: Any) -> Any:
        return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None

    with tarfile.open(fileobj=into, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        tar.add(directory, arcname=".", filter=plain)
    into.seek(0)
