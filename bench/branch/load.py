"""Writes argv[1] MiB of memory repeatedly, one word per page. It makes the file argv[3] when every page has
been written once.

A client connects to the vsock port argv[2]. For every "?" it gets two numbers, 8 bytes each, little-endian:
the monotonic clock in nanoseconds, and the number of pages written so far. An "s" stops the writing until a
"c". An "m" permits only the next MiB, until another "m". Answers come from a separate process with
real-time priority, because in the writing process they would have to wait for their turn."""
import mmap
import os
import signal
import socket
import sys
import time

PAGE = 4096
CHUNK = 64  # pages between two updates of the counter
pages = int(sys.argv[1]) * 256
memory = mmap.mmap(-1, pages * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
counter = mmap.mmap(-1, PAGE)  # shared with the answering process: pages written, and how many may be written (0: all)


def answer(listener):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while True:
        conn, _ = listener.accept()
        try:
            while command := conn.recv(1):
                if command == b"?":
                    now = time.monotonic_ns()
                    conn.sendall(now.to_bytes(8, "little") + counter[:8])
                elif command == b"m":
                    counter[8:16] = (int.from_bytes(counter[:8], "little") + 256).to_bytes(8, "little")
                else:
                    os.kill(os.getppid(), signal.SIGSTOP if command == b"s" else signal.SIGCONT)
        except OSError:
            pass  # a rollback resets connections
        conn.close()


listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
listener.bind((socket.VMADDR_CID_ANY, int(sys.argv[2])))
listener.listen()
if os.fork() == 0:
    memory.close()
    answer(listener)
listener.close()
done = 0
while True:
    word = bytes([done // pages & 255]) * CHUNK
    for at in range(0, pages * PAGE, CHUNK * PAGE):
        while 0 < int.from_bytes(counter[8:16], "little") <= done:
            time.sleep(0.01)
        memory[at : at + CHUNK * PAGE : PAGE] = word
        done += CHUNK
        counter[:8] = done.to_bytes(8, "little")
    if done == pages:
        open(sys.argv[3], "w").close()
