"""Measures in a guest: argv[1] is a vsock port, argv[2] "spin" or "leave", argv[3] how many other
CPUs are kept busy so. Makes the file argv[4] when it listens there.

On the one connection that it takes, each byte is answered: "p" by itself; "b", with a number of 4
bytes, little-endian, by the times of so many reads from the disk past the page cache; "w" by the
times of the slow writes, each to another page, until the next byte comes. Times are 8 bytes each,
in nanoseconds, after their number in 4 bytes."""
import array
import mmap
import os
import random
import select
import socket
import sys
import time

PAGE = 4096
PAGES = 4096  # a power of two: each is written once before any is written again
DISK = "/dev/vda"
STATUS = "/sys/bus/virtio/devices/virtio0/status"  # a register of a device
SLOW = 5  # times the median write: what may have met the host
# After a branch the first write to each page is slow. Of slow writes in a row those from the second
# to this one are noted: one alone is of a process that has lost its CPU.
ROW = 512
PACE = 20  # turns between two writes, or it would mostly lose its CPU within one
now = time.perf_counter_ns


def load(cpu, register):
    os.sched_setaffinity(0, {cpu})
    while True:
        if register:
            os.pread(register, 16, 0)  # it is the VMM that answers


def block(count):
    disk = os.open(DISK, os.O_RDONLY | os.O_DIRECT)
    pages = os.lseek(disk, 0, os.SEEK_END) // PAGE
    buffers = [mmap.mmap(-1, PAGE)]
    times = array.array("Q")
    for _ in range(count):
        at = random.randrange(pages) * PAGE
        begin = now()
        os.preadv(disk, buffers, at)
        times.append(now() - begin)
    os.close(disk)
    return times


def write(conn, memory):
    times, usual, least, at, row = array.array("Q"), [], 0, 0, 0
    poll = select.poll()
    poll.register(conn, select.POLLIN)
    while not poll.poll(0):
        for _ in range(64):
            at = (at * 5 + 51) % PAGES
            begin = now()
            memory[at * PAGE] = 1
            took = now() - begin
            if not least:
                usual.append(took)
            elif took > least:
                row += 1
                if 2 <= row <= ROW:
                    times.append(took)
            else:
                row = 0
            for _ in range(PACE):
                pass
        if not least and len(usual) >= 1024:
            least = sorted(usual)[512] * SLOW
    return times


listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
listener.bind((socket.VMADDR_CID_ANY, int(sys.argv[1])))
listener.listen()
memory = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, PAGES * PAGE, PAGE):
    memory[at] = 1
os.sched_setaffinity(0, {0})
register = os.open(STATUS, os.O_RDONLY) if sys.argv[2] == "leave" else None
for cpu in range(int(sys.argv[3])):
    if os.fork() == 0:
        load(cpu + 1, register)
open(sys.argv[4], "w").close()
conn, _ = listener.accept()
while command := conn.recv(1):
    if command == b"p":
        conn.sendall(command)
        continue
    times = block(int.from_bytes(conn.recv(4, socket.MSG_WAITALL), "little")) if command == b"b" else write(conn, memory)
    conn.sendall(len(times).to_bytes(4, "little") + times.tobytes())
