"""Docker's clients against the daemon's Docker socket: Debian's command docker, docker-py, testcontainers, the Docker
environment of mini-swe-agent and SWE-bench's harness, all unmodified. AutoGen's executor is refused by name.

docker@rig has faked VMs, whose agents have a copy of this host's files. In an emulated host, a program there (main.go)
carries each connection. Elsewhere $COMPAT_DOCKER_HOST is the socket: unix://PATH.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version

import evaluation
from report import AGE, TAG, Report, Tally, want

FAKED = AGE == "rig"
MACHINE_SOCKET = "/run/forkd-docker.sock"  # see startMachineDaemon in internal/cli
CLI_PACKAGE = "docker.io"

r = Report("Docker's clients: docker (Debian), docker-py 7.2.0, testcontainers 4.15.0, mini-swe-agent 2.4.6, swebench 5.0.2, "
           "autogen-ext 0.7.5")


def client_program() -> str:
    """Debian's docker, unpacked beside this environment. Its daemon is not used."""
    there = os.path.join(sys.prefix, "docker-cli")
    program = os.path.join(there, "usr/bin/docker")
    if not os.path.exists(program):
        shutil.rmtree(there, ignore_errors=True)
        os.makedirs(there)
        os.chmod(there, 0o755)
        download = ["apt-get", "download", CLI_PACKAGE]
        if subprocess.run(download, cwd=there, check=False, capture_output=True).returncode:  # there may be no package lists
            subprocess.run(["apt-get", "update", "-q"], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(download, cwd=there, check=True, stdout=subprocess.DEVNULL)
        package = next(f for f in os.listdir(there) if f.endswith(".deb"))
        subprocess.run(["dpkg-deb", "-x", package, "."], cwd=there, check=True)
        os.remove(os.path.join(there, package))
    return program


def relay(listener: socket.socket, command: list[str]) -> None:
    """Carries each connection through a process of its own."""

    def carry(conn: socket.socket) -> None:
        with conn, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            def send() -> None:
                with contextlib.suppress(OSError), process.stdin as to:
                    while data := conn.recv(65536):
                        to.write(data)
                        to.flush()

            threading.Thread(target=send, daemon=True).start()
            with contextlib.suppress(OSError):
                while data := process.stdout.read1(65536):
                    conn.sendall(data)
                conn.shutdown(socket.SHUT_RDWR)
            process.kill()

    while True:
        try:
            conn, _ = listener.accept()
        except OSError:
            return  # the end of the group
        threading.Thread(target=carry, args=(conn,), daemon=True).start()


@contextlib.contextmanager
def host(scratch: str) -> Iterator[tuple[str, str]]:
    """The socket, and the name of an image."""
    if FAKED:
        import rig

        with rig.isolated(scratch) as said:
            path = said["docker"].removeprefix("unix://")
            # The rig has a file system of its own.
            yield f"unix:///proc/{said['pid']}/root{path}", said["snapshot"]
    elif "COMPAT_EMULATED" in os.environ:
        program, path = os.path.join(scratch, "dial"), os.path.join(scratch, "docker.sock")
        subprocess.run(["go", "build", "-o", program, "./test/compat/docker"], env={**os.environ, "CGO_ENABLED": "0"}, check=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            command = ["forkd", "machine", "exec", "--copy", "--", program, MACHINE_SOCKET]
            threading.Thread(target=relay, args=(listener, command), daemon=True).start()
            yield "unix://" + path, TAG
            listener.shutdown(socket.SHUT_RDWR)
    else:
        yield os.environ["COMPAT_DOCKER_HOST"], TAG


def cli(*args: str, code: int = 0, stdin: str = "") -> str:
    """Runs docker, which must have the exit code, and returns its output."""
    got = subprocess.run([PROGRAM, *args], input=stdin, capture_output=True, text=True, timeout=600)
    want(got.returncode == code, f"docker {' '.join(args)}: exit code {got.returncode}, {got.stdout!r} {got.stderr!r}")
    return got.stdout if code == 0 else got.stdout + got.stderr


def equal(got: object, wanted: object) -> None:
    want(got == wanted, f"got {got!r}, want {wanted!r}")


def has(text: str, part: str) -> None:
    want(part in text, f"{part!r} is not in {text!r}")


@contextlib.contextmanager
def box(*options: str) -> Iterator[str]:
    """A container that does nothing."""
    name = "compat-box"
    subprocess.run([PROGRAM, "rm", "-f", name], capture_output=True)  # an earlier case may have failed
    cli("run", "-d", "--name", name, *options, IMAGE, "sleep", "600")
    try:
        yield name
    finally:
        cli("rm", "-f", name)


# The command docker.


def cli_system() -> None:
    has(cli("version"), "API version")
    has(cli("info"), "Storage Driver: forkd")
    has(cli("images"), IMAGE)
    equal(cli("image", "inspect", "-f", "{{.Os}}/{{.Architecture}}", IMAGE).strip(), "linux/amd64")
    has(cli("image", "inspect", "no-such-image", code=1), "No such image")


def cli_run() -> None:
    equal(cli("run", "--rm", IMAGE, "echo", "hello"), "hello\n")
    equal(cli("run", "--rm", "-e", "A=b c", "-w", "/tmp", IMAGE, "sh", "-c", 'pwd; echo "$A"'), "/tmp\nb c\n")
    has(cli("run", "--rm", IMAGE, "sh", "-c", "echo bad >&2; exit 5", code=5), "bad")
    equal(cli("run", "--rm", "-i", IMAGE, "cat", stdin="x" * 100_000), "x" * 100_000)
    has(cli("run", "--rm", IMAGE, "no-such-command", code=127), "executable file not found")
    equal(cli("ps", "-aq"), "")


def cli_refusals() -> None:
    for args, name in ((["-v", "/tmp:/x"], "HostConfig.Binds"), (["--privileged"], "HostConfig.Privileged"),
                       (["--network", "host"], "HostConfig.NetworkMode"), (["--restart", "always"], "HostConfig.RestartPolicy"),
                       (["--hostname", "x"], "Hostname"), (["--tmpfs", "/x"], "HostConfig.Tmpfs")):
        has(cli("run", *args, IMAGE, "true", code=125), name)
    has(cli("network", "create", "x", code=1), "forkd does not support this")
    has(cli("volume", "create", "x", code=1), "forkd does not support this")
    equal(cli("ps", "-aq"), "")


def cli_exec() -> None:
    with box("-e", "OWN=1", "-w", "/tmp") as name:
        equal(cli("exec", name, "sh", "-c", "pwd; echo $OWN"), "/tmp\n1\n")
        equal(cli("exec", "-i", name, "cat", stdin="input"), "input")
        cli("exec", name, "sh", "-c", "exit 9", code=9)
        equal(cli("exec", "-e", "B=2", "-u", "root", name, "sh", "-c", "echo $B; id -un"), "2\nroot\n")
        has(cli("exec", name, "no-such-command", code=127), "executable file not found")
        cli("exec", "-d", name, "sh", "-c", "echo done >/tmp/compat-detached")
        for _ in range(100):
            if cli("exec", name, "sh", "-c", "cat /tmp/compat-detached 2>/dev/null || :") == "done\n":
                break
            time.sleep(0.1)
        else:
            raise AssertionError("a detached exec has done nothing")
        has(cli("top", name), "sleep 600")
        has(cli("stats", "--no-stream", name), name)


def cli_life() -> None:
    with box("--label", "app=compat", "--stop-timeout", "1") as name:
        equal(cli("ps", "-q", "--filter", "label=app=compat", "--format", "{{.Names}}").strip(), name)
        equal(cli("inspect", "-f", "{{.State.Status}} {{.Config.Cmd}}", name).strip(), "running [sleep 600]")
        cli("pause", name)
        equal(cli("inspect", "-f", "{{.State.Status}}", name).strip(), "paused")
        cli("unpause", name)
        cli("restart", "-t", "1", name)
        cli("stop", name)
        equal(cli("inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", name).strip(), "exited 143")
        cli("start", name)
        cli("kill", name)
        equal(cli("wait", name).strip(), "137")
        cli("rename", name, name + "-2")
        cli("rename", name + "-2", name)
        cli("update", "--cpus", "1.5", name)


def cli_logs() -> None:
    with box() as name:
        cli("rm", "-f", name)
        cli("run", "-d", "--name", name, IMAGE, "sh", "-c", "for i in 1 2 3; do echo line $i; done; echo err >&2; sleep 600")
        for _ in range(100):
            if cli("logs", name).count("line") == 3:
                break
            time.sleep(0.1)
        equal(cli("logs", "--tail", "100", name), "line 1\nline 2\nline 3\n")
        has(cli("logs", "-t", name), "Z line 1")
        cli("kill", name)
        equal(cli("logs", "-f", name), "line 1\nline 2\nline 3\n")


def cli_files() -> None:
    with box() as name, tempfile.TemporaryDirectory() as there:
        os.makedirs(there + "/src/sub")
        for path, text in (("src/a", "one"), ("src/sub/b", "two")):
            with open(f"{there}/{path}", "w") as f:
                f.write(text)
        cli("exec", name, "mkdir", "/tmp/compat-files")
        cli("cp", there + "/src", name + ":/tmp/compat-files/")
        cli("cp", there + "/src/a", name + ":/tmp/compat-files/new")
        equal(cli("exec", name, "sh", "-c", "cd /tmp/compat-files; cat src/a src/sub/b new; find . | wc -l"), "onetwoone6\n")
        cli("cp", name + ":/tmp/compat-files/src", there + "/back")
        with open(there + "/back/sub/b") as f:
            equal(f.read(), "two")
        has(cli("cp", name + ":/no/such/file", there, code=1), "no")
        cli("stop", "-t", "0", name)
        cli("cp", name + ":/tmp/compat-files/new", there + "/later")
        with open(there + "/later") as f:
            equal(f.read(), "one")


def cli_commit() -> None:
    with box() as name:
        cli("exec", name, "sh", "-c", "echo kept >/tmp/compat-kept")
        cli("commit", "-m", "why", name, "compat/made:1")
        cli("tag", "compat/made:1", "compat-also")
        try:
            has(cli("images"), "compat-also")
            equal(cli("run", "--rm", "compat/made:1", "cat", "/tmp/compat-kept"), "kept\n")
            has(cli("history", "compat-also"), "forkd")
        finally:
            cli("rmi", "compat-also")
            cli("rmi", "compat/made:1")
        want("compat" not in cli("images", "--format", "{{.Repository}}").replace(IMAGE, ""), "the image is still there")


def cli_port() -> None:
    with box("-p", "8123") as name:
        address = cli("port", name, "8123").strip()
        has(address, "127.0.0.1:")
        if "COMPAT_EMULATED" in os.environ and not FAKED:
            return  # the port is open in the emulated host
        cli("exec", "-d", name, "python3", "-m", "http.server", "8123", "-d", "/etc")
        for _ in range(100):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/passwd", timeout=10) as answer:
                has(answer.read().decode(), "root")
                return
            time.sleep(0.1)
        raise AssertionError("the server cannot be reached through the published port")


def cli_events() -> None:
    began = str(int(time.time()))
    cli("run", "--rm", "--name", "compat-seen", IMAGE, "true")
    seen = cli("events", "--since", began, "--until", str(int(time.time()) + 1), "--filter", "container=compat-seen")
    for action in ("create", "start", "die"):
        has(seen, "container " + action)


# docker-py.


def py(run) -> None:
    import docker

    client = docker.from_env(timeout=600)
    try:
        run(docker, client)
    finally:
        for c in client.containers.list(all=True, filters={"label": "compat"}):
            c.remove(force=True)
        client.close()


def py_run(docker, c) -> None:
    want(c.ping(), "ping")
    has(c.version()["Platform"]["Name"], "forkd")
    equal(c.containers.run(IMAGE, ["echo", "hi"], remove=True), b"hi\n")
    try:
        c.containers.run(IMAGE, ["sh", "-c", "echo bad >&2; exit 4"], labels=["compat"])
        raise AssertionError("no error")
    except docker.errors.ContainerError as e:
        equal((e.exit_status, e.stderr), (4, b"bad\n"))
    lines = c.containers.run(IMAGE, "sh -c 'for i in 1 2 3; do echo $i; done'", stream=True, labels=["compat"])
    equal(list(lines), [b"1\n", b"2\n", b"3\n"])
    for get in (c.containers.get, c.images.get):
        try:
            get("compat-no-such-thing")
            raise AssertionError("no error")
        except docker.errors.NotFound:
            pass
    try:
        c.containers.create(IMAGE, privileged=True)
        raise AssertionError("no error")
    except docker.errors.APIError as e:
        has(e.explanation, "HostConfig.Privileged")


def started(c, **options):
    """Creates and starts a container in the way of SWE-bench's harness."""
    box = c.containers.create(image=IMAGE, name="compat-py", user="root", detach=True, command="tail -f /dev/null",
                              platform="linux/x86_64", cap_add=[], labels={"compat": "1"}, **options)
    box.start()
    box.reload()
    return box


def py_exec(docker, c) -> None:
    box = started(c, environment={"Q": "7"})
    equal((box.status, box.name), ("running", "compat-py"))
    for _ in range(20):  # docker-py would lose output that arrives together with the header
        got = box.exec_run(["sh", "-c", "echo o; echo e >&2; exit 3"], demux=True)
        equal((got.exit_code, got.output), (3, (b"o\n", b"e\n")))
    equal(box.exec_run("sh -c 'echo $Q'", workdir="/tmp").output, b"7\n")
    equal(list(box.exec_run(["sh", "-c", "echo 1; sleep 0.3; echo 2"], stream=True).output), [b"1\n", b"2\n"])
    has(box.exec_run("tty", tty=True).output.decode(), "/dev/pts/")
    s = box.exec_run("cat", stdin=True, socket=True).output._sock
    s.sendall(b"ping")
    s.shutdown(socket.SHUT_WR)
    equal(s.makefile("rb").read()[8:], b"ping")
    detached = c.api.exec_create(box.id, "sleep 0.3")["Id"]
    c.api.exec_start(detached, detach=True)
    for _ in range(100):
        if not c.api.exec_inspect(detached)["Running"]:
            break
        time.sleep(0.1)
    equal(c.api.exec_inspect(detached)["ExitCode"], 0)
    box.stop(timeout=1)
    equal(box.wait()["StatusCode"], 143)
    box.remove()


def py_files(docker, c) -> None:
    box = started(c)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as t:
        entry = tarfile.TarInfo("patch.diff")
        entry.size = 4
        t.addfile(entry, io.BytesIO(b"diff"))
    equal(box.exec_run("mkdir -p /tmp/compat-py").exit_code, 0)
    want(box.put_archive("/tmp/compat-py", archive.getvalue()), "put_archive")
    bits, stat = box.get_archive("/tmp/compat-py/patch.diff")
    equal((stat["name"], stat["size"]), ("patch.diff", 4))
    with tarfile.open(fileobj=io.BytesIO(b"".join(bits))) as t:
        equal(t.extractfile("patch.diff").read(), b"diff")
    try:
        box.get_archive("/no/such/file")
        raise AssertionError("no error")
    except docker.errors.NotFound:
        pass


def py_rest(docker, c) -> None:
    box = started(c)
    want(box.stats(stream=False)["cpu_stats"]["system_cpu_usage"] > 0, "stats")
    has(str(box.top()["Processes"]), "tail")
    box.update(cpu_shares=512)
    image = box.commit("compat-py-image", "2")
    equal(image.tags, ["compat-py-image.2:latest"])
    want(image.tag("compat-py-also"), "tag")
    c.images.remove("compat-py-also")
    c.images.remove("compat-py-image:2")
    box.kill()
    box.wait()
    equal(c.containers.prune(filters={"label": "compat"})["ContainersDeleted"], [box.id])


# Programs that use them.


def testcontainers() -> None:
    from testcontainers.core.container import DockerContainer

    with DockerContainer(IMAGE).with_command("sh -c 'echo ready; sleep 600'").with_env("A", "b") as box:
        equal(box.exec(["sh", "-c", "echo $A"]).output, b"b\n")
        for _ in range(100):
            if b"ready" in box.get_logs()[0]:
                return
            time.sleep(0.1)
        raise AssertionError(f"logs: {box.get_logs()}")


def mini_swe_agent() -> None:
    from minisweagent.environments.docker import DockerEnvironment

    environment = DockerEnvironment(image=IMAGE, cwd="/tmp", env={"A": "b"}, executable=PROGRAM, interpreter=["bash", "-c"])
    try:
        got = environment.execute({"command": "echo $A; pwd; exit 3"})
        equal((got["output"], got["returncode"]), ("b\n/tmp\n", 3))
    finally:
        name, environment.container_id = environment.container_id, None
        cli("rm", "-f", name)


def swebench(there: str) -> None:
    os.mkdir(there)
    # Containers with faked VMs share their files.
    py(lambda _, client: evaluation.swebench(there, client, IMAGE, 1 if FAKED else 2, equal))


def autogen(there: str) -> None:
    """AutoGen's executor always binds its directory."""
    import docker
    from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor

    os.mkdir(there)
    try:
        asyncio.run(DockerCommandLineCodeExecutor(image=IMAGE, work_dir=there).start())
        raise AssertionError("no error")
    except docker.errors.APIError as e:
        has(e.explanation, "Volumes: forkd does not support this: copy files with docker cp")
    equal(cli("ps", "-aq"), "")


def tell(docker_version: str) -> None:
    """Reports the numbers of each client. The name of a case begins with that of its client."""
    clients = {"docker": docker_version, "docker-py": version("docker"), "testcontainers": version("testcontainers"),
               "mini-swe-agent": version("mini-swe-agent"), "SWE-bench": version("swebench")}
    for client, its in clients.items():
        tally = Tally()
        for case in r.cases:
            if case["name"].split()[0] == client:
                tally.add(case["outcome"])
        r.tool(client, its, tally)


os.environ.update(MSWEA_SILENT_STARTUP="1", TESTCONTAINERS_RYUK_DISABLED="true")
with tempfile.TemporaryDirectory() as scratch:
    os.environ.update(DOCKER_CONFIG=os.path.join(scratch, "config"), MSWEA_GLOBAL_CONFIG_DIR=os.path.join(scratch, "mini"))
    PROGRAM = r.case("the command docker of Debian", client_program)
    os.environ["PATH"] = f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"  # SWE-bench's harness runs docker
    with host(scratch) as (address, IMAGE):
        os.environ["DOCKER_HOST"] = address
        for case in (cli_system, cli_run, cli_refusals, cli_exec, cli_life, cli_logs, cli_files, cli_commit, cli_port, cli_events):
            r.case("docker " + case.__name__.removeprefix("cli_"), case)
        for case in (py_run, py_exec, py_files, py_rest):
            r.case("docker-py " + case.__name__.removeprefix("py_"), lambda case=case: py(case))
        r.case("testcontainers", testcontainers)
        r.case("mini-swe-agent", mini_swe_agent)
        r.case("SWE-bench", lambda: swebench(os.path.join(scratch, "swebench")))
        r.case("AutoGen's executor is refused", lambda: autogen(os.path.join(scratch, "autogen")))
        tell(cli("version", "--format", "{{.Client.Version}}").strip().split("+")[0])
r.finish()
