"""Passes a machine from one Swarm agent to the next, by a context variable.

Swarm keeps nothing between two calls: all state is in the messages and the context variables. Here the variable
"machine" is the id of a sandbox. A researcher writes notes on its machine, and hands over to a reviewer. The handoff
forks the machine and sets the variable to the fork, where the reviewer corrects the notes. The researcher's machine
keeps the old notes, and a machine that was forked from the original snapshot has none (CLEAN).

With OPENAI_API_KEY, the agents use OpenAI's model. Without it, or with --dry-run, a script plays the model, behind the
client that Swarm gets."""

import argparse
import json
import os
import time

from openai.types.chat import ChatCompletion
from swarm import Agent, Swarm
from swarm.types import Result

from forkd import Sandbox

NOTES = "/srv/notes.json"
WRITE = f"import json; json.dump({{'tag': 'pass-1', 'values': [3, 7, 21]}}, open('{NOTES}', 'w')); print('wrote')"
READ = f"import json; d = json.load(open('{NOTES}')); print(d['tag'], sum(d['values']))"
CORRECT = (
    f"import json; d = json.load(open('{NOTES}')); d['values'][2] = 12; json.dump(d, open('{NOTES}', 'w')); "
    "print(d['tag'], sum(d['values']))"
)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--snapshot", default="python-numpy", help="tag of a snapshot with Python")
parser.add_argument("--dry-run", action="store_true", help="use a scripted model, even with a key")
args = parser.parse_args()


class Scripted:
    """A client of OpenAI's API that answers with given messages, one after another."""

    def __init__(self, *messages):
        self.left = list(messages)
        self.chat = self.completions = self

    def create(self, **request):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **self.left.pop(0)}}
        answer = {"id": "0", "object": "chat.completion", "created": 0, "model": request["model"]}
        return ChatCompletion.model_validate({**answer, "choices": [choice]})


def call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": name, "type": "function", "function": function}]}


def model_client():
    if os.environ.get("OPENAI_API_KEY") and not args.dry_run:
        return None  # Swarm then makes OpenAI's client
    return Scripted(
        call("run_python", code=WRITE),
        call("transfer_to_reviewer"),
        call("run_python", code=READ),
        call("run_python", code=CORRECT),
        {"content": "the sum was 31, and is 22 now"},
    )


def main():
    machines = {}  # sandboxes by their id, in the order of their creation

    def python(machine: str, code: str):
        result = machines[machine].commands.run(["python3", "-c", code], timeout=120)
        print(f"[machine {list(machines).index(machine) + 1}] exit={result.exit_code} {result.stdout.strip()!r}")
        return result

    def run_python(code: str, context_variables: dict) -> str:
        """Runs a Python program on your machine, and returns what it prints."""
        result = python(context_variables["machine"], code)
        return result.stdout + result.stderr

    def transfer_to_reviewer(context_variables: dict) -> Result:
        """Hands over to the reviewer, with a copy of your machine."""
        begin = time.perf_counter()
        [child] = machines[context_variables["machine"]].fork(1, ttl=1800)
        machines[child.id] = child
        print(f"[handoff] forked the machine in {(time.perf_counter() - begin) * 1000:.0f} ms")
        return Result(value="The notes are on your machine.", agent=reviewer, context_variables={"machine": child.id})

    reviewer = Agent(
        name="reviewer",
        instructions=f"Read {NOTES} with run_python. Then set the third of its values to 12, as this program does: "
        f"{CORRECT} Tell both sums.",
        functions=[run_python],
    )
    researcher = Agent(
        name="researcher",
        instructions=f"Write notes with run_python, as this program does: {WRITE} Then hand over.",
        functions=[run_python, transfer_to_reviewer],
    )
    with Sandbox.create(args.snapshot, ttl=1800) as source:
        machines[source.id] = source
        try:
            request = {"role": "user", "content": "Take notes, and have them corrected."}
            answer = Swarm(model_client()).run(researcher, [request], {"machine": source.id})
            print(f"[{answer.agent.name}] {answer.messages[-1]['content']}")
            last = answer.context_variables["machine"]
            now, before = python(last, READ), python(source.id, READ)
            with Sandbox.create(args.snapshot, ttl=600) as fresh:
                clean = not fresh.files.exists(NOTES)
                print(f"a fresh sandbox sees: {'CLEAN' if clean else 'the notes'}")
        finally:
            for child in list(machines.values())[1:]:
                child.kill()
    if not clean or (before.stdout, now.stdout) != ("pass-1 31\n", "pass-1 22\n") or len(machines) != 2:
        raise SystemExit("FAILED")
    print("confirmed: the fork carried the notes, and only the fork was changed")


main()
