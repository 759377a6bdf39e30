# The driver of forkd's own interpreter, which needs nothing but Python: it stands in for Jupyter's
# kernel where the image has none. Code runs here, in the main thread of this process.
import ast
import asyncio
import builtins
import inspect
import io
import linecache
import os
import sys
import textwrap
import traceback
import types

# ---- results -------------------------------------------------------------------------------------

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
        _bundle(bundle, out)
    for name, key, binary in _METHODS:
        if key not in out:
            got = _call(value, name)
            if got is not None:
                out[key] = _binary(got) if binary else got
    if _is_figure(value) and "png" not in out:
        png = io.BytesIO()
        value.savefig(png, format="png", bbox_inches="tight")
        out["png"] = _binary(png.getvalue())
    return out


def _result(value, main):
    text = repr(value)
    rich = _rich(value)
    if _current["repr"]:  # of forkd's own API, which has no such forms
        rich.pop("text", None)
    else:
        text = _unquoted(text)
        _bundle({mime: form for mime, of in _EXTRA_FORMS if (form := of(value)) is not None}, rich)
    out = {"type": "result", "is_main_result": main, "text": text, **rich}
    sys.stdout.flush()
    try:
        _emit(out)
    except (TypeError, ValueError):  # a rich form that is not JSON; the plain one always is
        _emit({k: v for k, v in out.items() if isinstance(v, (str, bool))})


def display(*values, **_):
    """Send values to the client as results of the running code, as notebooks do."""
    for value in values:
        _result(value, False)


def _show_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    for number in pyplot.get_fignums():
        _result(pyplot.figure(number), False)
    pyplot.close("all")


# ---- running code --------------------------------------------------------------------------------

_main = types.ModuleType("__main__")
_main.__dict__.update(__builtins__=builtins, display=display)
_count = 0
_loop = None


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
    if source.lstrip("\r\n")[:1] in (" ", "\t"):
        source = textwrap.dedent(source)  # code that was quoted with its indentation, as in notebooks
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
            _result(value, True)
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
    failure = None
    with _Call(request):
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
        if failure is not None:
            _error(failure)
            failure = None  # it would keep the frames of the cell, and what they hold, alive


def _serve_own():
    os.environ.setdefault("MPLBACKEND", "Agg")  # plots are rendered to images
    sys.modules["__main__"] = _main
    _start(display)
    _ready()
    for request in _requests():
        _run(request)
