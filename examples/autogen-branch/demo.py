"""Branches an AutoGen conversation after a turn, and continues the machine several times.

A writer proposes code, and a CodeExecutorAgent runs it. Its executor is a CodeExecutor over a sandbox. After the turn
the machine is saved as a branch. Grandchildren of the branch have everything that the code has made.

With OPENAI_API_KEY, the writer's model is OpenAIChatCompletionClient (pip install 'autogen-ext[openai]'). Without it,
or with --dry-run, it is AutoGen's ReplayChatCompletionClient."""

import argparse
import asyncio
import os
import time

from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, AssistantAgent, CodeExecutorAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_ext.models.replay import ReplayChatCompletionClient

from forkd import AsyncSandbox

HOME = "/srv/autogen"
TASK = f"Compute 2**16 in Python, print a greeting and the number, and store the number in the file {HOME}/number."
SCRIPT = f"""```python
import os
os.makedirs("{HOME}", exist_ok=True)
print("hello from autogen-branch")
print(2**16)
open("{HOME}/number", "w").write(str(2**16))
```"""

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--fanout", type=int, default=3)
parser.add_argument("--dry-run", action="store_true", help="replay the model's answers, even with a key")
args = parser.parse_args()


class ForkdCodeExecutor(CodeExecutor):
    """Runs code blocks in a sandbox."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.results = []

    async def execute_code_blocks(self, code_blocks, cancellation_token):
        output = ""
        for block in code_blocks:
            programs = {
                "python": ["python3", "-c"],
                "py": ["python3", "-c"],
                "sh": ["sh", "-c"],
                "bash": ["bash", "-c"],
            }
            if block.language not in programs:
                return CodeResult(1, f"{output}the language {block.language!r} is not known: use python or sh")
            running = asyncio.ensure_future(
                self.sandbox.commands.run([*programs[block.language], block.code], timeout=120)
            )
            cancellation_token.link_future(running)  # cancelling the call kills the command
            result = await running
            output += result.stdout + result.stderr
            self.results.append(result)
            if not result.ok:
                return CodeResult(result.exit_code, output)
        return CodeResult(0, output)

    async def start(self):
        pass

    async def stop(self):
        pass

    async def restart(self):
        pass


def model_client():
    if os.environ.get("OPENAI_API_KEY") and not args.dry_run:
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        return OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"))
    return ReplayChatCompletionClient([SCRIPT])


def approve(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=True, reason="the code runs in a sandbox")


async def main():
    async with await AsyncSandbox.create(args.snapshot, ttl=1800) as source:
        executor = ForkdCodeExecutor(source)
        writer = AssistantAgent("writer", model_client=model_client())
        runner = CodeExecutorAgent("runner", code_executor=executor, approval_func=approve)
        team = RoundRobinGroupChat([writer, runner], max_turns=2)
        result = await team.run(task=TASK)
        print(f"turn: {', '.join(m.source for m in result.messages)}")
        print(f"code ran (exit={executor.results[-1].exit_code}):\n{executor.results[-1].stdout.strip()}")

        begin = time.perf_counter()
        branch, children = await source.branch(args.fanout)
        print(f"branched, and forked {len(children)} grandchildren in {(time.perf_counter() - begin) * 1000:.0f} ms")
        try:
            async with children:
                read = f"n = int(open('{HOME}/number').read()); print('from the branch:', n, n == 2**16)"
                results = await children.map(lambda c: c.commands.run(["python3", "-c", read], timeout=120))
                for number, child in enumerate(results):
                    print(f"grandchild {number}: exit={child.exit_code} {child.stdout.strip()!r}")
                await children[0].commands.run(f"echo 0 >{HOME}/number", check=True)
                kept = await children[-1].files.read(f"{HOME}/number")
                print(f"a change in one is not seen in another: {'yes' if kept == '65536' else 'NO'}")
        finally:
            await branch.delete(force=True)
    if not all(r.stdout == "from the branch: 65536 True\n" for r in results) or kept != "65536":
        raise SystemExit("FAILED")


asyncio.run(main())
