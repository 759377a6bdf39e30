# Clones this process, as a fork of its machine would, and prints what each copy draws: one line of
# JSON for each.
#
#   siblings.py DRIVER reseed|keep
#
# It must be the first process of a PID namespace and able to make further ones: its copies then
# have its process id too. The raw system call runs none of the handlers by which libraries notice
# fork(2).
import ctypes
import importlib
import json
import os
import platform
import random
import signal
import sqlite3
import ssl
import sys
import tempfile
import uuid

CLONE_NEWPID = 0x20000000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]


def found(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


numpy = found("numpy")
psycopg2 = found("psycopg2")
ec = found("cryptography.hazmat.primitives.asymmetric.ec")
rsa = found("cryptography.hazmat.primitives.asymmetric.rsa")
database = sqlite3.connect(":memory:")


def bundled_libcrypto():
    """The copy of OpenSSL that the wheel of psycopg2 brings along."""
    for line in open("/proc/self/maps"):
        path = line.split()[-1]
        if "psycopg2_binary.libs/libcrypto-" in path:
            return ctypes.CDLL(path)
    raise LookupError("psycopg2 has no libcrypto of its own")


def draw():
    out = {
        "random": random.getrandbits(64),
        "ssl": ssl.RAND_bytes(8).hex(),
        "sqlite": database.execute("select hex(randomblob(8))").fetchone()[0],
        "uuid1": str(uuid.uuid1()),
        "tempfile": next(tempfile._get_candidate_names()),
    }
    if numpy:
        out["numpy"] = int(numpy.random.randint(2**62))
    if ec:
        out["ec key"] = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
        out["rsa key"] = rsa.generate_private_key(65537, 1024).private_numbers().p
    if psycopg2:
        buf = ctypes.create_string_buffer(8)
        assert bundled_libcrypto().RAND_bytes(buf, 8) == 1
        out["bundled libcrypto"] = buf.raw.hex()
    return {k: str(v) for k, v in out.items()}


def clone():
    pid = ctypes.CDLL(None, use_errno=True).syscall(SYS_CLONE, CLONE_NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone into a new PID namespace")
    return pid


def main():
    namespace = {"__name__": "forkd_driver"}
    with open(sys.argv[1]) as driver:
        exec(compile(driver.read(), sys.argv[1], "exec"), namespace)
    assert os.getpid() == 1, os.getpid()
    draw()  # what the warm interpreter used before the snapshot
    for _ in range(2):
        pid = clone()
        if pid == 0:
            if sys.argv[2] == "reseed":
                namespace["_reseed"]()
            print(json.dumps({"pid": os.getpid(), "drawn": draw()}), flush=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit("a copy failed: %d" % status)


main()
