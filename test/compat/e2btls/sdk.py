"""The cases in Python. run.py starts this program and reads a line of JSON for each case."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import tempfile
import time
import urllib.request

import websockets.sync.client
from e2b import AsyncSandbox, BuildException, Sandbox, Template
from e2b_code_interpreter import Sandbox as Interpreter

from cases import case, want

SERVER = """
import asyncio, http, websockets
async def echo(ws):
    async for m in ws: await ws.send(ws.request.headers['Host'] + ' ' + m)
def plain(ws, request):
    if request.path == '/plain': return ws.respond(http.HTTPStatus.OK, request.headers['Host'])
async def main():
    async with websockets.serve(echo, '127.0.0.1', PORT, process_request=plain): await asyncio.Future()
asyncio.run(main())
"""


def reachable(sandbox, *ports: int) -> None:
    """Checks that the host names of a sandbox lead to this host."""
    with open("/etc/hosts", "a") as f:
        for port in ports:
            f.write(f"127.0.0.1 {sandbox.get_host(port).split(':')[0]}\n")


s = Sandbox.create(timeout=600)
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
reachable(s, 49983, port)
tls = ssl.create_default_context()  # uses $SSL_CERT_FILE


def files() -> None:
    path = f"/tmp/e2b-tls-{s.sandbox_id}"
    s.files.write(path, "hello")
    want(s.files.read(path) == "hello", "read")
    url = s.download_url(path, use_signature_expiration=600)
    want(url.startswith("https://49983-" + s.sandbox_id + "." + os.environ["E2B_DOMAIN"]), url)
    want(urllib.request.urlopen(url, context=tls).read() == b"hello", "signed URL")
    s.files.remove(path)


def commands() -> None:
    want(s.commands.run("echo out; echo err >&2").stdout == "out\n", "run")
    h = s.commands.run("head -c 2", background=True, stdin=True)
    s.commands.send_stdin(h.pid, "in")
    want(h.wait().stdout == "in", "stdin")


def servers() -> None:
    server = s.commands.run(f"exec {sys.executable} -c \"{SERVER.replace('PORT', str(port))}\"", background=True, timeout=0)
    host = s.get_host(port)
    for _ in range(600):
        try:
            got = urllib.request.urlopen(f"https://{host}/plain", context=tls).read().decode()
            break
        except urllib.error.HTTPError as e:
            want(e.code == 502, e)
            time.sleep(0.1)
    want(got == host, got)
    with websockets.sync.client.connect(f"wss://{host}/", ssl=tls) as ws:
        ws.send("hi")
        want((got := ws.recv()) == f"{host} hi", got)
    server.kill()  # a process of this host, which survives the end of a fake VM


def code() -> None:
    i = Interpreter.create("base", timeout=600)
    reachable(i, 49983, 49999)
    want((got := i.run_code("1 + 1")).text == "2", got)
    want(i.kill(), "kill")


def builds() -> None:
    """Builds a template from a Dockerfile. Its steps have the file system of this host."""
    with tempfile.TemporaryDirectory() as there, tempfile.TemporaryDirectory() as context:
        os.makedirs(f"{context}/src/sub")
        for name in ("one", "sub/two", "left-out"):
            with open(f"{context}/src/{name}", "w") as f:
                f.write(name + "\n")
        template = Template(file_context_path=context, file_ignore_patterns=["src/left-out"]).from_dockerfile(
            f"FROM e2bdev/base\nENV HOME=/nonexistent WORD=given\nUSER root\nWORKDIR {there}/app\n"
            "COPY --chmod=600 src .\nCOPY src/one other/\nRUN echo $WORD; find . -type f | sort; cat other/one\nCMD sleep 30\n")
        logs: list = []
        info = Template.build(template, "made", on_build_logs=logs.append)
        text = "".join(e.message + "\n" for e in logs)
        want("given\n./one\n./other/one\n./sub/two\none\n" in text, text)
        if not os.environ.get("COMPAT_AGE"):  # older packages do not read --chmod
            want(os.stat(f"{there}/app/sub/two").st_mode & 0o777 == 0o600, "mode")
    want(info.template_id == info.name == "made" and Template.exists("made"), info)
    want([t.tag for t in Template.get_tags("made")] == ["default"], "tags")
    Sandbox.create("made", timeout=60).kill()
    try:
        Template.build(Template().from_template("base").run_cmd("true").run_cmd("exit 9"), "made", on_build_logs=logs.append)
    except BuildException as e:
        want("exit status 9" in str(e), e)
    else:
        raise AssertionError("no BuildException")


async def as_async() -> None:
    a = await AsyncSandbox.create(timeout=600)
    reachable(a, 49983)
    many = await asyncio.gather(*[a.commands.run(f"echo {n}") for n in range(20)])
    want([m.stdout for m in many] == [f"{n}\n" for n in range(20)], many)
    want(await a.kill() and not await a.is_running(), "kill")


case("Python: files, signed URL", files)
case("Python: commands", commands)
case("Python: a server in the sandbox, by HTTP/1.1 and a WebSocket", servers)
case("Python: run_code", code)
case("AsyncSandbox: streams at once", lambda: asyncio.run(as_async()))
case("Python: Template.build", builds)
case("Python: kill", lambda: want(s.kill() and not s.is_running(), "kill"))
