# The driver of a Jupyter kernel: ipykernel runs in this process as it does anywhere else, with its
# event loop in the main thread, and a thread beside it is its one client. The two speak Jupyter's
# wire protocol (https://jupyter-client.readthedocs.io/en/stable/messaging.html) over unix sockets.
# So a context is one process, which a fork copies, the agent interrupts and kills, like that of any
# other driver.
#
# Only what is printed takes another way: it stays on descriptors 1 and 2, in one order with the
# output of child processes, instead of becoming "stream" messages. The kernel's files have names
# only until the client is connected. After a fork the client and the kernel take a new session id
# and a new key, before the next call.
import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REPLY_WAIT_MS = 1000  # for the reply after the kernel is idle again; an interrupt at the wrong moment loses it


class _Client:
    """The one client of the kernel. Its methods belong to one thread."""

    def __init__(self, app):
        import zmq
        from jupyter_client.session import Session

        self.kernel = app.kernel
        self.session = Session(key=app.session.key, username="forkd")
        self.forked = False
        self.shell = app.context.socket(zmq.DEALER)
        self.published = app.context.socket(zmq.SUB)
        self.published.rcvhwm = 0  # 0: no message is dropped
        self.published.subscribe(b"")
        self.shell.connect("ipc://%s-%d" % (app.ip, app.shell_port))
        self.published.connect("ipc://%s-%d" % (app.ip, app.iopub_port))

    def wait_until_ready(self):
        while True:  # what was published before the subscription arrived is lost
            self.session.send(self.shell, "kernel_info_request")
            if self.published.poll(100):
                break
        self.execute("None", lambda kind, content: None, silent=True)

    def renew(self):
        """Take a session id and a key that no sibling has."""
        from jupyter_client.session import new_id, new_id_bytes

        self.session.key = self.kernel.session.key = new_id_bytes()
        self.session.session, self.kernel.session.session = new_id(), new_id()

    def execute(self, code, handle, silent=False):
        """Run code and hand what the kernel says of it to handle(kind, content), the reply last."""
        if self.forked:
            self.forked = False
            self.renew()
        sent = self.session.send(self.shell, "execute_request", {
            "code": code, "silent": silent, "store_history": not silent, "user_expressions": {},
            "allow_stdin": False, "stop_on_error": False,  # else it might drop the next request as well
        })["header"]["msg_id"]
        while True:
            kind, content = self._receive(self.published, sent)
            if kind == "status" and content["execution_state"] == "idle":
                break
            handle(kind, content)
        while self.shell.poll(_REPLY_WAIT_MS):
            kind, content = self._receive(self.shell, sent)
            if kind == "execute_reply":
                handle(kind, content)
                break

    def _receive(self, socket, parent):
        """The next message, or ("", {}) for one that is not about the request."""
        try:
            _, message = self.session.recv(socket, mode=0)
        except ValueError:  # signed before a fork
            return "", {}
        if message is None or message["parent_header"].get("msg_id") != parent:
            return "", {}
        return message["msg_type"], message["content"]


def _answer(kind, content, state):
    """Pass what the kernel says of a call on to the agent."""
    if kind in ("display_data", "execute_result"):
        out = {"type": "result", "is_main_result": kind == "execute_result"}
        _bundle(content["data"], out)
        if not _current["repr"] and isinstance(out.get("text"), str):
            out["text"] = _unquoted(out["text"])
        _emit(out)
    elif kind == "error" or kind == "execute_reply" and content["status"] == "error":
        if not state.get("failed"):  # the kernel says it twice
            state["failed"] = True
            _emit({"type": "error", "name": content["ename"], "value": content["evalue"],
                   "traceback": _COLOUR.sub("", "\n".join(content["traceback"]))})
    elif kind == "execute_reply" and content["status"] != "ok":
        _emit({"type": "error", "name": "ExecutionAborted", "value": "the kernel did not run the code", "traceback": ""})


