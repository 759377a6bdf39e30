"""What the tests of the tools share."""

from __future__ import annotations

import os

FAKED = bool(os.environ["COMPAT_FAKED"])  # VMs are faked: all sandboxes have the file system of this host
LONG = 300  # seconds that an operation may take on an emulated host
