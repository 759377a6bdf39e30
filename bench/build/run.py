"""Measures builds of Dockerfiles: the duration of a step, the space that its snapshot takes, and a build whose
steps are all cached.

The base is a snapshot with memory. Each kind of step is built in two ways: with memory, where each step also
saves the guest's memory, and with disks only, which a step with a secret brings about. Times are medians.
A table goes to standard output, and the figures go to $COMPAT_OUT. scripts/bench build starts this. STEPS is
the number of steps of each build (10).
"""

from __future__ import annotations

import json
import os
import statistics
from typing import Any

from forkd import Client

TAG, STEPS = os.environ["COMPAT_TAG"], int(os.environ.get("STEPS", "10"))
KINDS = {
    "a small file": "RUN echo {i} >/step-{i}",
    "16 MiB": "RUN head -c 16777216 /dev/urandom >/step-{i}",
    "200 files": "RUN mkdir /step-{i} && cd /step-{i} && touch $(seq 200)",
}
ENDS = {"memory": "", "disk only": "RUN --mount=type=secret,id=bench,required true\n"}


def space(client: Client) -> int:
    """Bytes on the host's disk that belong to snapshots."""
    infos = (client.snapshots.info(snapshot.tag) for snapshot in client.snapshots.list())
    return sum(i.memory_physical_bytes + i.disk_physical_bytes + i.vmstate_bytes for i in infos)


def build(client: Client, text: str) -> tuple[float, list[float], int, int]:
    """Builds a Dockerfile. Returns the duration in ms, those of the steps that ran, and the numbers of steps
    that were cached and that ran."""
    took: list[float] = []

    def heard(event: Any) -> None:
        if getattr(event, "state", "") == "done" and event.ms:
            took.append(event.ms)

    made = client.build(tag="bench-build", dockerfile_text=text, secrets={"bench": "x"}, on_progress=heard).built
    assert made
    return made.ms, took, made.cached, made.run


rows: list[dict[str, Any]] = []
with Client(timeout=3600) as client:
    build(client, f"FROM {TAG}\nRUN true\n")  # the host's caches are cold
    for kind, line in KINDS.items():
        for end, first in ENDS.items():
            head = f"FROM {TAG}\nENV BENCH={os.urandom(8).hex()}\n{first}"
            build(client, head + "RUN true\n")
            before = space(client)
            ms, took, _, ran = build(client, head + "RUN true\n" + "".join(line.format(i=i) + "\n" for i in range(STEPS)))
            bytes_each = (space(client) - before) / STEPS
            again, _, cached, none = build(client, head + "RUN true\n" + "".join(line.format(i=i) + "\n" for i in range(STEPS)))
            assert ran >= STEPS and none == 0 and cached >= STEPS, (ran, none, cached)
            rows.append({"step": kind, "saves": end, "build_ms": round(ms), "step_ms": round(statistics.median(took[-STEPS:])),
                         "steps_per_minute": round(60_000 * ran / ms, 1), "kib_per_step": round(bytes_each / 1024),
                         "cached_build_ms": round(again)})
    for snapshot in client.snapshots.list():
        if snapshot.tag == "bench-build":
            snapshot.delete(cascade=True)

print(f"{STEPS} steps per build; base: {TAG}")
print("\n| step | saves | build (s) | a step, p50 (s) | steps per minute | KiB per step | all cached (s) |\n| --- | --- |" + " ---: |" * 5)
for row in rows:
    print(f"| {row['step']} | {row['saves']} | {row['build_ms'] / 1000:.1f} | {row['step_ms'] / 1000:.2f} | "
          f"{row['steps_per_minute']} | {row['kib_per_step']} | {row['cached_build_ms'] / 1000:.2f} |")
with open(os.environ["COMPAT_OUT"], "w") as out:
    json.dump({"steps": STEPS, "rows": rows}, out, indent=1)
