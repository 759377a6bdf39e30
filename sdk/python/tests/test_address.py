"""The SDK finds the daemon in the same places as the command forkd."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from forkd import Client, ConnectionFailedError, InvalidArgumentError, Sandbox
from forkd._address import locate


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "TOKEN", "CA", "CERT", "KEY", "MACHINE", "CACHE"):
        monkeypatch.delenv("FORKD_" + name, raising=False)
    monkeypatch.setenv("FORKD_CACHE", str(tmp_path))


def test_named_then_environment_then_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert locate().url == "unix:///run/forkd/forkd.sock"
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert locate().url == "unix:///run/user/1000/forkd/forkd.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    monkeypatch.delenv("TMPDIR", raising=False)
    assert locate().url == "unix:///tmp/forkd-run-1000/forkd/forkd.sock"
    monkeypatch.setenv("FORKD_URL", "http://there:1")
    monkeypatch.setenv("FORKD_TOKEN", "secret")
    assert (locate().url, locate().token) == ("http://there:1", "secret")
    assert (locate("http://here:1").url, locate("http://here:1", "").token) == ("http://here:1", "")
    assert "secret" not in repr(locate())


@pytest.mark.parametrize("which", ["forkd-run-UID", "forkd-run-UID/forkd", "xdg/forkd"])
def test_the_directory_of_the_default_socket_is_of_this_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str
) -> None:
    mine = os.getuid() or 1000  # root's own directory is not below this one
    monkeypatch.setattr(os, "getuid", lambda: mine)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "xdg") if "xdg" in which else "")
    directory = tmp_path / which.replace("UID", str(mine))
    run = directory if directory.name == "forkd" else directory / "forkd"
    assert locate().url == f"unix://{run}/forkd.sock", "nothing is there yet"
    run.mkdir(parents=True)
    assert locate().url == f"unix://{run}/forkd.sock"

    def refused() -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{directory} may be another user's.* Remove it") as caught:
            locate()
        assert caught.value.field == "url"
        assert locate(f"unix://{run}/forkd.sock").url, "the caller has named it"

    for mode in (0o775, 0o757):
        directory.chmod(mode)
        refused()
    directory.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(directory, mine + 1, -1)
        refused()
        os.chown(directory, mine, -1)
        assert locate().url == f"unix://{run}/forkd.sock"
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "moved")
    refused()


def test_emulated_host_that_runs(tmp_path: Path) -> None:
    home = tmp_path / "machine" / "default"
    (home / "daemon").mkdir(parents=True)
    (home / "state.json").write_text(json.dumps({"phase": "ready", "daemon_addr": "127.0.0.1:4711"}))
    (home / "daemon" / "token").write_text("its token\n")
    (home / "supervisor.lock").touch()
    assert locate().url.startswith("unix://"), "no supervisor holds the lock"
    with open(home / "supervisor.lock", "r+b") as f:
        fcntl.fcntl(f, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # F_OFD_SETLK
        assert (locate().url, locate().token) == ("http://127.0.0.1:4711", "its token")
        (home / "state.json").write_text(json.dumps({"phase": "starting", "daemon_addr": "127.0.0.1:4711"}))
        assert locate().url.startswith("unix://")


def test_unix_socket_needs_no_token(rig: Any) -> None:
    with Client(rig.socket) as client:
        assert client.version().version == "test"
        with Sandbox.create(rig.snapshot, client=client) as sandbox:
            assert sandbox.commands.run(["echo", "hi"]).stdout == "hi\n"
            assert sandbox.commands.start(["echo", "hi"]).wait().stdout == "hi\n"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # httpcore2 leaves its socket to the collector
def test_no_daemon_says_where_it_looked_and_that_nothing_was_sent(tmp_path: Path) -> None:
    with Client(f"unix://{tmp_path}/none.sock") as client:
        assert not client.healthy()
        with pytest.raises(ConnectionFailedError) as caught:
            client.version()
    assert caught.value.happened == "no" and f"unix://{tmp_path}/none.sock" in str(caught.value)
    assert "forkd daemon" in (caught.value.fix or "") and isinstance(caught.value, ConnectionError)
    del caught
    gc.collect()


def test_a_wrong_token(rig: Any) -> None:
    from forkd.errors import UnauthenticatedError

    with Client(rig.url, token="wrong") as client, pytest.raises(UnauthenticatedError) as caught:
        client.version()
    assert caught.value.status == 401 and caught.value.fix and caught.value.request_id


def test_tls_with_an_authority_and_a_certificate_of_the_client(rig: Any, tmp_path: Path) -> None:
    import ssl
    import threading

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=tmp_path)

    openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=ca",
        "-days",
        "2",
    )
    for name in ("server", "client"):
        openssl(
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        (tmp_path / "ext").write_text("subjectAltName=IP:127.0.0.1")
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            f"{name}.pem",
            "-days",
            "2",
            "-extfile",
            "ext",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "12")
            self.end_headers()
            self.wfile.write(b'{"ok": true}')

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *a: None  # type: ignore[method-assign]  # some are refused
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}"
        ca, cert, key = (str(tmp_path / f) for f in ("ca.pem", "client.pem", "client.key"))
        with (
            Client(url, ca=ca, cert=cert, key=key, retries=0) as good,
            Client(url, ca=ca, retries=0) as none,
            Client(url, retries=0) as untrusted,
        ):
            assert good.healthy()
            assert not none.healthy()
            with pytest.raises(ConnectionFailedError, match="certificate"):
                untrusted.version()
        server.shutdown()
