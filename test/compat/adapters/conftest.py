"""The daemon of these tests. With $FORKD_URL, it is the daemon at this URL, whose VMs are forked from $COMPAT_TAG. They
are real, unless $FORKD_RIG is also set: then they are faked, and have private files. Otherwise it is a daemon with faked
VMs: the program $FORKD_RIG. With FORKD_RIG_PRIVATE, each of its sandboxes has its own /srv, which branches keep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from forkd import Client, Sandbox


@dataclass
class Daemon:
    snapshot: str
    real: bool  # the VMs are real, so that a rollback undoes the changes of a guest
    env: dict[str, str]  # environment of sandboxes
    user: str  # name of a user without privileges in sandboxes; with private files there is only root
    kept: bool  # branches, rollbacks and forks keep the files in /srv

    def sandbox(self) -> Sandbox:
        return Sandbox.create(self.snapshot, env=self.env)


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    if "FORKD_URL" in os.environ:
        yield Daemon(os.environ["COMPAT_TAG"], "FORKD_RIG" not in os.environ, {}, "user", True)
        return
    private = ["-private"] if "FORKD_RIG_PRIVATE" in os.environ else []
    with subprocess.Popen(
        [os.environ["FORKD_RIG"], "-bind", "127.0.0.1:0", *private],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        said = json.loads(process.stdout.readline())
        os.environ.update(FORKD_URL=said["url"], FORKD_TOKEN=said["token"])
        # The suites run `python`, which a host may lack outside of virtual environments.
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        yield Daemon(said["snapshot"], False, {"PATH": path}, "root" if private else "nobody", bool(private))
        Client.default().close()
        process.stdin.close()
    assert process.returncode == 0, "a request or an answer was not as api/openapi.yaml has it: see above"


@pytest.fixture
def real(daemon: Daemon) -> None:
    if not daemon.real:
        pytest.skip("fake VMs share the host's files")


@pytest.fixture
def kept(daemon: Daemon) -> None:
    if not daemon.kept:
        pytest.skip("fake VMs share the host's files")
