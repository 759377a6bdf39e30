"""Writes argv[1] MiB of memory again and again, one word per page; on SIGUSR1 prints its progress as JSON lines of
[time, pages written so far] to the file argv[2], one for every 5 ms or more, and ends."""
import json
import signal
import sys
import time

import numpy as np

PAGE = 4096
CHUNK = 64  # pages between two looks at the clock
pages = max(int(sys.argv[1]) * 256, CHUNK)
words = np.zeros(pages * PAGE // 8, dtype=np.int64)
column = words[:: PAGE // 8]
marks = []
stop = False


def on_signal(*_):
    global stop
    stop = True


signal.signal(signal.SIGUSR1, on_signal)
column += 1  # every page is dirty now
open(sys.argv[2] + ".ready", "w").close()
done = 0
last = 0.0
while not stop:
    for at in range(0, pages, CHUNK):
        column[at : at + CHUNK] += 1
        done += CHUNK
        now = time.time()
        if now - last >= 0.005:
            marks.append((now, done))
            last = now
        if stop:
            break
with open(sys.argv[2], "w") as f:
    json.dump(marks, f)
