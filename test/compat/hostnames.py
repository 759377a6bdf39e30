"""Sandboxes by host names, for packages that only connect to https://PORT-ID.DOMAIN.

begin() starts test/compat/hostnames and sets the environment that this process and its children need. They
must also resolve the names to this host. This process does so from then on, Node.js does with hostnames.mjs,
and pytest with -p hostnames.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence

SETS = ("E2B_DOMAIN", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")


def begin(command: Sequence[str] = ("go", "run", "./test/compat/hostnames")) -> None:
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    domain, there = server.stdout.readline().split()
    os.environ.update(zip(SETS, (domain, f"{there}/bundle.pem", f"{there}/ca.pem")))
    begin.server = server  # exits when its standard input is closed
    look_up_here()


def look_up_here() -> None:
    below, lookup = "." + os.environ["E2B_DOMAIN"].partition(":")[0], socket.getaddrinfo

    def here(host, *args, **kwargs):
        name = host.decode() if isinstance(host, bytes) else host
        return lookup("127.0.0.1" if name and name.endswith(below) else host, *args, **kwargs)

    socket.getaddrinfo = here


def pytest_configure() -> None:
    look_up_here()
