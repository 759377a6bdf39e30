# What both Python drivers have in common: how they speak to the agent, and what they do in a fork.
# The agent starts a driver as "python3 -c <bootstrap>" with two stream sockets:
#
#   fd 3  code: the agent sends {"id", "code", "env", "repr"}, one JSON object a line; the driver answers with lines
#         "M<id> <json>" to be passed to the client as they are, and one line "D<id>" when the code has ended
#   fd 4  control: {"op": "forked"|"env"|"prepare", "env": {...}}, each answered with {"error": "..."} or {}, "prepare"
#         with {"idle": true} if no user code can run before the next line on fd 3: the agent puts off a fork until then
#
# What code and its child processes print goes to descriptors 1 and 2, in one order, and not over
# these sockets.
#
# User code runs in the main thread, where signals arrive. Control runs in a thread of its own, so
# that a fork is handled while user code runs: it needs only the interpreter lock, which running
# byte code gives up every few milliseconds and most long C calls give up at once. What fork hooks
# touch must therefore be safe to touch between two byte codes of user code. SIGINT interrupts user
# code and is ignored otherwise. A process that user code forks says nothing on these sockets, and
# ends where it would return to the driver.
import gc
import json
import os
import signal
import sys
import threading
import traceback
import types

CODE, CONTROL = 3, 4
MAX_MESSAGE = 24 << 20  # characters of a message; less than the host takes
MAX_TEXT = 1 << 20  # characters of each text of a message that was cut
DRIVER = "<forkd-driver>"
for _fd in (CODE, CONTROL):
    os.set_inheritable(_fd, False)

_write_lock = threading.Lock()
_PID = os.getpid()


def _leave():
    """Close the sockets in a forked copy: the agent takes their end for that of the interpreter."""
    for fd in (CODE, CONTROL):
        os.close(fd)


os.register_at_fork(after_in_child=_leave)


def _copied():
    """Whether this process was forked from the interpreter, by whatever means."""
    return os.getpid() != _PID


def _send(fd, line):
    if _copied():
        os._exit(0)  # a callback or the text of an exception forked, and came back here
    data = line.encode("utf-8", "surrogatepass" if fd == CONTROL else "replace") + b"\n"
    while data:
        data = data[os.write(fd, data):]


def _emit(message):
    if _copied():
        return
    text = json.dumps(message)
    if len(text) > MAX_MESSAGE:
        text = json.dumps(_cut(message))
    with _write_lock:
        _send(CODE, "M%d %s" % (_current["id"], text))


def _cut(message):
    """The message without its rich forms, and with the beginning of its texts."""
    out = {}
    for key, value in message.items():
        if isinstance(value, str) and key in ("text", "value", "traceback"):
            rest = len(value) - MAX_TEXT
            out[key] = value if rest <= 0 else "%s… (%d more characters)" % (value[:MAX_TEXT], rest)
        elif key in ("type", "name", "is_main_result"):
            out[key] = value
    return out


# ---- the call that runs --------------------------------------------------------------------------

_current = {"id": 0, "repr": False}
_running = False  # user code runs; SIGINT is for it


def _on_sigint(signum, frame):
    __tracebackhide__ = True  # for IPython: the frame says nothing to the user
    if _running:
        raise KeyboardInterrupt


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


class _Call:
    """The time of one call: its environment, and its end on the code socket."""

    def __init__(self, request):
        self.env = request.get("env") or {}
        _current.update(id=request["id"], repr=bool(request.get("repr")))

    def __enter__(self):
        self.before = {k: os.environ.get(k) for k in self.env}
        os.environ.update(self.env)

    def __exit__(self, *failure):
        for key, value in self.before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        _flush()
        with _write_lock:
            _send(CODE, "D%d" % _current["id"])


def _end_copy(failure):
    """End a process that code forked and that has come to the end of the cell, as the end of a program would."""
    status = 0
    if isinstance(failure, SystemExit) and (failure.code is None or isinstance(failure.code, int)):
        status = failure.code or 0
    elif failure is not None:
        status = 1
        traceback.print_exception(type(failure), failure, failure.__traceback__)
    _flush()
    os._exit(status & 0xFF)


# ---- control -------------------------------------------------------------------------------------

_fork_callbacks = []
_after_fork = []  # the driver's own
_quiet = []  # functions that say whether nothing of the user's waits to run; of the driver


def on_fork(callback):
    """Call callback() in every later fork of this guest, before the fork is handed to its user.

    It runs in a thread of its own, also while code of this interpreter is running. An exception makes the fork fail.
    Use it to reseed generators of your own, such as numpy.random.default_rng() objects, and to drop connections.
    """
    _fork_callbacks.append(callback)
    return callback


def _idle():
    """Whether no code of the user's runs, waits in a thread, a timer or a signal handler, or wants to know of forks.

    What is between cells is told by the agent, which asks for nothing while code runs and believes the answer only
    until the next cell.
    """
    if _running or _fork_callbacks or not all(quiet() for quiet in _quiet):
        return False
    if any(signal.getitimer(which)[0] for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)):
        return False
    return not any(callable(signal.getsignal(n)) for n in signal.valid_signals() if n != signal.SIGINT)


def _control(request):
    """Carry out a request and return the answer."""
    op = request.get("op")
    os.environ.update(request.get("env") or {})
    if op == "forked":
        _reseed()
        for callback in _after_fork + _fork_callbacks:
            callback()
    elif op == "prepare":
        # A collection in a child would write to the header of every object, and so copy every page.
        # Frozen objects are left out of it. The reseed is a rehearsal: what it allocates and
        # compiles, it does once, in the parent.
        gc.unfreeze()
        gc.collect()
        _reseed()
        gc.freeze()
        return {"idle": _idle()}
    elif op != "env":
        raise ValueError("unknown op %r" % (op,))
    return {}


def _control_loop():
    for line in os.fdopen(CONTROL, "rb", closefd=False):
        try:
            reply = _control(json.loads(line))
        except BaseException as exc:
            reply = {"error": "".join(traceback.format_exception_only(type(exc), exc)).strip()}
        _send(CONTROL, json.dumps(reply))


def _requests():
    for line in os.fdopen(CODE, "rb", closefd=False):
        yield json.loads(line)


def _start(display):
    """Make the interpreter ready for the agent, but for the word that it is."""
    signal.signal(signal.SIGINT, _on_sigint)
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    module = types.ModuleType("forkd", "What code in a forkd sandbox can ask of its interpreter.")
    module.on_fork, module.display = on_fork, display
    sys.modules["forkd"] = module
    threading.Thread(target=_control_loop, name="forkd-control", daemon=True).start()


def _ready():
    """Tell the agent. Threads and what else waits by now is the driver's own."""
    threads = len(sys._current_frames())
    _quiet.append(lambda: len(sys._current_frames()) <= threads)
    _emit({"type": "ready"})