def _formatter(mime, form, parent):
    """A formatter of IPython's for one of E2B's forms."""
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class Formatter(BaseFormatter):
        format_type = Unicode(mime)
        print_method = ObjectName("_repr_%s_" % mime.replace("/", "_"))
        _return_type = (dict, str)

        def __call__(self, value):
            if _current["repr"]:  # of forkd's own API, which has no such forms
                return None
            found = form(value)
            return super().__call__(value) if found is None else found

    return Formatter(parent=parent)


def _new_kernel(directory):
    """A kernel that listens in the directory and takes its interrupts and its output as the agent expects it."""
    sys.modules["debugpy"] = None  # not there while the kernel looks for it: its only client asks for no debugger
    from ipykernel.kernelapp import IPKernelApp
    from traitlets.config import Config
    del sys.modules["debugpy"]

    class App(IPKernelApp):
        def write_connection_file(self, *args, **kwargs):
            """None: nobody else connects."""

        def init_io(self):
            streams = sys.stdout, sys.stderr
            super().init_io()
            sys.stdout, sys.stderr = streams

    config = Config()
    config.HistoryManager.enabled = False  # it would write each call into a database
    app = App.instance(config=config, transport="ipc", ip=os.path.join(directory, "kernel"),
                       connection_file=os.path.join(directory, "none.json"), capture_fd_output=False)
    app.initialize([])
    app.iopub_thread.socket.sndhwm = 0  # 0: no message is dropped
    app.kernel.pre_handler_hook = app.kernel.post_handler_hook = lambda *args: None  # SIGINT is handled in wire.py
    for mime, form in _EXTRA_FORMS:
        formatters = app.shell.display_formatter.formatters
        formatters[mime] = _formatter(mime, form, app.shell.display_formatter)
    _watch_cells(app.shell)
    _wake_at_signals()
    return app


def _watch_cells(shell):
    def begin(*args):
        global _running
        _running = True

    def end(result=None, *args):
        global _running
        _running = False
        if _copied():
            failure = result and (result.error_before_exec or result.error_in_exec)
            _end_copy(failure if isinstance(failure, SystemExit) else failure and SystemExit(1))

    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)


def _wake_at_signals():
    """Have signals wake the event loop: what ipykernel does at an interrupt waits for its next round."""
    from tornado.ioloop import IOLoop

    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    IOLoop.current().asyncio_loop.add_reader(ours, ours.recv, 64)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)


def _watch_loop(client):
    """Tell the agent that the interpreter is not idle while the user's tasks or timers wait in the kernel's loop."""
    import ipykernel

    loop = client.kernel.io_loop.asyncio_loop
    package = os.path.dirname(ipykernel.__file__) + os.sep

    def of_user(task):
        # The kernel has tasks of its own, also for a moment after its reply to a call.
        code = getattr(task.get_coro(), "cr_code", None)
        return code is None or not code.co_filename.startswith(package)

    _quiet.append(lambda: not any(map(of_user, asyncio.all_tasks(loop))))
    _quiet.append(lambda: not getattr(loop, "_scheduled", ()))


def _serve_calls(app, directory):
    client = _Client(app)
    client.wait_until_ready()
    shutil.rmtree(directory, ignore_errors=True)
    _after_fork.append(lambda: setattr(client, "forked", True))
    _watch_loop(client)
    _ready()
    for request in _requests():
        with _Call(request):
            state = {}
            client.execute(request["code"], lambda kind, content: _answer(kind, content, state))


def _serve_jupyter():
    directory = tempfile.mkdtemp(prefix="forkd-jupyter-")  # mode 0700
    app = _new_kernel(directory)

    def serve():
        try:
            _serve_calls(app, directory)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # the agent has gone, or would wait for an answer

    from IPython.display import display
    _start(display)
    threading.Thread(target=serve, name="forkd-client", daemon=True).start()
    app.start()
    _flush()
    os._exit(0)  # exit() ended the kernel. Its own end would wait for the client
