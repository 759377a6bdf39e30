# Which driver serves: Jupyter's kernel where the image has one, else forkd's own interpreter.
import importlib.util


def _has_kernel():
    return all(importlib.util.find_spec(name) for name in ("ipykernel", "jupyter_client", "zmq"))


if _has_kernel():
    _serve_jupyter()
else:
    _serve_own()
