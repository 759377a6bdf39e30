# The driver of one warm Python interpreter. The agent starts it as "python3 -c <bootstrap>" with two stream sockets:
#
#   fd 3  code: the agent sends {"id", "code", "env", "repr"}, one JSON object a line; the driver answers with lines
#         "M<id> <json>" to be passed to the client as they are, and one line "D<id>" when the code has ended
#   fd 4  control: {"op": "forked"|"env"|"prepare", "env": {...}}, each answered with {"error": "..."} or {}, "prepare"
#         with {"idle": true} if no user code can run before the next line on fd 3: the agent puts off a fork until then
#
# User code runs in the main thread, where signals arrive. Control runs in a thread of its own, so that a fork is
# handled while user code runs: it needs only the interpreter lock, which running byte code gives up every few
# milliseconds and most long C calls give up at once. What fork hooks touch must therefore be safe to touch between
# two byte codes of user code. SIGINT interrupts user code and is ignored otherwise. A process that user code forks says
# nothing on these sockets, and ends where it would return to the driver.
import ast
import asyncio
import base64
import builtins
import gc
import inspect
import json
import linecache
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


# ---- rich results -------------------------------------------------------------------------------------------------

_METHODS = (
    ("_repr_html_", "html", False),
    ("_repr_markdown_", "markdown", False),
    ("_repr_svg_", "svg", False),
    ("_repr_png_", "png", True),
    ("_repr_jpeg_", "jpeg", True),
    ("_repr_pdf_", "pdf", True),
    ("_repr_latex_", "latex", False),
    ("_repr_json_", "json", False),
    ("_repr_javascript_", "javascript", False),
)
_MIME = {
    "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript", "text/plain": "text",
}


def _binary(value):
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value


def _call(value, name):
    # Classes have these methods too, unbound; they are for instances.
    method = None if isinstance(value, type) else getattr(value, name, None)
    if not callable(method):
        return None
    try:
        got = method()
    except NotImplementedError:
        return None
    return got[0] if isinstance(got, tuple) else got  # (data, metadata) is allowed


def _rich(value):
    out = {}
    bundle = _call(value, "_repr_mimebundle_")
    if isinstance(bundle, dict):
        for mime, data in bundle.items():
            key = _MIME.get(mime)
            if key:
                out[key] = _binary(data)
            else:
                out.setdefault("extra", {})[str(mime)] = _binary(data)
    for name, key, binary in _METHODS:
        if key not in out:
            got = _call(value, name)
            if got is not None:
                out[key] = _binary(got) if binary else got
    return out


def _result(value, main, keep_quotes):
    out = {"type": "result", "is_main_result": main, "text": repr(value)}
    text = out["text"]
    if not keep_quotes and len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        out["text"] = text[1:-1]
    rich = _rich(value)
    if keep_quotes:
        rich.pop("text", None)
    out.update(rich)
    sys.stdout.flush()
    try:
        _emit(out)
    except (TypeError, ValueError):  # a rich form that is not JSON; the plain one always is
        _emit({k: v for k, v in out.items() if isinstance(v, (str, bool))})


def display(*values, **_):
    """Send values to the client as results of the running code, as notebooks do."""
    for value in values:
        _result(value, False, _current["repr"])


def _show_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    import io
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        png = io.BytesIO()
        figure.savefig(png, format="png", bbox_inches="tight")
        _emit({"type": "result", "is_main_result": False, "text": repr(figure), "png": _binary(png.getvalue())})
    pyplot.close("all")


# ---- running code -------------------------------------------------------------------------------------------------

_main = types.ModuleType("__main__")
_main.__dict__.update(__builtins__=builtins, display=display)
sys.modules["__main__"] = _main
_current = {"id": 0, "repr": False}
_count = 0
_running = False
_loop = None


def _on_sigint(signum, frame):
    if _running:
        raise KeyboardInterrupt


def _execute(code, namespace):
    """Run a code object; one that awaits at its top level runs in this interpreter's event loop."""
    global _loop
    if not code.co_flags & inspect.CO_COROUTINE:
        return eval(code, namespace)
    if _loop is None:
        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
    return _loop.run_until_complete(eval(code, namespace))


def _run_cell(source, name):
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    tree = compile(source, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    namespace = _main.__dict__
    if tree.body:
        _execute(compile(tree, name, "exec", flags, True), namespace)
    if last is not None:
        value = _execute(compile(last, name, "eval", flags, True), namespace)
        if value is not None:
            namespace["_"] = value
            _result(value, True, _current["repr"])
    _show_figures()


def _error(exc):
    # The driver's own frames say nothing to the user.
    tb = exc.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == DRIVER:
        tb = tb.tb_next
    exc.__traceback__ = tb
    try:
        value = str(exc)
    except Exception:
        value = "<exception without a message>"
    _emit({
        "type": "error", "name": type(exc).__name__, "value": value,
        "traceback": "".join(traceback.format_exception(type(exc), exc, tb)),
    })


def _run(request):
    global _count, _running
    _count += 1
    _current.update(id=request["id"], repr=bool(request.get("repr")))
    failure = None
    env = request.get("env") or {}
    before = {k: os.environ.get(k) for k in env}
    os.environ.update(env)
    try:
        _running = True
        try:
            _run_cell(request["code"], "<cell %d>" % _count)
        finally:
            _running = False
    except BaseException as exc:  # SystemExit ends the cell, not the interpreter
        _running = False  # again: an interrupt may have hit the line that does it
        failure = exc
    if _copied():
        _end_copy(failure)
    try:
        if failure is not None:
            _error(failure)
    finally:
        failure = None  # it would keep the frames of the cell, and what they hold, alive
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
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
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(status & 0xFF)


# ---- control ------------------------------------------------------------------------------------------------------

_fork_callbacks = []


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
    if _running or _fork_callbacks or len(sys._current_frames()) > 2:
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
        for callback in _fork_callbacks:
            callback()
    elif op == "prepare":
        # A collection in a child would write to the header of every object, and so copy every page. Frozen objects
        # are left out of it. The reseed is a rehearsal: what it allocates and compiles, it does once, in the parent.
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


def _serve():
    signal.signal(signal.SIGINT, _on_sigint)
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    module = types.ModuleType("forkd", "What code in a forkd sandbox can ask of its interpreter.")
    module.on_fork, module.display = on_fork, display
    sys.modules["forkd"] = module
    threading.Thread(target=_control_loop, name="forkd-control", daemon=True).start()
    _emit({"type": "ready", "version": sys.version.split()[0]})
    for line in os.fdopen(CODE, "rb", closefd=False):
        _run(json.loads(line))


_serve()
