"""Unpacks an exported archive over an older tree: unpacking.py ARCHIVE.

The program tar unpacks, after this program has removed what was deleted.
"""

import os
import shutil
import subprocess
import sys
import tarfile

with tarfile.open(sys.argv[1]) as archive:
    for name in archive.getnames():
        above, base = os.path.split(os.fsencode("/" + name))
        if base.startswith(b".wh."):
            gone = os.path.join(above, base.removeprefix(b".wh."))
            if os.path.isdir(gone) and not os.path.islink(gone):
                shutil.rmtree(gone)
            elif os.path.lexists(gone):
                os.unlink(gone)
subprocess.run(["tar", "-C", "/", "-xpf", sys.argv[1], "--xattrs", "--xattrs-include=*", "--numeric-owner",
                "--exclude=.wh.*"], check=True)
