"""Writes argv[1] MiB of memory again and again, one word per page. Whoever connects to the vsock port argv[2] gets, for
every byte sent, the number of pages written so far: 8 bytes, little-endian. Makes the file argv[3] when every page has
been written once and the port is open.

Answers come from a process of their own with real-time priority: in the writing one they would wait for its turn."""
import mmap
import os
import socket
import sys

PAGE = 4096
CHUNK = 64  # pages between two updates of the counter
pages = int(sys.argv[1]) * 256
memory = mmap.mmap(-1, pages * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
counter = mmap.mmap(-1, PAGE)  # shared with the answering process


def answer(listener):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while True:
        conn, _ = listener.accept()
        try:
            while conn.recv(1):
                conn.sendall(counter[:8])
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
        memory[at : at + CHUNK * PAGE : PAGE] = word
        done += CHUNK
        counter[:8] = done.to_bytes(8, "little")
    if done == pages:
        open(sys.argv[3], "w").close()
