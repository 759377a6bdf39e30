"""Tests with a daemon that is busy, away, or restarted in the middle of a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from forkd import Client, ConnectionFailedError, Sandbox, StreamBrokenError
from forkd._answers import error_of
from forkd.errors import BusyError, NoSuchRouteError, TooManyRequestsError


@pytest.fixture
def impatient(rig: Any) -> Iterator[Client]:
    """A client with an idle limit of two seconds; the daemon sends a message every second."""
    with Client(rig.url, token=rig.token) as client:
        client._transport.idle = 2
        yield client


def test_a_daemon_without_a_route_may_be_older() -> None:
    error = error_of(404, {}, b'{"error": "POST /v1/x: no such route", "code": "no_such_route"}')
    assert isinstance(error, NoSuchRouteError) and "no such route: the daemon may be older" in str(error)
    assert "older" not in str(error_of(404, {}, b'{"error": "no such sandbox", "code": "sandbox_not_found"}'))


def test_a_busy_daemon_is_asked_again_when_it_says(rig: Any, client: Client) -> None:
    rig.fault(clear=True, requests={"status": 503, "retry_after": 1, "times": 2, "path": "^/v1/forks$"})
    began = time.monotonic()
    with client.fork(rig.snapshot):
        pass
    assert rig.seen("POST /v1/forks") == 3 and time.monotonic() - began >= 2
    rig.fault(clear=True, requests={"status": 429, "retry_after": 1, "times": 1, "path": "^/v1/sandboxes$"})
    client.sandboxes()
    assert rig.seen("GET /v1/sandboxes") == 2


def test_not_more_often_than_retries_nor_without_a_time(rig: Any, client: Client) -> None:
    rig.fault(clear=True, requests={"status": 503, "retry_after": 1, "times": 5, "path": "^/v1/forks$"})
    with Client(rig.url, token=rig.token, retries=1) as once, pytest.raises(BusyError) as caught:
        once.fork(rig.snapshot)
    assert rig.seen("POST /v1/forks") == 2 and caught.value.retry_after == 1 and caught.value.status == 503
    rig.fault(clear=True, requests={"status": 429, "times": 1, "path": "^/v1/forks$"})
    with pytest.raises(TooManyRequestsError):
        client.fork(rig.snapshot)
    assert rig.seen("POST /v1/forks") == 1


def test_nothing_is_asked_again_that_would_be_done_twice(rig: Any, sandbox: Sandbox) -> None:
    rig.fault(clear=True, requests={"status": 503, "retry_after": 1, "times": 1, "path": "/exec$"})
    with pytest.raises(BusyError):
        sandbox.commands.run("true")
    assert rig.seen(f"POST /v1/sandboxes/{sandbox.id}/exec") == 1
    rig.fault(clear=True, requests={"after_bytes": 1, "times": 1, "path": "/pause$"})
    with pytest.raises(ConnectionFailedError) as caught:
        sandbox.pause()
    assert caught.value.happened == "unknown" and sandbox.info().state == "paused"


def test_a_fork_whose_answer_is_lost_is_asked_again_and_made_once(rig: Any, client: Client) -> None:
    before = {s.id for s in client.sandboxes()}
    rig.fault(clear=True, requests={"after_bytes": 10, "times": 1, "path": "^/v1/forks$"})
    with client.fork(rig.snapshot, 3) as made:
        assert {s.id for s in client.sandboxes()} - before == {s.id for s in made}
    assert rig.seen("POST /v1/forks") == 2


def test_restart_while_a_request_is_made(rig: Any, client: Client, sandbox: Sandbox) -> None:
    client.sandboxes()  # makes connections, which the restart breaks
    with Client(rig.url, token=rig.token, retries=6) as patient:
        rig.restart(500)
        assert sandbox.id in [s.id for s in patient.sandboxes()]
        with patient.fork(rig.snapshot) as made:
            assert made[0].commands.run("echo here").stdout == "here\n"


def all_events(client: Client) -> None:
    with client.events() as events:
        list(events)


STREAMS = {
    "run": lambda s: s.commands.run("echo begun; exec sleep 100", timeout=900),
    "start": lambda s: s.commands.start("echo begun; exec sleep 100").wait(),
    "code": lambda s: s.run_code("print('begun')\nimport time\ntime.sleep(100)", timeout=900),
    "pty": lambda s: s.pty.create(cmd=["sleep", "100"]).wait(),
    "events": lambda s: all_events(s.client),
    "logs": lambda s: list(s.logs(follow=True)),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_restart_in_the_middle_of_a_stream(rig: Any, sandbox: Sandbox, stream: str) -> None:
    caught: list[Exception] = []

    def follow() -> None:
        try:
            STREAMS[stream](sandbox)
        except Exception as e:
            caught.append(e)

    follower = threading.Thread(target=follow)
    follower.start()
    time.sleep(1)
    rig.restart(100)
    follower.join(30)
    assert len(caught) == 1 and isinstance(caught[0], StreamBrokenError) and "broke off" in str(caught[0]), caught
    if stream in ("start", "pty"):
        assert caught[0].pid, "it is known which process may still run"


def test_events_go_on_after_a_break(rig: Any, sandbox: Sandbox) -> None:
    with pytest.raises(StreamBrokenError) as caught, sandbox.client.events(sandbox=sandbox.id) as events:
        sandbox.set_labels({"first": "one"})
        next(events)
        rig.restart(100)
        list(events)
    rig.wait()
    sandbox.set_labels({"last": "one"})
    with sandbox.client.events(sandbox=sandbox.id, after=caught.value.after) as events:
        assert any((event.labels or {}).get("last") == "one" for event in events)


@pytest.mark.parametrize("cut", ["run", "code"])
@pytest.mark.parametrize("after", [0, 15, 40])
def test_a_cut_stream_is_never_taken_for_an_end(rig: Any, sandbox: Sandbox, cut: str, after: int) -> None:
    rig.fault(requests={"after_bytes": after, "times": 1, "path": "/(exec|code)$"})
    with pytest.raises((StreamBrokenError, ConnectionFailedError)) as caught:
        sandbox.commands.run("echo hello; echo world") if cut == "run" else sandbox.run_code("print('hello world')")
    assert after == 0 or isinstance(caught.value, StreamBrokenError)


@pytest.mark.parametrize("stalled", ["run", "code", "events"])
def test_a_daemon_that_falls_silent(rig: Any, impatient: Client, stalled: str) -> None:
    with Sandbox.create(rig.snapshot, client=impatient) as sandbox:
        rig.fault(requests={"after_bytes": 30, "stall": True, "times": 1, "path": "/(exec|code|events)$"})
        calls = {
            "run": lambda: sandbox.commands.run("echo hello; exec sleep 100", timeout=900),
            "code": lambda: sandbox.run_code("print('hello')", timeout=900),
            "events": lambda: all_events(impatient),
        }
        if stalled == "events":
            threading.Timer(0.5, lambda: sandbox.set_labels({"a": "b"})).start()
        with pytest.raises(StreamBrokenError, match="silent"):
            calls[stalled]()
