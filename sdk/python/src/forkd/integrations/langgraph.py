"""A checkpointer for LangGraph whose checkpoints include a machine (pip install 'forkd[langgraph]'):

    from forkd import Sandbox
    from forkd.integrations.langgraph import ForkdSaver
    from langgraph.checkpoint.memory import InMemorySaver

    def run_tests(state, config):
        sandbox = saver.sandbox(config)         # in the state of the checkpoint that this step starts from
        ...

    saver = ForkdSaver(InMemorySaver(), Sandbox.create("python-numpy"))
    graph = builder.compile(checkpointer=saver)

Every checkpoint also has a branch of the running sandbox, with its files, processes and memory. If the graph continues
from an older checkpoint (invoke with a checkpoint_id, or update_state), the sandbox is first rolled back to the branch
of that checkpoint.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from .._codes import SnapshotInUseError, SnapshotNotFoundError
from .._sync._sandbox import Sandbox, Sandboxes

LONGEST = 300  # seconds that LangGraph may take to save a checkpoint
LABEL = "langgraph-thread"
"""The label of the branches. Its value is the first 256 characters of the thread's id."""


class _Machine:
    """The sandbox of a thread, and the checkpoint whose state it has."""

    def __init__(self, thread: str, sandbox: Sandbox) -> None:
        self.thread, self.sandbox = thread, sandbox
        self.moved = threading.Condition()
        self.at: dict[str, str] = {}  # the id of the latest checkpoint, by its namespace; the graph's own is ""
        self.error: BaseException | None = None  # why the latest checkpoint was not saved; None: it was

    def tag(self, namespace: str, id: str) -> str:
        name = "\0".join((self.sandbox.id, self.thread, namespace, id))
        return "langgraph-" + hashlib.sha256(name.encode()).hexdigest()[:32]

    def has(self, namespace: str, id: str) -> bool:
        try:
            self.sandbox.client.snapshots.info(self.tag(namespace, id))
        except SnapshotNotFoundError:
            return False
        return True

    def go_back(self, namespace: str, id: str) -> None:
        self.sandbox.rollback(self.tag(namespace, id))
        if namespace == "":
            self.at.clear()  # graphs inside this one begin again
        self.at[namespace] = id

    def save(self, namespace: str, parent: str | None, id: str, forks: bool) -> None:
        """Makes the branch of a checkpoint. If the sandbox is not at the parent of the checkpoint, it is first rolled
        back to the parent."""
        with self.moved:
            try:
                at = self.at.get(namespace)
                elsewhere = at != parent if at else namespace == "" and not self._is_at(parent)
                if parent and (forks or elsewhere) and self.has(namespace, parent):
                    self.go_back(namespace, parent)
                self.sandbox.branch(tag=self.tag(namespace, id), labels={LABEL: self.thread[:256]})
                self.at[namespace], self.error = id, None
            except BaseException as e:
                self.error = e
                raise
            finally:
                self.moved.notify_all()

    def _is_at(self, id: str | None) -> bool:
        """Whether the latest branch or rollback of the sandbox, perhaps by an earlier process, was that
        of the checkpoint id."""
        return id is not None and self.sandbox.info().latest_tag == self.tag("", id)

    def reach(self, id: str) -> None:
        """Waits until the sandbox is at the checkpoint id of the graph itself, or rolls it back to this checkpoint."""
        with self.moved:
            while self.at.get("") != id:
                if self.has("", id):
                    if self.at or not self._is_at(id):
                        self.go_back("", id)
                    self.at[""] = id
                elif self.error is not None:
                    raise self.error
                elif not self.moved.wait(LONGEST):  # LangGraph saves checkpoints in the background
                    raise TimeoutError(
                        f"the checkpoint {id} of the thread {self.thread} was not saved within {LONGEST} seconds: "
                        "compile the graph with this checkpointer"
                    )


