"""What the tests of the tools share."""

from __future__ import annotations

import asyncio
import os
import ssl
import urllib.error
import urllib.request

FAKED = bool(os.environ["COMPAT_FAKED"])  # VMs are faked: all sandboxes have the file system of this host
LONG = 300  # seconds that an operation may take on an emulated host


async def served(url: str) -> bytes:
    """What a server in a sandbox answers. Until the server has started, the daemon answers 502."""
    for _ in range(LONG):
        try:
            return await asyncio.to_thread(
                lambda: urllib.request.urlopen(url, context=ssl.create_default_context()).read()
            )
        except urllib.error.HTTPError as e:
            assert e.code == 502
            await asyncio.sleep(1)
    raise TimeoutError(f"{url}: nothing is served")
