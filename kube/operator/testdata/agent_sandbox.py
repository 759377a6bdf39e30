"""Uses sandboxes by the published client of agent-sandbox. TestAgentSandboxClient runs it.

Environment: KUBECONFIG, ROUTER (URL), CA (file), TOKEN and NAMESPACE.
"""

import io
import os
import time

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.exceptions import (
    SandboxClaimFailedError,
    SandboxRequestError,
    SandboxTemplateNotFoundError,
    SandboxWarmPoolNotFoundError,
)
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

namespace = os.environ["NAMESPACE"]


def connect(token):
    return SandboxClient(
        connection_config=SandboxDirectConnectionConfig(
            api_url=os.environ["ROUTER"],
            ca_cert=os.environ["CA"],
            extra_headers={"Authorization": "Bearer " + token},
        )
    )


def expect(error, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error as e:
        return e
    raise AssertionError(f"{function} raised no {error}")


client = connect(os.environ["TOKEN"])
box = client.create_sandbox(
    "pool", namespace=namespace, labels={"job": "7"}, pod_labels={"task": "seven"}, sandbox_ready_timeout=120
)
assert box.status()[0] == "SandboxReady", box.status()

done = box.commands.run("echo out; echo err >&2; exit 3")
assert (done.stdout, done.stderr, done.exit_code, done.timed_out) == ("out\n", "err\n", 3, False), done
assert box.commands.run("echo $COLOR").stdout == "blue\n"
late = box.commands.run("sleep 60", command_timeout=1)
assert late.timed_out and late.exit_code == 124, late
much = box.commands.run("yes ä | head -c 3000000")
assert much.stdout.startswith("ä\nä\n") and len(much.stdout.encode()) in range(1 << 20, (1 << 20) + 3), len(much.stdout)
assert "only the first MiB" in much.stderr, much.stderr
odd = box.commands.run(r"printf '\001\042\134\377é'")
assert odd.stdout == '\x01"\\\ufffdé', odd

binary = bytes(range(256)) * 1000
box.files.write("hello.txt", "hello")
box.files.write("deep/er/ä b%.bin", binary)
assert box.files.read("hello.txt") == b"hello"
assert box.files.read("deep/er/ä b%.bin") == binary
assert box.commands.run("cat hello.txt").stdout == "hello"
box.files.write("streamed", io.BytesIO(binary))
copy = io.BytesIO()
assert box.files.read_to("streamed", copy) == len(binary) and copy.getvalue() == binary
entries = {e.name: e for e in box.files.list(".")}
assert set(entries) == {"hello.txt", "deep", "streamed"}, entries
assert entries["hello.txt"].size == 5 and entries["hello.txt"].type == "file", entries
assert entries["deep"].type == "directory" and abs(entries["deep"].modified.timestamp() - time.time()) < 600
assert [e.name for e in box.files.list("/")] and box.files.list("deep/er")[0].name == "ä b%.bin"
assert box.commands.run("mkdir empty").exit_code == 0 and box.files.list("empty") == []
assert box.files.exists("deep/er") and not box.files.exists("nothing")
assert expect(SandboxRequestError, box.files.read, "nothing").status_code == 404
assert expect(SandboxRequestError, box.files.read, "../x", allow_unsafe_paths=True).status_code == 403

# Errors that the client tells apart.
expect(SandboxWarmPoolNotFoundError, client.create_sandbox, "no-pool", namespace=namespace)
expect(SandboxTemplateNotFoundError, client.create_sandbox, "no-template", namespace=namespace)
failed = expect(SandboxClaimFailedError, client.create_sandbox, "no-snapshot", namespace=namespace)
assert "forkd.dev/snapshot" in str(failed), failed
failed = expect(SandboxClaimFailedError, client.create_sandbox, "pool", namespace=namespace, env={"COLOR": "red"})
assert "EnvVarsInjectionRejected" in str(failed), failed

# Another client finds the sandbox. A token that the API server does not know finds nothing.
assert client.list_all_sandboxes(namespace, label_selector="job=7") == [box.claim_name]
other = connect(os.environ["TOKEN"])
again = other.get_sandbox(box.claim_name, namespace=namespace)
assert again.commands.run("cat hello.txt").stdout == "hello"
stranger = connect("nobody").get_sandbox(box.claim_name, namespace=namespace)
assert expect(SandboxRequestError, stranger.commands.run, "id").status_code == 401

# A sandbox with a time limit ends by itself, together with its claim.
short = client.create_sandbox("free", namespace=namespace, shutdown_after_seconds=8, env={"COLOR": "red", "MORE": "1"})
assert short.commands.run("echo $COLOR$MORE").stdout == "red1\n"
for _ in range(600):
    if client.list_all_sandboxes(namespace) == [box.claim_name]:
        break
    time.sleep(0.1)
else:
    raise AssertionError("the claim has not ended at its shutdownTime")

print("claim:", box.claim_name)
assert input() == "end"
box.terminate()
print("ended")