class ForkdSaver(BaseCheckpointSaver[Any]):
    """Stores checkpoints in another saver, and makes a branch of a sandbox for each of them."""

    def __init__(self, saver: BaseCheckpointSaver[Any], sandbox: Sandbox | Callable[[str], Sandbox]) -> None:
        """sandbox is the machine of the graph. For a graph with several threads, it is a function that returns the
        machine for the id of a thread, and is called once for each thread. Different threads need different machines.
        The owner of a machine kills it."""
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._sandbox = sandbox
        self._machines: dict[str, _Machine] = {}
        self._lock = threading.Lock()

    # The machine.

    def sandbox(self, config: RunnableConfig) -> Sandbox:
        """The machine of a thread. With the config of a node or tool, this call waits until the machine is at the
        checkpoint that the step starts from, because LangGraph starts a step before it has saved the checkpoint."""
        machine = self._machine(config)
        given = config["configurable"]
        if (id := given.get("checkpoint_map", {}).get("")) and given.get("__pregel_durability") != "exit":
            machine.reach(id)
        return machine.sandbox

    async def asandbox(self, config: RunnableConfig) -> Sandbox:
        """Like sandbox, for nodes that are coroutines."""
        return await asyncio.to_thread(self.sandbox, config)

    def fork(self, config: RunnableConfig, n: int = 1, **options: Any) -> Sandboxes:
        """Forks n sandboxes from the branch of a checkpoint, for example to inspect the machine, or to continue in
        other threads. config is the config of a state or a checkpoint; options are options of Client.fork."""
        machine = self._machine(config)
        given = config["configurable"]
        tag = machine.tag(given.get("checkpoint_ns", ""), given["checkpoint_id"])
        return machine.sandbox.client.fork(tag, n, **options)

    def _machine(self, config: RunnableConfig) -> _Machine:
        thread = str(config["configurable"]["thread_id"])
        with self._lock:
            if thread not in self._machines:
                sandbox = self._sandbox if isinstance(self._sandbox, Sandbox) else self._sandbox(thread)
                self._machines[thread] = _Machine(thread, sandbox)
            return self._machines[thread]

    def _save(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> None:
        given, forks = config["configurable"], metadata.get("source") == "fork"
        self._machine(config).save(given.get("checkpoint_ns", ""), given.get("checkpoint_id"), checkpoint["id"], forks)

    # The interface.

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Makes a branch, and stores the checkpoint."""
        self._save(config, checkpoint, metadata)
        return self._saver.put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Makes a branch, and stores the checkpoint."""
        await asyncio.to_thread(self._save, config, checkpoint, metadata)
        return await self._saver.aput(config, checkpoint, metadata, new_versions)

    def delete_thread(self, thread_id: str) -> None:
        """Deletes the checkpoints of a thread, and their branches. It keeps a branch that a sandbox runs from. Delete
        such a branch after that sandbox; its label names the thread."""
        config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        found = list(self._saver.list(config))
        self._saver.delete_thread(thread_id)
        self._delete(config, found)

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes the checkpoints of a thread, and their branches."""
        config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        found = [t async for t in self._saver.alist(config)]
        await self._saver.adelete_thread(thread_id)
        await asyncio.to_thread(self._delete, config, found)

    def _delete(self, config: RunnableConfig, checkpoints: Sequence[CheckpointTuple]) -> None:
        if not checkpoints:
            return
        machine = self._machine(config)
        for c in checkpoints:
            given = c.config["configurable"]
            tag = machine.tag(given.get("checkpoint_ns", ""), given["checkpoint_id"])
            with suppress(SnapshotInUseError):
                machine.sandbox.client.snapshots.delete(tag, force=True)
        with self._lock:
            self._machines.pop(machine.thread, None)

    # All other methods are those of the other saver.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._saver.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._saver.aget_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self._saver.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        return self._saver.alist(config, filter=filter, before=before, limit=limit)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._saver.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._saver.aput_writes(config, writes, task_id, task_path)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        return self._saver.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        return await self._saver.aget_delta_channel_history(config=config, channels=channels)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> ForkdSaver:
        clone = copy.copy(self)
        clone._saver = self._saver.with_allowlist(extra_allowlist)
        clone.serde = clone._saver.serde
        return clone

    @property
    def config_specs(self) -> Any:
        return self._saver.config_specs
