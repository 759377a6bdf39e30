"""Gives every agent of a CrewAI crew a machine of its own. All machines are forked from one snapshot in one request.

Each agent has one tool, which runs Python in the agent's machine. So agents cannot disturb each other's imports,
directories or files.

With OPENAI_API_KEY, the agents use that model. Without it, or with --dry-run, a script plays the model, behind CrewAI's
own interface for models (BaseLLM)."""

import argparse
import os
import time

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from crewai import Agent, BaseLLM, Crew, Process, Task
from crewai.tools import BaseTool

from forkd import Client

TASKS = {  # the code that the script sends to the tool, by task
    "Compute the 25th Fibonacci number": "a, b = 0, 1\nfor _ in range(25): a, b = b, a + b\nprint(a)",
    "Check whether 9973 is prime": "print(all(9973 % d for d in range(2, 100)))",
    "Sort the list [4, 1, 8, 2, 9, 3]": "print(sorted([4, 1, 8, 2, 9, 3]))",
}
EXPECTED = ["75025", "True", "[1, 2, 3, 4, 8, 9]"]
MARK = "/srv/agent"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--dry-run", action="store_true", help="let a script play the model, even with a key")
args = parser.parse_args()


class ForkdRun(BaseTool):
    """A tool that runs Python in one sandbox."""

    name: str = "forkd_run"
    description: str = "Runs a Python program in a machine of its own, and returns what it prints."
    sandbox: object = None

    def _run(self, code: str) -> str:
        result = self.sandbox.commands.run(["python3", "-c", code], timeout=120)
        return result.stdout.strip() if result.ok else f"[exit={result.exit_code}] {result.stderr}"


class Script(BaseLLM):
    """Plays a model that calls the tool once, and then answers with the tool's result."""

    model: str = "script"
    code: str = ""

    def supports_function_calling(self) -> bool:
        return False  # CrewAI then asks for actions as text

    def call(self, messages, *_, **__):
        said = [m["content"] for m in messages if m["role"] == "assistant"]  # ends with what the tool has returned
        if said:
            return f"Thought: I know the answer.\nFinal Answer: {said[-1].split('Observation:')[-1].strip()}"
        code = self.code.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        return f'Thought: I run it.\nAction: forkd_run\nAction Input: {{"code": "{code}"}}\n'


def agent_for(sandbox, number, code):
    real = os.environ.get("OPENAI_API_KEY") and not args.dry_run
    llm = os.environ.get("OPENAI_MODEL", "gpt-5-mini") if real else Script(model="script", code=code)
    return Agent(
        role=f"agent {number}",
        goal="answer with what the program prints",
        backstory="you run Python",
        tools=[ForkdRun(sandbox=sandbox)],
        llm=llm,
    )


with Client() as client:
    begin = time.perf_counter()
    with client.fork(args.snapshot, len(TASKS), ttl=1800) as sandboxes:
        elapsed = (time.perf_counter() - begin) * 1000
        print(f"forked {len(sandboxes)} sandboxes in {elapsed:.0f} ms")
        sandboxes.map(lambda s: s.files.write(MARK, s.id))
        answers = []
        for number, (sandbox, (task, code)) in enumerate(zip(sandboxes, TASKS.items(), strict=True)):
            agent = agent_for(sandbox, number, code)
            work = Task(description=task, expected_output="one line", agent=agent)
            crew = Crew(agents=[agent], tasks=[work], process=Process.sequential)
            answers.append(str(crew.kickoff()).strip())
            print(f"agent {number}: {task} -> {answers[-1]}")
        apart = sandboxes.map(lambda s: s.files.read(MARK) == s.id)
        print(f"each agent has its own files: {'yes' if all(apart) else 'NO'}")

if answers != EXPECTED or not all(apart):
    raise SystemExit("FAILED")
