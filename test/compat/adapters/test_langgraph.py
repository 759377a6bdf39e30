"""The checkpointer for LangGraph: its conformance suite, and machines that go back with the graph."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from conftest import Daemon
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.conformance.capabilities import BASE_CAPABILITIES
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from forkd import Sandbox
from forkd.integrations.langgraph import LABEL, ForkdSaver

# The suite has more checks, for three capabilities that InMemorySaver does not have.
CHECKS = [
    check
    for capability in sorted(BASE_CAPABILITIES)
    for name, checks in vars(
        importlib.import_module(f"langgraph.checkpoint.conformance.spec.test_{capability.value}")
    ).items()
    if name.startswith("ALL_")
    for check in checks
]


@pytest.fixture(scope="module")
def sandbox(daemon: Daemon) -> Iterator[Sandbox]:
    with daemon.sandbox() as sandbox:
        yield sandbox
    for snapshot in sandbox.client.snapshots.list():
        if snapshot.tag.startswith("langgraph-"):
            snapshot.delete(force=True)


@pytest.fixture(scope="module")
def checked(sandbox: Sandbox) -> ForkdSaver:
    return ForkdSaver(InMemorySaver(), sandbox)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_suite(check: Callable[[ForkdSaver], Any], checked: ForkdSaver) -> None:
    await check(checked)


def test_the_suite_is_complete() -> None:
    assert len(CHECKS) == 58


class State(TypedDict):
    steps: Annotated[list[str], operator.add]


@pytest.fixture
def machine(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    with daemon.sandbox() as sandbox:
        sandbox.commands.run("rm -f /tmp/steps")
        yield sandbox
    for snapshot in sandbox.client.snapshots.list():
        if snapshot.tag.startswith("langgraph-"):
            snapshot.delete(force=True)


@pytest.fixture
def rollbacks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tags that the machine was rolled back to. Faked VMs record rollbacks, but change no files."""
    tags: list[str] = []
    real = Sandbox.rollback
    monkeypatch.setattr(Sandbox, "rollback", lambda self, to: (tags.append(to), real(self, to))[1])
    return tags


def graph_of(saver: ForkdSaver, *names: str, asks: str | None = None) -> Any:
    """A graph whose steps write their names into a file of the machine, and into the state."""
    builder = StateGraph(State)

    def step(name: str) -> Callable[[State, RunnableConfig], State]:
        def run(state: State, config: RunnableConfig) -> State:
            sandbox = saver.sandbox(config)
            if name == asks:
                interrupt("go on?")
            sandbox.commands.run(["sh", "-c", 'echo "$0" >>/tmp/steps', name], check=True)
            return {"steps": [name]}

        return run

    for before, name in zip((START, *names), names):
        builder.add_node(name, step(name))
        builder.add_edge(before, name)
    return builder.compile(checkpointer=saver)


def written(sandbox: Sandbox) -> list[str]:
    return sandbox.commands.run("cat /tmp/steps").stdout.split()


def config_of(graph: Any, config: RunnableConfig, *steps: str) -> RunnableConfig:
    """The config of the checkpoint after some steps."""
    return next(
        s.config for s in graph.get_state_history(config) if s.values.get("steps", []) == list(steps) and s.next
    )


THREAD: RunnableConfig = {"configurable": {"thread_id": "one"}}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_the_machine_goes_back_with_the_graph(
    daemon: Daemon, machine: Sandbox, rollbacks: list[str], durability: str
) -> None:
    saver = ForkdSaver(InMemorySaver(), machine)
    graph = graph_of(saver, "a", "b", "c")
    assert graph.invoke({"steps": []}, THREAD, durability=durability)["steps"] == [
        "a",
        "b",
        "c",
    ]
    assert written(machine) == ["a", "b", "c"] and not rollbacks
    if durability == "exit":  # there is only the last checkpoint
        return
    after_a = config_of(graph, THREAD, "a")
    assert graph.get_state(after_a).values["steps"] == ["a"]
    assert written(machine) == ["a", "b", "c"], "looking at a state moves nothing"
    assert graph.invoke(None, after_a, durability=durability)["steps"] == [
        "a",
        "b",
        "c",
    ]
    assert len(rollbacks) == 1
    if daemon.real:
        assert written(machine) == ["a", "b", "c"], "b and c ran again, from the machine after a"
    # An update of an older state rolls the machine back at once.
    graph.update_state(after_a, {"steps": ["updated"]})
    assert len(rollbacks) == 2
    if daemon.real:
        assert written(machine) == ["a"]
        [looked] = saver.fork(config_of(graph, THREAD, "a", "b"))
        assert written(looked) == ["a", "b"]
        looked.kill()


