"""Measures the operations that carry work from one sandbox to another, against the size of the change: promote,
diff and apply. Also measures a fork with volumes.

For each size, a copy of a sandbox writes a file of random bytes. Then the copy is compared with the sandbox, its
changes are applied to the sandbox, and it is promoted into the sandbox. A sandbox mounts at most eight volumes.
Times are medians. Tables go to standard output, and the figures go to $COMPAT_OUT. scripts/bench carry starts
this. ROUNDS is the number of measurements of each figure (3).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from forkd import Client

TAG, ROUNDS = os.environ["COMPAT_TAG"], int(os.environ.get("ROUNDS", "3"))
SLOTS = "bench-carry-slots"
CHANGES = {"nothing": "true", "200 files": "mkdir /change && cd /change && touch $(seq 200)"} | {
    f"{mib} MiB": f"head -c {mib << 20} /dev/urandom >/change" for mib in (1, 16, 64)
}
VOLUMES = (0, 1, 4, 8)


def timed(work: Callable[[], Any]) -> float:
    """The duration of work in ms."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def carry(client: Client, command: str) -> dict[str, float]:
    """The durations of one diff, one apply and one promotion, in ms."""
    with client.fork(TAG) as [source], source.fork(1) as [copy]:
        copy.commands.run(command, timeout=600, check=True)
        return {
            "diff": timed(lambda: copy.diff(source, patch=False)),
            "apply": timed(lambda: source.apply(copy)),
            "promote": timed(lambda: source.promote(copy)),
        }


def fork(client: Client, n: int, mode: str) -> float:
    """The duration of a fork with n volumes, in ms."""
    volumes = {f"/mnt/v{i}": f"bench-carry-{i}:{mode}" for i in range(n)}
    begin = time.perf_counter()
    with client.fork(SLOTS, volumes=volumes):
        return (time.perf_counter() - begin) * 1000


def median(samples: list[dict[str, float]]) -> dict[str, int]:
    return {name: round(statistics.median(s[name] for s in samples)) for name in samples[0]}


with Client(timeout=3600) as client:
    carry(client, "true")  # the host's caches are cold
    changes = {what: median([carry(client, command) for _ in range(ROUNDS)]) for what, command in CHANGES.items()}

    subprocess.run(["forkd", "build", "--from", TAG, "--tag", SLOTS, "--volume-slots", str(max(VOLUMES))], check=True)
    for i in range(max(VOLUMES)):
        client.volumes.create(f"bench-carry-{i}", size_mib=64)
    try:
        fork(client, 1, "ro")
        forks = {
            n: median([{mode: fork(client, n, mode) for mode in ("ro", "copy")} for _ in range(ROUNDS)]) for n in VOLUMES
        }
    finally:
        for i in range(max(VOLUMES)):
            client.volumes.delete(f"bench-carry-{i}")
        client.snapshots.delete(SLOTS)

print(f"{ROUNDS} measurements of each figure; base: {TAG}\n\n| the copy has written | diff (ms) | apply (ms) | promote (ms) |")
print("| --- | ---: | ---: | ---: |")
for what, row in changes.items():
    print(f"| {what} | {row['diff']} | {row['apply']} | {row['promote']} |")
print("\n| volumes of a fork | ro (ms) | copy (ms) |\n| ---: | ---: | ---: |")
for n, row in forks.items():
    print(f"| {n} | {row['ro']} | {row['copy']} |")
with open(os.environ["COMPAT_OUT"], "w") as out:
    json.dump({"rounds": ROUNDS, "changes": changes, "forks": forks}, out, indent=1)
