"""The Python package e2b: every public method of Sandbox and of its commands, files and terminals, both
sync and async."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone

os.environ.update(E2B_API_URL=os.environ["FORKD_URL"], E2B_SANDBOX_URL=os.environ["FORKD_URL"],
                  E2B_API_KEY=os.environ["FORKD_TOKEN"], E2B_VALIDATE_API_KEY="false")

from e2b import AsyncSandbox, AuthenticationException, CommandExitException, NotFoundException, Sandbox, SandboxException  # noqa: E402
from e2b import BuildException, InvalidArgumentException, PtySize, SandboxQuery, SandboxState, Template  # noqa: E402
from e2b import TimeoutException  # noqa: E402
from e2b.sandbox_sync.commands.command import Commands  # noqa: E402
from e2b.sandbox_sync.commands.pty import Pty  # noqa: E402
from e2b.sandbox_sync.filesystem.filesystem import Filesystem  # noqa: E402
from report import AGE, TAG, NotApplicable, Report, offers, want  # noqa: E402

r = Report("e2b (PyPI)")
used: set[str] = set()
SLOW = 120  # seconds that the emulated host may take


CLASSES = {c.__name__: c for c in (Sandbox, Commands, Pty, Filesystem, Template)}


def methods(*classes: type) -> set[str]:
    return {f"{c.__name__}.{n}" for c in classes for n in dir(c) if not n.startswith("_") and callable(getattr(c, n))}


def case(covers: str, run) -> object:
    """A case that uses public methods, such as "Sandbox.create Sandbox.kill"."""
    names = [n.strip(",") for n in covers.split()]
    used.update(names)

    def offered() -> None:
        for name in names:
            cls, _, method = name.partition(".")
            if method:
                offers(CLASSES[cls], method)
        run()

    return r.case(covers, offered)


def raises(kind: type, call, text: str = "") -> None:
    try:
        call()
    except kind as e:
        want(text in str(e), e)
        return
    raise AssertionError(f"no {kind.__name__}")


s = Sandbox.create(TAG, timeout=600, metadata={"suite": "compat", "a b": "c&d=é"}, envs={"GIVEN": "at creation"}, request_timeout=SLOW)
print("sandbox", s.sandbox_id)


def created() -> None:
    want(s.sandbox_id.startswith("sb-"), s.sandbox_id)
    raises(SandboxException, lambda: Sandbox.create("no-such-template"), "404")
    raises(AuthenticationException, lambda: Sandbox.create(TAG, api_key="e2b_00"))
    raises(SandboxException, lambda: Sandbox.create(TAG, volume_mounts={"/data": "none-such"}), "not found")


def info() -> None:
    i = s.get_info()
    want(i.sandbox_id == s.sandbox_id and i.template_id == TAG and i.state == SandboxState.RUNNING, i)
    want(i.metadata == {"suite": "compat", "a b": "c&d=é"} and i.end_at > i.started_at and i.cpu_count >= 1, i)
    want(Sandbox.get_info(s.sandbox_id).sandbox_id == s.sandbox_id, "by id")
    raises(NotFoundException, lambda: Sandbox.get_info("sb-none"))


def listed() -> None:
    pages = Sandbox.list(query=SandboxQuery(metadata={"a b": "c&d=é"}, state=[SandboxState.RUNNING]), limit=1)
    found = []
    while pages.has_next:
        found += pages.next_items()
    want([i.sandbox_id for i in found] == [s.sandbox_id], found)
    want(Sandbox.list(query=SandboxQuery(metadata={"no": "such"})).next_items() == [], "by other metadata")


def timeouts() -> None:
    s.set_timeout(900)
    later = s.get_info().end_at
    Sandbox.connect(s.sandbox_id, timeout=10)
    want(s.get_info().end_at == later, "connect has shortened the time")
    Sandbox.connect(s.sandbox_id, timeout=2000)
    want(s.get_info().end_at > later and s.is_running(), "connect has not given more time")


def connected() -> None:
    again = Sandbox.connect(s.sandbox_id)
    if AGE:
        raise NotApplicable(f"the package of {AGE} forgets which sandbox it is if E2B_SANDBOX_URL is set: docs/e2b.md")
    want(again.commands.run("echo $GIVEN").stdout == "at creation\n", "another sandbox")


def volumes() -> None:
    try:
        from e2b import Volume, VolumeException, VolumeNotFoundException
    except ImportError as e:
        raise NotApplicable(f"this version of the package has no volumes: {e}") from e
    made = Volume.create("compat-e2b")
    try:
        want(made.name == "compat-e2b" and made.volume_id and made.token, made)
        want([(v.volume_id, v.name) for v in Volume.list() if v.name == made.name] == [(made.volume_id, made.name)], "list")
        want(Volume.get_info(made.volume_id).name == Volume.connect(made.volume_id).name == made.name, "get_info, connect")
        raises(VolumeException, lambda: Volume.create(made.name), "exists")
        raises(VolumeNotFoundException, lambda: Volume.get_info("vol-none"))
        # The template has no volume slots, so the daemon has received the mount and says what is missing.
        raises(SandboxException, lambda: Sandbox.create(TAG, volume_mounts={"/data": made}), "--volume-slots")
        here = os.environ["FORKD_URL"]
        volume_files(made, here)
    finally:
        want(Volume.destroy(made.volume_id), "destroy")
    want(not Volume.destroy(made.volume_id), "destroyed twice")


def volume_files(made: "Volume", here: str) -> None:
    raises(NotFoundException, lambda: made.get_info("/d/a", api_url=here))
    at = made.write_file("/d/a", "text", mode=0o640, force=True, api_url=here)
    want(at.path == "/d/a" and at.name == "a" and at.size == 4 and at.mode == 0o640 and at.type.value == "file", at)
    want(made.read_file("/d/a", api_url=here) == "text", "read_file")
    want([(e.path, e.type.value) for e in made.list("/d", api_url=here)] == [("/d/a", "file")], "list")
    want(made.update_metadata("/d/a", mode=0o600, api_url=here).mode == 0o600, "update_metadata")
    want(made.make_dir("/e", api_url=here).type.value == "directory" and made.exists("/e", api_url=here), "make_dir")
    made.remove("/d", api_url=here)
    want(not made.exists("/d/a", api_url=here), "remove")


def short_life() -> None:
    brief = Sandbox.create(TAG, timeout=60)
    want(brief.is_running(), "it does not run")
    brief.set_timeout(0)
    for _ in range(100):
        if not brief.is_running():
            break
    want(not brief.is_running() and not brief.kill(), "it is still there")


def ran() -> None:
    got = s.commands.run("echo out; echo err >&2; pwd; echo $X", envs={"X": "call"}, cwd="/tmp")
    want(got.stdout == "out\n/tmp\ncall\n" and got.stderr == "err\n" and got.exit_code == 0, got)
    raises(CommandExitException, lambda: s.commands.run("exit 7"), "7")
    raises(TimeoutException, lambda: s.commands.run("sleep 60", timeout=1))
    seen: list[str] = []
    s.commands.run("echo a; echo b", on_stdout=seen.append)
    want("".join(seen) == "a\nb\n", seen)
    want(s.commands.run("id -un", user="root").stdout == "root\n", "user")
    raises(InvalidArgumentException, lambda: s.commands.run("true", cwd="/no/such"))


def background() -> None:
    h = s.commands.run("head -n 1; echo end", background=True, stdin=True)
    want(any(p.pid == h.pid and p.args[-1] == "head -n 1; echo end" for p in s.commands.list()), "not listed")
    h.disconnect()
    h = s.commands.connect(h.pid)
    s.commands.send_stdin(h.pid, "one\n")
    want(h.wait().stdout == "one\nend\n", "its output")
    h = s.commands.run("sleep 1000", background=True)
    want(s.commands.kill(h.pid) and not s.commands.kill(2_000_000), "kill")
    raises(CommandExitException, h.wait)


def input_ends() -> None:
    h = s.commands.run("cat; echo end", background=True, stdin=True)
    s.commands.stream_input(h.pid, ["two\n", "three\n"])
    s.commands.close_stdin(h.pid)
    want(h.wait().stdout == "two\nthree\nend\n", "its output")


def terminal() -> None:
    h = s.pty.create(PtySize(rows=24, cols=80), timeout=SLOW)
    s.pty.resize(h.pid, PtySize(rows=40, cols=100))
    s.pty.send_stdin(h.pid, b"stty size\n")
    s.pty.send_stdin(h.pid, b"exit\n")
    out = b""
    again = s.pty.connect(h.pid)
    again.disconnect()
    for stdout, stderr, pty in h:
        out += pty or b""
    want(b"40 100" in out, out)
    h = s.pty.create(PtySize(rows=24, cols=80))
    want(s.pty.kill(h.pid) and not s.pty.kill(2_000_000), "kill")


def terminal_input() -> None:
    h = s.pty.create(PtySize(rows=24, cols=80), timeout=SLOW)
    s.pty.stream_input(h.pid, [b"echo a$((1))b\n", b"exit\n"])
    want(b"a1b" in b"".join(pty or b"" for _, _, pty in h), "its output")


def files() -> None:
    got = s.files.write("/tmp/dir/a.txt", "hello")
    want(got.path == "/tmp/dir/a.txt" and s.files.read("/tmp/dir/a.txt") == "hello", got)
    s.files.write("/tmp/dir/big", b"x" * 5_000_000)
    want(len(s.files.read("/tmp/dir/big", format="bytes")) == 5_000_000, "large file")
    want(b"".join(s.files.read("/tmp/dir/a.txt", format="stream")) == b"hello", "stream")
    s.files.write("/tmp/dir/a.txt", b"raw", gzip=True)
    both = s.files.write_files([{"path": "/tmp/dir/b", "data": "b"}, {"path": "/tmp/dir/c", "data": "c"}])
    want([f.name for f in both] == ["b", "c"], both)
    want([e.name for e in s.files.list("/tmp/dir")] == ["a.txt", "b", "big", "c"], s.files.list("/tmp/dir"))
    want(s.files.exists("/tmp/dir/b") and not s.files.exists("/tmp/dir/none"), "exists")
    want(s.files.rename("/tmp/dir/b", "/tmp/dir/d").path == "/tmp/dir/d", "rename")
    want(s.files.make_dir("/tmp/made") and not s.files.make_dir("/tmp/made"), "make_dir")
    s.files.remove("/tmp/dir/c")
    i = s.files.get_info("/tmp/dir/a.txt")
    want(i.size == 3 and i.owner == "user" and i.permissions == "-rw-r--r--", i)
    raises(NotFoundException, lambda: s.files.read("/tmp/none"))


def file_metadata() -> None:
    offers(Filesystem, "write", "metadata")
    s.files.write("/tmp/dir/meta", "m", metadata={"k": "v"})
    want(s.files.get_info("/tmp/dir/meta").metadata == {"k": "v"}, "metadata")


def watch() -> None:
    w = s.files.watch_dir("/tmp/made", recursive=True)
    s.files.write("/tmp/made/new", "x")
    seen: list = []
    for _ in range(200):
        seen += w.get_new_events()
        if seen:
            break
    want(any(e.name == "new" for e in seen), seen)
    w.stop()


def signed() -> None:
    def fetch(url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=SLOW) as answer:
            return answer.read()

    want(fetch(s.download_url("/tmp/dir/a.txt", use_signature_expiration=600)) == b"raw", "signed")
    try:
        fetch(s.download_url("/tmp/dir/a.txt") + "0")
    except urllib.error.HTTPError as e:
        want(e.code == 401, e)
    else:
        raise AssertionError("a forged signature was taken")
    want("signature=" in s.upload_url("/tmp/up"), "upload URL")


def metrics() -> None:
    every = s.get_metrics(start=datetime.now(timezone.utc) - timedelta(minutes=5))
    for m in every:
        want(m.mem_total > m.mem_used > 0 and m.disk_total > 0 and m.cpu_count >= 1, m)
    times = [m.timestamp for m in every]
    want(times == sorted(times) and every[-1].disk_used > 0, every)
    hour = timedelta(hours=1)
    want(s.get_metrics(start=times[0] - 2 * hour, end=times[0] - hour) == [], "before the sandbox")


def network() -> None:
    s.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["192.0.2.99"]})
    got = s.get_info().network
    want(got["allow_out"] == ["192.0.2.99"] and got["deny_out"] == ["0.0.0.0/0"], got)
    raises(SandboxException, lambda: s.update_network({"deny_out": ["no rule!"]}), "400")


def pause() -> None:
    h = s.commands.run("sleep 5000", background=True, timeout=0)
    pid = h.pid
    paused, again = s.pause(), s.beta_pause()
    want(paused is True and again is False or AGE and paused is None, "pause, twice")
    want(not s.is_running() and s.get_info().state == SandboxState.PAUSED, "it is not paused")
    s.connect(timeout=600, request_timeout=SLOW)
    want(s.is_running() and s.commands.kill(pid), "its process is gone")


def fork_of_paused() -> None:
    s.pause()
    copy = s.fork(timeout=600)[0]
    want(copy.files.read("/tmp/dir/a.txt") == "raw" and s.get_info().state == SandboxState.PAUSED, "it was woken")
    copy.kill()
    s.connect(timeout=600, request_timeout=SLOW)


def forks() -> None:
    s.files.write("/tmp/mark", "before")
    a, b = s.fork(count=2, timeout=300)
    a.files.write("/tmp/mark", "a")
    want((a.files.read("/tmp/mark"), b.files.read("/tmp/mark"), s.files.read("/tmp/mark")) == ("a", "before", "before"), "shared disk")
    want(a.get_info().metadata["suite"] == "compat", "metadata")
    a.kill()
    b.kill()


def snapshots() -> None:
    s.files.write("/tmp/mark", "before")
    snap = s.create_snapshot("compat-e2b-snap")
    want([i.snapshot_id for i in s.list_snapshots().next_items()] == [snap.snapshot_id], "not listed")
    child = Sandbox.create(snap.snapshot_id)
    want(child.files.read("/tmp/mark") == "before", "its disk")
    child.kill()
    want(Sandbox.delete_snapshot(snap.snapshot_id) and not Sandbox.delete_snapshot(snap.snapshot_id), "delete")


def hosts() -> None:
    want(s.get_host(8000).startswith(f"8000-{s.sandbox_id}."), s.get_host(8000))
    want(s.get_mcp_url(), "MCP URL")


def ended() -> None:
    want(s.kill() and not s.kill() and not Sandbox.kill(s.sandbox_id), "kill")
    want(not s.is_running(), "it runs")
    raises(NotFoundException, lambda: Sandbox.connect(s.sandbox_id))


def mcp() -> None:
    raise NotApplicable("no image here has E2B's MCP gateway")


async def as_async() -> None:
    a = await AsyncSandbox.create(TAG, timeout=300, request_timeout=SLOW)
    want((await a.commands.run("echo hi")).stdout == "hi\n", "run")
    await a.files.write("/tmp/x", "x")
    want(await a.files.read("/tmp/x") == "x" and await a.files.exists("/tmp/x"), "files")
    seen: list = []
    w = await a.files.watch_dir("/tmp", on_event=seen.append)
    await a.files.write("/tmp/y", "y")
    for _ in range(600):
        if seen:
            break
        await asyncio.sleep(0.1)
    await w.stop()
    want(seen, "no event")
    out: list[bytes] = []
    p = await a.pty.create(PtySize(rows=24, cols=80), on_data=out.append)
    await a.pty.send_stdin(p.pid, b"exit 0\n")
    await p.wait()
    h = await a.commands.run("head -n 1", background=True, stdin=True)
    await a.commands.send_stdin(h.pid, "in\n")
    want((await h.wait()).stdout == "in\n", "stdin")
    many = await asyncio.gather(*[a.commands.run(f"echo {n}") for n in range(10)])
    want([m.stdout for m in many] == [f"{n}\n" for n in range(10)], many)
    want((await a.get_info()).template_id == TAG and await a.is_running(), "info")
    await a.set_timeout(200)
    want(len(await a.get_metrics()) >= 1, "metrics")
    snap = await a.create_snapshot()
    want(await AsyncSandbox.delete_snapshot(snap.snapshot_id), "snapshot")
    await a.pause()
    want(not await a.is_running(), "pause")
    await a.connect()
    want(await a.kill() and not await a.is_running(), "kill")


async def fork_async() -> None:
    a = await AsyncSandbox.create(TAG, timeout=300, request_timeout=SLOW)
    h = await a.commands.run("cat", background=True, stdin=True)
    await a.commands.send_stdin(h.pid, "in")
    await a.commands.close_stdin(h.pid)
    want((await h.wait()).stdout == "in", "stdin")
    b = (await a.fork())[0]
    want(await b.kill() and await a.kill(), "kill")


BUILT = "compat-e2b-built"
FROM = os.environ.get("COMPAT_CONTRACT_TAG", TAG)  # the smaller parent, if there are two; each step of a build copies it
READY = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8000/page\")'"


def built() -> None:
    logs: list = []
    with tempfile.TemporaryDirectory() as context:
        os.mkdir(f"{context}/site")
        with open(f"{context}/site/page", "w") as f:
            f.write("hello\n")
        template = (Template(file_context_path=context).from_template(FROM).skip_cache()
                    .run_cmd("id -un; pwd").set_envs({"WORD": "given"}).set_user("maker").run_cmd("echo $WORD to $(id -un)")
                    .set_workdir("/srv/site").copy("site/*", ".").remove("/srv/site/none", force=True)
                    .run_cmd("id -un; stat -c %U page", user="root")
                    .set_start_cmd("exec python3 -m http.server 8000", READY))
        info = Template.build(template, BUILT, on_build_logs=logs.append, request_timeout=SLOW)
    text = "".join(e.message + "\n" for e in logs)
    want("user\n/home/user\n" in text and "given to maker\n" in text and "root\nmaker\n" in text, text)
    want(info.template_id == BUILT and Template.exists(BUILT) and Template.alias_exists(BUILT), info)
    want([t.tag for t in Template.get_tags(BUILT)] == ["default"], "tags")
    want(Template.assign_tags(BUILT, ["v1", "stable"]).tags == ["v1", "stable"], "assigned tags")
    want(sorted(t.tag for t in Template.get_tags(BUILT)) == ["default", "stable", "v1"], "tags")
    with Sandbox.create(f"{BUILT}:stable") as tagged:
        want(tagged.commands.run("true").exit_code == 0, "a sandbox of a tag")
    Template.remove_tags(BUILT, ["v1", "stable"])
    want([t.tag for t in Template.get_tags(BUILT)] == ["default"], "tags")
    child = Sandbox.create(BUILT, timeout=300, request_timeout=SLOW)
    want(child.commands.run("id -un; pwd; echo $WORD").stdout == "maker\n/srv/site\ngiven\n", "its defaults")
    fetched = child.commands.run("python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000/page\").read())'")
    want(fetched.stdout == "b'hello\\n'\n", fetched)  # from the server that was started only once
    child.kill()


def build_fails() -> None:
    build = Template.build_in_background(Template().from_template(FROM).run_cmd("true").run_cmd("echo why; exit 9"), BUILT)
    for _ in range(10 * SLOW):
        status = Template.get_build_status(build)
        if status.status not in ("waiting", "building"):
            break
        time.sleep(0.1)
    want(status.status == "error" and status.reason.step == "2" and "exit status 9" in status.reason.message, status)
    want(any(e.message == "why" for e in status.log_entries), status)
    want(Template.exists(BUILT), "what was there has gone")
    want(Sandbox.delete_snapshot(BUILT), "delete")
    raises(BuildException, lambda: Template.build(Template().from_template("no-such"), BUILT), "404")


case("Sandbox.create", created)
case("Sandbox.get_info", info)
case("Sandbox.list", listed)
case("Sandbox.set_timeout Sandbox.connect Sandbox.is_running", timeouts)
case("Sandbox.connect, what it returns", connected)
case("Sandbox.set_timeout, its end", short_life)
case("Volume", volumes)
case("Commands.run", ran)
case("Commands.list Commands.connect Commands.send_stdin Commands.kill", background)
case("Commands.stream_input Commands.close_stdin", input_ends)
case("Pty.create Pty.resize Pty.send_stdin Pty.connect Pty.kill", terminal)
case("Pty.stream_input", terminal_input)
case("Filesystem.write Filesystem.write_files Filesystem.read Filesystem.list Filesystem.exists Filesystem.get_info "
     "Filesystem.rename Filesystem.make_dir Filesystem.remove", files)
case("Filesystem.write, metadata", file_metadata)
case("Filesystem.watch_dir", watch)
case("Sandbox.download_url Sandbox.upload_url", signed)
case("Sandbox.get_metrics", metrics)
case("Sandbox.update_network", network)
case("Sandbox.pause Sandbox.beta_pause", pause)
case("Sandbox.fork, of a paused one", fork_of_paused)
case("Sandbox.fork, of one that runs", forks)
case("Sandbox.create_snapshot Sandbox.list_snapshots Sandbox.delete_snapshot", snapshots)
case("Sandbox.get_host Sandbox.get_mcp_url", hosts)
case("Sandbox.get_mcp_token", mcp)
case("Template.exists", lambda: want(Template.exists(TAG) and not Template.exists("no-such"), "exists"))
case("Template.build Template.alias_exists Template.get_tags Template.assign_tags Template.remove_tags", built)
case("Template.build_in_background Template.get_build_status", build_fails)
case("AsyncSandbox", lambda: asyncio.run(as_async()))
case("AsyncSandbox, Commands.close_stdin Sandbox.fork", lambda: asyncio.run(fork_async()))
case("Sandbox.kill", ended)
r.covered("method of Sandbox, Commands, Pty and Filesystem", methods(Sandbox, Commands, Pty, Filesystem), used)
r.finish()