async def test_coroutines(daemon: Daemon, machine: Sandbox, rollbacks: list[str]) -> None:
    saver = ForkdSaver(InMemorySaver(), lambda thread: machine)

    async def run(state: State, config: RunnableConfig) -> State:
        sandbox = await saver.asandbox(config)
        sandbox.commands.run("echo x >>/tmp/steps")
        return {"steps": ["x"]}

    graph = StateGraph(State).add_node("x", run).add_edge(START, "x").compile(checkpointer=saver)
    await graph.ainvoke({"steps": []}, THREAD)
    before = [s.config async for s in graph.aget_state_history(THREAD) if s.next == ("x",)][0]
    for _ in range(2):
        await graph.ainvoke(None, before)
    assert len(rollbacks) == 2
    if daemon.real:
        assert written(machine) == ["x"]


def test_another_process_goes_on(daemon: Daemon, machine: Sandbox, rollbacks: list[str]) -> None:
    """A new saver for existing checkpoints and an existing machine undoes the changes of a step that has failed."""
    stored = InMemorySaver()
    graph = graph_of(ForkdSaver(stored, machine), "a", "b", asks="b")
    graph.invoke({"steps": []}, THREAD)
    machine.branch(tag="langgraph-by-hand")
    machine.commands.run("echo half >>/tmp/steps")
    again = graph_of(ForkdSaver(stored, Sandbox.connect(machine.id)), "a", "b", asks="b")
    assert again.invoke(Command(resume="yes"), THREAD)["steps"] == ["a", "b"]
    assert len(rollbacks) == 1
    if daemon.real:
        assert written(machine) == ["a", "b"]
    once_more = graph_of(ForkdSaver(stored, Sandbox.connect(machine.id)), "a", "b", "c")
    once_more.invoke({"steps": []}, THREAD)
    assert len(rollbacks) == 1, "the machine was where the graph had left it"


def test_a_graph_within_a_graph(daemon: Daemon, machine: Sandbox, rollbacks: list[str]) -> None:
    saver = ForkdSaver(InMemorySaver(), machine)
    builder = StateGraph(State)
    builder.add_node("inner", graph_of(saver, "a", "b"))
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"steps": []}, THREAD)
    assert not rollbacks
    start = [s.config for s in graph.get_state_history(THREAD) if s.next == ("inner",)][0]
    graph.invoke(None, start)
    assert len(rollbacks) == 1
    if daemon.real:
        assert written(machine) == ["a", "b"]


def test_deleting_a_thread_deletes_its_branches(machine: Sandbox) -> None:
    saver = ForkdSaver(InMemorySaver(), machine)
    graph_of(saver, "a").invoke({"steps": []}, THREAD)
    mine = [s for s in machine.client.snapshots.list() if s.details.labels == {LABEL: "one"}]
    assert len(mine) == 3
    saver.delete_thread("one")
    assert not [s for s in machine.client.snapshots.list() if s.details.labels == {LABEL: "one"}]
    assert not list(saver.list(THREAD))


def test_a_checkpoint_without_a_branch_is_an_error(machine: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "branch", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        graph_of(ForkdSaver(InMemorySaver(), machine), "a").invoke({"steps": []}, THREAD)


def test_a_graph_that_saves_elsewhere_is_an_error(machine: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkd.integrations.langgraph.LONGEST", 1)
    saver = ForkdSaver(InMemorySaver(), machine)
    graph = graph_of(saver, "a")
    graph.checkpointer = InMemorySaver()
    with pytest.raises(TimeoutError, match="compile the graph with this checkpointer"):
        graph.invoke({"steps": []}, THREAD)
