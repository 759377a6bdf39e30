"""Hands a conversation of the OpenAI Agents SDK over to another agent, together with the machine.

A researcher writes notes on a machine, and hands over to a summarizer. The handoff is the snapshot point: it forks the
machine, and the summarizer works on the fork, where it finds the notes. A machine that was forked from the original
snapshot does not have them (CLEAN), so the notes came by the fork.

With OPENAI_API_KEY, the agents use the SDK's default model. Without it, or with --dry-run, they use the SDK's
ScriptedModel."""

import argparse
import asyncio
import os
import time

from agents import Agent, Runner, function_tool, handoff
from agents.run_config import RunConfig
from agents.testing import ScriptedModel, assistant_message, function_call

from forkd import AsyncSandbox

NOTES = "/srv/notes.json"
WRITE = f"import json; n = json.dump({{'tag': 'pass-1', 'values': [3, 7, 21]}}, open('{NOTES}', 'w')); print('wrote')"
READ = (
    f"import json; d = json.load(open('{NOTES}')); print('inherited tag:', d['tag']); print('sum:', sum(d['values']))"
)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--dry-run", action="store_true", help="use scripted models, even with a key")
args = parser.parse_args()


class Machine:
    """The machine that tools use now. A handoff replaces it by a fork."""

    def __init__(self, sandbox):
        self.all = [sandbox]

    async def hand_over(self, _context):
        begin = time.perf_counter()
        [child] = await self.all[-1].fork(1, ttl=1800)
        self.all.append(child)
        print(f"[handoff] forked the machine in {(time.perf_counter() - begin) * 1000:.0f} ms")


async def main():
    async with await AsyncSandbox.create(args.snapshot, ttl=1800) as source:
        machine, outputs = Machine(source), []

        @function_tool
        async def run_python(code: str) -> str:
            """Runs a Python program on the machine, and returns what it prints."""
            result = await machine.all[-1].commands.run(["python3", "-c", code], timeout=120)
            outputs.append(result.stdout.strip())
            number = len(machine.all)
            print(f"[machine {number}] exit={result.exit_code} {result.stdout.strip()!r}")
            return result.stdout + result.stderr

        scripts = [
            [
                [function_call("run_python", {"code": WRITE}, call_id="1")],
                [function_call("transfer_to_summarizer", {}, call_id="2")],
            ],
            [
                [function_call("run_python", {"code": READ}, call_id="3")],
                [assistant_message("the notes have the tag pass-1 and the sum 31")],
            ],
        ]
        real = os.environ.get("OPENAI_API_KEY") and not args.dry_run
        models = [None, None] if real else [ScriptedModel(s) for s in scripts]
        summarizer = Agent(
            name="summarizer",
            instructions=f"Read {NOTES} with run_python. Tell its tag and the sum of its values.",
            tools=[run_python],
            model=models[1],
        )
        researcher = Agent(
            name="researcher",
            instructions=f"Write notes with run_python, as this program does: {WRITE} Then hand over.",
            tools=[run_python],
            handoffs=[handoff(summarizer, on_handoff=machine.hand_over)],
            model=models[0],
        )
        try:
            config = RunConfig(tracing_disabled=True)
            result = await Runner.run(researcher, "Take notes, and have them summarized.", run_config=config)
            print(f"[{result.last_agent.name}] {result.final_output}")
            async with await AsyncSandbox.create(args.snapshot, ttl=600) as fresh:
                clean = not await fresh.files.exists(NOTES)
                print(f"a fresh sandbox sees: {'CLEAN' if clean else 'the notes'}")
        finally:
            for child in machine.all[1:]:
                await child.kill()
    if not clean or outputs[-1] != "inherited tag: pass-1\nsum: 31" or len(machine.all) != 2:
        raise SystemExit("FAILED")
    print("confirmed: the fork carried the state, a fresh sandbox did not")


asyncio.run(main())
