"""The fake daemon of test/contract, for groups that need no VMs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
# Sandboxes with faked VMs share the file system of the daemon, so the daemon gets a copy of this host's, which is lost
# afterwards. Each directory is an overlay, because the kernel allows none of the whole root in a user namespace. Of /tmp
# it has only the scratch directory: tests write there, and an overlay fails while any program has a mount below /tmp.
# The account that E2B's templates have is root there, because the namespace has no other account. Its Python is the
# group's, with the packages of the code interpreter's template that tools need.
OWN_FILES = r"""
layer=$1 python=$2; shift 2
scratch=$(dirname "$layer")
mount -t tmpfs tmpfs "$layer"
cd "$layer"
mkdir root upper work
for p in /*; do
    n=${p#/}
    if [ -L "$p" ]; then cp -P "$p" root/; continue; fi
    [ -d "$p" ] || continue
    mkdir "root/$n" "upper/$n" "work/$n"
    case $n in tmp) continue;; dev|proc|sys) mount --rbind "$p" "root/$n"; continue;; esac
    mount -t overlay overlay -o "userxattr,lowerdir=$p,upperdir=upper/$n,workdir=work/$n" "root/$n" 2>/dev/null ||
        mount --rbind "$p" "root/$n" # it has mounts below it
done
chmod 1777 root/tmp
mkdir -p "root$scratch"
mount --bind "$scratch" "root$scratch"
mount --rbind root root
cd root
pivot_root . . # after a chroot, no agent could have a user namespace with private files
umount -l .
exec chroot . sh -ec '
    rm -f /root/.bash_profile /root/.bash_login /root/.profile
    sed -i /^user:/d /etc/passwd
    echo user:x:0:0::/home/user:/bin/bash >>/etc/passwd
    mkdir -p /home/user
    for name in python python3; do
        printf "%s\n" "#!/bin/sh" "exec $0 \"\$@\"" >/usr/local/bin/$name
        chmod +x /usr/local/bin/$name
    done
    exec "$@"' "$python" "$@"
"""


def build(path: str) -> str:
    subprocess.run(["go", "build", "-o", path, "./test/contract/rigd"], cwd=ROOT, check=True)
    return path


@contextlib.contextmanager
def daemon(program: str, *options: str) -> Iterator[dict]:
    """Runs the fake daemon, and returns its description of itself. In the end it fails if any traffic did
    not conform to api/openapi.yaml."""
    with subprocess.Popen([program, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()  # makes it exit
            status = process.wait()
        if status != 0:
            raise AssertionError(f"the daemon ended with status {status}: traffic was not as api/openapi.yaml has it, or worse")


@contextlib.contextmanager
def isolated(scratch: str, *options: str) -> Iterator[dict]:
    """Runs the fake daemon with a copy of this host's files. $FORKD_RIG may name the program, if it is built already."""
    program, layer = os.path.join(scratch, "rigd"), os.path.join(scratch, "layer")
    if built := os.environ.get("FORKD_RIG"):
        shutil.copy(built, program)
    else:
        build(program)
    os.mkdir(layer)
    with daemon(*UNSHARE, "sh", "-ec", OWN_FILES, "sh", layer, sys.executable, program, *options) as said:
        yield said
