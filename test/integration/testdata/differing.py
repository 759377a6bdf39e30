"""Makes, changes and lists a tree of files with random names, types, modes and contents.

differing.py make|change|list DIR [SEED N]: prints the tree as JSON, by path in base64.
"""

import base64
import hashlib
import json
import os
import random
import re
import stat
import sys


def name(rng):
    kinds = [b"f%d", b"two words %d", b"line\nend %d", b"\xff\xfe%d", b'quote"\\%d', "\u00fc\u202e%d".encode(), b"-%d",
             b"x" * 200 + b"%d", b"\x1b[31m%d"]
    return rng.choice(kinds) % rng.randrange(1000)


def paths(top):
    found = [(top, True)]
    for at, dirs, files in os.walk(top):
        found += [(os.path.join(at, d), not os.path.islink(os.path.join(at, d))) for d in dirs]
        found += [(os.path.join(at, f), False) for f in files]
    return sorted(found)


def content(rng):
    kind = rng.randrange(4)
    if kind == 0:
        return b"".join(b"line %d\n" % rng.randrange(50) for _ in range(rng.randrange(100)))
    if kind == 1:
        return rng.randbytes(rng.randrange(20000))
    if kind == 2:
        return b""
    return ("gr\u00fc\u00dfe %d" % rng.randrange(1000)).encode()


def make(rng, top):
    at = os.path.join(rng.choice([p for p, is_dir in paths(top) if is_dir]), name(rng))
    if os.path.lexists(at):
        return
    kind = rng.randrange(10)
    files = [p for p, _ in paths(top) if stat.S_ISREG(os.lstat(p).st_mode)]
    if kind < 5:
        with open(at, "wb") as f:
            f.write(content(rng))
    elif kind < 7:
        os.mkdir(at)
    elif kind == 7:
        os.symlink(name(rng), at)
    elif kind == 8:
        os.mkfifo(at)
    elif files:
        os.link(rng.choice(files), at)


def change(rng, top):
    at, is_dir = rng.choice(paths(top)[1:])
    is_file = stat.S_ISREG(os.lstat(at).st_mode)
    kind = rng.randrange(9)
    if kind == 0:
        if is_dir:
            for below, below_is_dir in reversed(paths(at)):
                os.rmdir(below) if below_is_dir else os.unlink(below)
        else:
            os.unlink(at)
    elif kind == 1:
        to = os.path.join(os.path.dirname(at), name(rng))
        if not os.path.lexists(to):
            os.rename(at, to)
    elif kind == 2 and not os.path.islink(at):
        os.chmod(at, rng.choice([0o600, 0o644, 0o755, 0o4755, 0o1777]))
    elif kind == 3:
        os.lchown(at, rng.randrange(3), rng.randrange(3))
    elif kind == 4 and is_file:
        os.setxattr(at, b"user.n%d" % rng.randrange(3), rng.randbytes(3))
    elif kind == 5 and is_file:
        with open(at, "r+b") as f:
            f.seek(rng.randrange(1 << 20))  # a hole
            f.write(b"end")
    elif kind == 6 and is_file:
        was = os.stat(at)
        with open(at, "r+b") as f:  # same size and time
            f.write(rng.randbytes(min(5, was.st_size)))
        os.utime(at, ns=(was.st_atime_ns, was.st_mtime_ns))
    elif kind == 7 and is_file:
        os.truncate(at, rng.randrange(5000))
    else:
        make(rng, top)


def show(top):
    files = {}
    types = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo"}
    for at, _ in paths(top):
        st = os.lstat(at)
        f = {"Type": types[stat.S_IFMT(st.st_mode)], "Mode": stat.S_IMODE(st.st_mode), "UID": st.st_uid, "GID": st.st_gid}
        if stat.S_ISREG(st.st_mode):
            f["Size"] = st.st_size
            with open(at, "rb") as file:
                f["Sum"] = hashlib.sha256(file.read()).hexdigest()
        if stat.S_ISLNK(st.st_mode):
            f["Target"] = re.sub("\ufffd+", "\ufffd", os.readlink(at).decode("utf-8", "replace"))
            f["Size"] = st.st_size
        if not stat.S_ISLNK(st.st_mode):
            f["Xattrs"] = {n: os.getxattr(at, n).hex() for n in os.listxattr(at)}
        files[base64.b64encode(at).decode()] = f
    print(json.dumps(files))


def main():
    top = os.fsencode(sys.argv[2])
    os.makedirs(top, exist_ok=True)
    if sys.argv[1] != "list":
        rng = random.Random(int(sys.argv[3]))
        for _ in range(int(sys.argv[4])):
            make(rng, top) if sys.argv[1] == "make" else change(rng, top)
    show(top)


main()
