"""Finds the daemon, in the same places as the command forkd."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ._errors import InvalidArgumentError

if TYPE_CHECKING:
    import ssl

WANT = "want unix:///path, http://host:port or https://host:port"
F_OFD_GETLK = 36  # linux/fcntl.h


@dataclass(frozen=True)
class Address:
    """How to reach a daemon."""

    url: str  # as given: unix:///path, http://… or https://…
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def socket(self) -> str | None:
        """The path of the unix socket; None for TCP."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else None

    @property
    def base(self) -> str:
        """The URL to which paths of the API are appended."""
        return "http://forkd" if self.socket else self.url.rstrip("/")

    def tls(self) -> ssl.SSLContext | bool:
        """The TLS settings; False without TLS."""
        if not self.url.startswith("https://"):
            return False
        import ssl

        context = ssl.create_default_context(cafile=self.ca)
        if self.ca:  # like the command forkd, accepts authorities that lack some properties of public ones (RFC 5280)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.cert and self.key:
            context.load_cert_chain(self.cert, self.key)
        return context


def locate(
    url: str | None = None,
    token: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> Address:
    """Returns the daemon's address: the given one, else that of $FORKD_URL, else the one in a running
    emulated host, else the local socket. $FORKD_TOKEN, $FORKD_CA, $FORKD_CERT and $FORKD_KEY replace the
    other parameters."""
    env = os.environ.get
    if token is None:
        token = env("FORKD_TOKEN") or None
    ca, cert, key = ca or env("FORKD_CA") or None, cert or env("FORKD_CERT") or None, key or env("FORKD_KEY") or None
    if bool(cert) != bool(key):
        raise InvalidArgumentError(
            "cert and key ($FORKD_CERT and $FORKD_KEY): want both or neither", field="key" if cert else "cert"
        )
    for name, file in (("ca", ca), ("cert", cert), ("key", key)):
        if file and not os.access(file, os.R_OK):
            raise InvalidArgumentError(f"{name}: {file} cannot be read: want a file in PEM", field=name)
    if url is None and not (url := env("FORKD_URL") or None):
        if (machine := emulated()) is not None:
            return Address(machine[0], machine[1], ca, cert, key)
        url = "unix://" + local_socket()
    return Address(checked(url), token, ca, cert, key)


def checked(url: str) -> str:
    if not isinstance(url, str):
        raise InvalidArgumentError(f"url: {url!r}: {WANT}", field="url")
    parts = urlsplit(url)
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return url
    if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc:
        return url
    raise InvalidArgumentError(f"url: {url!r}: {WANT}", field="url")


def local_socket() -> str:
    """The socket of a daemon that this user has started without options."""
    run = "/run" if os.getuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "")
    if not run.startswith("/"):
        run = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"forkd-run-{os.getuid()}")
        check_owner(run)
    check_owner(os.path.join(run, "forkd"))
    return os.path.join(run, "forkd", "forkd.sock")


def check_owner(directory: str) -> None:
    """Refuses a directory that another user owns or may write to, because the socket in it may be another user's."""
    try:
        there = os.lstat(directory)
    except OSError:
        return  # no daemon is there, which the first request reports
    if not stat.S_ISDIR(there.st_mode) or there.st_uid not in (0, os.getuid()) or there.st_mode & 0o022:
        raise InvalidArgumentError(
            f"{directory} may be another user's, and so may the daemon: want a directory, no link, that user "
            f"{os.getuid()} or root owns, and that no group and no other user may write to. Remove it, and start "
            "the daemon again; or name the daemon's address by $FORKD_URL or url=",
            field="url",
        )


def cache_dir() -> str | None:
    env = os.environ.get
    if there := env("FORKD_CACHE"):
        return there
    if (xdg := env("XDG_CACHE_HOME", "")).startswith("/"):
        return os.path.join(xdg, "forkd")
    return os.path.join(home, ".cache", "forkd") if (home := env("HOME", "")).startswith("/") else None


def emulated() -> tuple[str, str | None] | None:
    """The address and the token of the daemon in the running emulated host; None if none runs."""
    if not (cache := cache_dir()):
        return None
    home = os.path.join(cache, "machine", os.environ.get("FORKD_MACHINE") or "default")
    try:
        with open(os.path.join(home, "state.json"), encoding="utf-8") as f:
            state = json.load(f)
        with open(os.path.join(home, "supervisor.lock"), "rb") as f:
            # struct flock {type, whence, start, len, pid}: reports whether a supervisor holds the lock, without
            # taking it
            lock = fcntl.fcntl(f, F_OFD_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        if state.get("phase") != "ready" or struct.unpack("hhqqi4x", lock)[0] == fcntl.F_UNLCK:
            return None
        with open(os.path.join(home, "daemon", "token"), encoding="utf-8") as f:
            token = f.read().strip()
    except (OSError, ValueError):
        return None
    return "http://" + state["daemon_addr"], token or None


def what_helps(address: Address) -> str:
    """What to do if no daemon answers."""
    if (socket := address.socket) and os.path.exists(socket) and not os.access(socket, os.W_OK):
        return "this user may not use the socket: the daemon lets in its own user, root, and those of --allow-peer"
    if address.socket:
        return (
            "start one with 'forkd daemon', or 'forkd machine start' where KVM is missing; "
            "or say where it is by $FORKD_URL or url="
        )
    return "compare $FORKD_URL or url= with where the daemon serves"
