"""A ReAct agent of LangGraph is forked in the middle of its work, and each copy gets another hint.

The agent looks at a machine with a tool, a shell. Its checkpointer is ForkdSaver, which saves the machine with every
step of the conversation. Then three machines are forked from the checkpoint, and the conversation continues in four
threads: without a hint on the first machine, and with a different hint on each of the others. The program checks that
the threads share the reasoning before the fork, and that answers and machines differ after it.

With OPENAI_API_KEY, the model is ChatOpenAI (pip install langchain-openai). Without it, or with --dry-run, a script
plays the model, behind the same interface."""

import argparse
import os
import time

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from forkd import Sandbox
from forkd.integrations.langgraph import ForkdSaver

HOME = "/srv/react"
TASK = f"{HOME}/log has the times of requests in milliseconds. Look at it."
GO_ON = f"Now write one number that describes the times into {HOME}/answer, and tell me the number."
HINTS = ["Use the maximum.", "Use the sum.", "Use the number of requests above 100 ms."]
SCRIPTS = {  # what the script does, by hint; without one it takes the first time
    "": f"head -n 1 {HOME}/log",
    HINTS[0]: f"sort -n {HOME}/log | tail -n 1",
    HINTS[1]: f"awk '{{ s += $1 }} END {{ print s }}' {HOME}/log",
    HINTS[2]: f"awk '$1 > 100' {HOME}/log | wc -l",
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot")
parser.add_argument("--dry-run", action="store_true", help="let a script play the model, even with a key")
args = parser.parse_args()


class Script(BaseChatModel):
    """Plays a model that calls the tool, and then tells its result."""

    @property
    def _llm_type(self):
        return "script"

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        last = messages[-1]
        if isinstance(last, ToolMessage):
            said = AIMessage(f"It says: {last.content}")
        else:
            command = f"cat {HOME}/log"
            if GO_ON in last.content:
                command = f"{SCRIPTS[last.content.removeprefix(GO_ON).strip()]} | tee {HOME}/answer"
            call = {"name": "shell", "args": {"command": command}, "id": f"call-{len(messages)}"}
            said = AIMessage("I run a command.", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def shell(command: str, config: RunnableConfig) -> str:
    """Runs a shell command on the machine of this conversation."""
    result = saver.sandbox(config).commands.run(command, timeout=120)
    return (result.stdout + result.stderr).strip()


def chat_model():
    if os.environ.get("OPENAI_API_KEY") and not args.dry_run:
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"))
    return Script()


def thread(name):
    return {"configurable": {"thread_id": name}}


def said(name):
    return graph.get_state(thread(name)).values["messages"]


model = chat_model().bind_tools([shell])
machines = {}
saver = ForkdSaver(InMemorySaver(), lambda name: machines[name])
builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
builder.add_node("tools", ToolNode([shell]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")
graph = builder.compile(checkpointer=saver)

with Sandbox.create(args.snapshot, ttl=1800) as source:
    machines["source"] = source
    source.files.write(f"{HOME}/log", "12\n40\n250\n31\n101\n")
    graph.invoke({"messages": [HumanMessage(TASK)]}, thread("source"))
    before = said("source")
    print(f"source: {len(before)} messages, the last one {before[-1].text!r}")

    begin = time.perf_counter()
    children = saver.fork(graph.get_state(thread("source")).config, len(HINTS), ttl=1800)
    print(f"forked {len(children)} machines from the checkpoint in {(time.perf_counter() - begin) * 1000:.0f} ms")
    with children:
        hints = {"source": ""} | {f"child {n}": hint for n, hint in enumerate(HINTS)}
        machines.update(zip(list(hints)[1:], children, strict=True))
        for name, hint in hints.items():
            if name != "source":  # the thread starts with the conversation so far
                graph.update_state(thread(name), {"messages": before}, as_node="model")
            graph.invoke({"messages": [HumanMessage(f"{GO_ON} {hint}".strip())]}, thread(name))

        answers = {n: machines[n].files.read(f"{HOME}/answer").strip() for n in hints}
        for name, hint in hints.items():
            print(f"{name}: {hint or 'no hint'} -> {answers[name]}; {said(name)[-1].text!r}")
        shared = all([m.content for m in said(n)[: len(before)]] == [m.content for m in before] for n in hints)
        print(f"prior reasoning is equal in {len(hints)} threads: {'yes' if shared else 'NO'}")
        diverged = len(set(answers.values())) == len(hints)
        print(f"{len(hints)} machines have different answers: {'yes' if diverged else 'NO'}")
    for name in hints:
        saver.delete_thread(name)

if not shared or not diverged:
    raise SystemExit("FAILED")
