"""Shows what code displays. In a notebook, an Execution as the last value of a cell is displayed by itself."""

import base64

from forkd import Sandbox

CODE = """
class Plot:  # what matplotlib's figures have
    def _repr_png_(self):
        import struct, zlib
        part = lambda kind, p: struct.pack(">I", len(p)) + kind + p + struct.pack(">I", zlib.crc32(kind + p))
        head = part(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
        return b"\\x89PNG\\r\\n\\x1a\\n" + head + part(b"IDAT", zlib.compress(b"\\0\\xff\\0\\0")) + part(b"IEND", b"")
    def __repr__(self):
        return "a red dot"
Plot()
"""

with Sandbox.create("python-numpy") as sandbox:
    execution = sandbox.run_code(CODE, on_result=lambda r: print("shown:", ", ".join(r.formats())))
    picture = base64.b64decode(execution.results[0].png)
    print(execution.text, picture[1:4].decode(), "<img" in execution._repr_html_())
