"""Runs a command in namespaces of its own: inside.py HOSTNAMES SOCKET COMMAND...

The command has a network with only a loopback interface. A DNS server resolves the host names of sandboxes, and
test/compat/hostnames (the program HOSTNAMES) passes their requests to a daemon at the unix socket SOCKET. So the
command uses the same names and certificates as on a host where `forkd e2b setup` was run, and nothing else.
Must be started by `unshare --user --map-root-user --net --mount`."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile

import hostnames

SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 1, 0x40
FILES = {"/etc/resolv.conf": "nameserver 127.0.0.1\n", "/etc/nsswitch.conf": "hosts: files dns\n"}

program, daemon, *command = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP | IFF_RUNNING))
with tempfile.TemporaryDirectory() as scratch:
    for path, content in FILES.items():
        mine = os.path.join(scratch, os.path.basename(path))
        with open(mine, "w") as f:
            f.write(content)
        subprocess.run(["mount", "--bind", mine, path], check=True)
    os.environ["FORKD_URL"] = f"unix://{daemon}"
    hostnames.begin((program, "--listen", "127.0.0.1:8443", "--dns", "127.0.0.1:53"))
    del os.environ["FORKD_URL"]  # only E2B's variables name the daemon
    os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"]
    sys.exit(subprocess.run(command).returncode)
