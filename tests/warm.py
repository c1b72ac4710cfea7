"""Starts programs of ours as copies of a process that has loaded the package already.

Most of the time of a short command is Python loading modules. Once per pytest process, this file
runs as a program of its own, the *stock*: it loads all modules, and then makes a copy of itself
for each command that a test starts. The copy is a child of the test process like any other, with
its own arguments, environment, folder, descriptors and session, and takes signals and ends alike.

`subprocess` and `asyncio` start programs this way by themselves: tests do not change. What a copy
cannot be is started from scratch, and so are programs of tests marked `cold`, programs that
Python is to start in another way (options, `PYTHON...`, a locale), with code to be called before
they begin, and all of them until the stock is ready.

The workers of `pytest -n` are copies as well, of a second stock: it has then collected all tests,
and hands them over (`collected`). Before such a worker begins, it copies itself once more: that
copy is the stock of its programs.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import logging
import os
import pkgutil
import platform
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import new_databases

_MODULES = ("agent_core.cli", "kgent", "uvicorn")
_PACKAGES = (
    "agcore",
    "agent_core",
    "kgent",
    "acp",
    "anyio._backends._asyncio",
    "httptools",
    "starlette",
    "tomlkit",
    "uvicorn",
    "mcp.server",
)
_OF_TESTS = ("fastapi", "pydantic_ai.models.openai", "sse_starlette")
"""What tests of every kind load when they first need it: a second of work in each worker."""
_CACHING = (
    "agent_core.tools.schema",
    "agent_core.config.models",
    "agent_core.tools.sensitive",
    "prompt_toolkit.application.application",
)
_SCRIPTS = ("soong-agent",)
_WORKER = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]  # how xdist starts one
_TESTS = Path(__file__).resolve().parent
_FOLDERS = (_TESTS, _TESTS.parent / "examples")
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_CLONE_PARENT = 0x8000
_MADV_COLLAPSE = 25
_HUGE = 1 << 21
_FIRST_FREE = 300  # above all descriptors of the stock
_AT_START = ("LANG", "LC_", "LD_", "MALLOC", "PYTHON")  # read when a process begins
_HEEDED = (  # by a copy as well
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONWARNINGS=error",
)

_KEPT = ("__main__", "new_databases", "warm")
_path_before: list[str] = []  # of the modules, before the tests were collected
_found: list[tuple[Any, Any]] = []  # the session with the collected tests, and what was skipped

is_cold = False  # a test wants its programs started from scratch


class Stock:
    """The process that is copied, as the process of the tests sees it.

    Args:
        pid: The process, a child of this one.
        connection: How it is asked for copies.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self._pid = pid
        self._socket = connection
        self._lock = threading.Lock()
        self._is_ready = False
        self._environ = _decisive(os.environ)

    @classmethod
    def started(cls, *tests: str) -> "Stock":
        """Start one.

        Args:
            tests: What of pytest's arguments decides which tests it imports; without any it only
                loads the modules of our programs.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - this file
                [sys.executable, __file__, str(theirs.fileno()), *tests],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        process.returncode = 0  # it is waited for by its id
        return cls(process.pid, ours)

    def start(
        self, job: Mapping[str, Any], environ: Mapping[str, str], descriptors: Mapping[int, int]
    ) -> int | None:
        """Return the id of a new process; None if it must be started from scratch."""
        if _decisive(environ) != self._environ:
            return None
        told = json.dumps({**job, "environ": dict(environ), "fds": list(descriptors)}).encode()
        with self._lock:
            if not self._may_ask():
                return None
            try:
                size = len(told).to_bytes(4, "big")
                socket.send_fds(self._socket, [size], list(descriptors.values()))
                self._socket.sendall(told)
                return int.from_bytes(self._socket.recv(4, socket.MSG_WAITALL), "big") or None
            except OSError:
                return None

    def wait(self) -> bool:
        """Return whether copies can be made, once that is known."""
        with self._lock:
            while not self._may_ask(10):
                ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    break
            return self._is_ready

    def end(self) -> None:
        """End the process that is copied; its copies live on."""
        self._socket.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _may_ask(self, patience_s: float = 0) -> bool:
        if not self._is_ready and select.select([self._socket], [], [], patience_s)[0]:
            with contextlib.suppress(OSError):
                self._is_ready = self._socket.recv(4, socket.MSG_WAITALL) == b"warm"
        return self._is_ready


def install() -> None:
    """Let `subprocess`, and all that is built on it, start our programs as copies."""
    if sys.platform != "linux" or _CLONE is None:
        return
    begin: Any = getattr(subprocess.Popen, "_execute_child")  # noqa: B009 - it has no type
    if begin.__module__ == __name__:  # a copy may load `conftest.py` once more
        return
    signature = inspect.signature(begin)

    def begin_warm(self: Any, *positional: Any, **named: Any) -> None:
        given = signature.bind(self, *positional, **named).arguments
        pid = _start(given)
        if pid is None:
            begin(self, *positional, **named)
            return
        self.pid = pid
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))

    setattr(subprocess.Popen, "_execute_child", begin_warm)  # noqa: B010 - it has no type


def begin() -> None:
    """Begin to load now; otherwise the first programs are started from scratch meanwhile."""
    if sys.platform == "linux" and _CLONE is not None:
        _opened()


def begin_workers(tests: Sequence[str]) -> None:
    """Begin to import tests for the workers, which are copied once that is done."""
    if sys.platform == "linux" and _CLONE is not None:
        _workers.append(Stock.started(*tests))


def keep_stock(pid: int, connection: socket.socket) -> None:
    """Let programs be started as copies of this child, which serves the connection."""
    _stock.append(Stock(pid, connection))


def wait() -> None:
    """Return once programs are started as copies."""
    assert _opened().wait()


def wait_if_begun() -> None:
    """Return once programs are started as copies, or cannot be; at once if that has not begun."""
    for each in _stock:
        each.wait()


def end() -> None:
    """End the processes that are copied."""
    while _doors:
        with _doors.pop() as door, contextlib.suppress(OSError):  # its other end may be gone
            door.shutdown(socket.SHUT_RDWR)
    for each in (_stock, _workers):
        while each:
            each.pop().end()


def arguments(*words: str) -> list[str]:
    """Return arguments for Python with which a program is copied, whoever starts it."""
    if sys.platform != "linux" or _CLONE is None:
        return list(words)
    if not _doors:
        _doors.append(_open_door())
    address: str = _doors[0].getsockname()
    return ["-S", "-E", str(_TESTS / "warm_client.py"), address, *words]


def write_command(folder: Path, name: str = "soong-agent", module: str = "agent_core.cli") -> None:
    """Write a command into a folder for `PATH`, so that a shell starts copies of it."""
    folder.mkdir(exist_ok=True)
    words = shlex.join([sys.executable, *arguments("-m", module)])
    (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    (folder / name).chmod(0o755)


def _open_door() -> socket.socket:
    """Listen for `warm_client` until the end."""
    folder = tempfile.mkdtemp(prefix="soong-agent-warm-")
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{folder}/door")
    door.listen()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def receive() -> None:
        with contextlib.suppress(OSError):
            while True:
                asked, _ = door.accept()
                threading.Thread(target=_run_for, args=(asked,), daemon=True).start()

    threading.Thread(target=receive, daemon=True).start()
    return door


def _run_for(asked: socket.socket) -> None:
    """Run a program for another process: with its streams, and not longer than it lives."""
    with asked:
        size, streams, _, _ = socket.recv_fds(asked, 4, 3)
        job = json.loads(asked.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        environ: dict[str, str] = job["environ"]
        given = {name: value for name, value in environ.items() if not _is_heeded(name)}
        try:
            process = subprocess.Popen(  # noqa: S603 - a program of a test
                [sys.executable, *job["words"]],
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                cwd=job["folder"],
                env={**given, **_decisive(os.environ)},
            )
        finally:
            for each in streams:
                os.close(each)
        is_over = os.pidfd_open(process.pid)
        try:
            while is_over not in select.select([asked, is_over], [], [])[0]:
                told = asked.recv(1)
                process.send_signal(told[0] if told else signal.SIGKILL)
                if not told:
                    break
        finally:
            os.close(is_over)
        code = process.wait()
        with contextlib.suppress(OSError):
            asked.sendall(code.to_bytes(4, "big", signed=True))


_stock: list[Stock] = []
_workers: list[Stock] = []  # what they are copied from
_doors: list[socket.socket] = []


def _opened() -> Stock:
    if not _stock:
        _stock.append(Stock.started())
    return _stock[0]


def _start(given: Mapping[str, Any]) -> int | None:
    """Return the id of the copy that runs this program; None if it is started from scratch."""
    if is_cold or isinstance(given["args"], str | bytes | os.PathLike):
        return None
    words = [os.fsdecode(word) for word in given["args"]]
    unusual = ("preexec_fn", "executable", "shell")
    is_worker = words[1:] == _WORKER and _workers and _workers[0].wait()
    if (
        not (is_worker or _is_ours(words))
        or any(given[name] for name in unusual)
        or not given["close_fds"]
        or any(given[name] not in (None, -1) for name in ("gid", "gids", "uid", "umask"))
    ):
        return None
    stock = _workers[0] if is_worker else _opened()
    folder = os.fsdecode(Path.cwd() if given["cwd"] is None else given["cwd"])
    given_environ = os.environ if given["env"] is None else given["env"]
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in given_environ.items()}
    if not os.access(folder, os.X_OK) or not {*_path(environ)} <= {*sys.path, *_path(os.environ)}:
        return None  # modules of another place may have the names of those that are loaded
    pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    descriptors = {to: to if own == -1 else own for to, own in enumerate(pipes)}
    job = {
        "words": words[1:] if words[0] == sys.executable else words,
        "folder": folder,
        "is_leader": bool(given["start_new_session"]),
        "group": given.get("process_group", -1),
        "umask": _umask(),
        "copies_databases": new_databases.are_copied,
    }
    return stock.start(
        job,
        environ,
        descriptors | {number: number for number in given["pass_fds"]},
    )


def _is_ours(words: Sequence[str]) -> bool:
    """Return whether a command line is one that a copy can carry out."""
    if words[0] != sys.executable:
        return Path(words[0]).parent == Path(sys.executable).parent and (
            Path(words[0]).name in _SCRIPTS
        )
    if words[1:2] == ["-m"]:
        return words[2] in _MODULES
    script = Path(words[1] if words[1:] else "")
    is_of_a_test = any(map(script.is_relative_to, _FOLDERS)) or (  # or was written by one
        script.is_relative_to(tempfile.gettempdir()) and not script.is_relative_to(_TESTS.parent)
    )
    return script.suffix == ".py" and is_of_a_test and script != Path(__file__)


def _decisive(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that a process heeds only while it begins."""
    return {
        name: value
        for name, value in environ.items()
        if _is_heeded(name) and f"{name}={value}" not in _HEEDED
    }


def _is_heeded(name: str) -> bool:
    """Return whether a process heeds the variable only while it begins."""
    return name.startswith(_AT_START) and name not in _HEEDED


def _path(environ: Mapping[str, str]) -> list[str]:
    return [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def _umask() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


# What follows runs in the stock and its copies.


def _load() -> None:
    """Load all that a command may need, and keep it out of every search for garbage."""
    pydantic: Any = importlib.import_module("pydantic")
    with warnings.catch_warnings():  # at its end, what has been warned of is forgotten
        warnings.simplefilter("ignore")
        for package in _PACKAGES:
            _load_package(package)
    for model in list(_subclasses(pydantic.BaseModel)):
        if model.__module__.startswith("agent_core."):
            model.model_rebuild(raise_errors=False)
    _fill_caches()
    with warnings.catch_warnings():
        _rehearse()
    new_databases.install()
    gc.collect()
    gc.freeze()


def _import_tests(arguments: Sequence[str]) -> None:
    """Collect the tests that pytest finds with these arguments, and keep them for the copies."""
    pytest, collected = map(importlib.import_module, ("pytest", "collected"))
    unneeded = [f"-pno:{name}" for name in ("cacheprovider", "rerunfailures", "xdist")]
    tests: Any = collected.Collecting()
    # What is imported may keep the standard output that it finds: that stays the one of copies.
    shown = os.dup(1)
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 1)
    pytest.main([*arguments, "--collect-only", "-qs", *unneeded], plugins=[tests])
    sys.stdout.flush()
    os.dup2(shown, 1)
    os.close(shown)
    if tests.failed or tests.session is None:
        _forget_modules(tests.failed)  # the workers tell why they cannot be imported
    else:
        _found.append((tests.session, tests.skipped))
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a copy would be without the threads of these tests"


def _forget_modules(tests: Sequence[str]) -> None:
    paths = {str(Path(each).resolve()) for each in tests}
    for name, module in [*sys.modules.items()]:
        if getattr(module, "__file__", None) in paths:
            del sys.modules[name]


def _fill_caches() -> None:
    """Make what nearly every command would make: a fifth of the work of a short one."""
    schema, settings, paths, prompt = map(importlib.import_module, _CACHING)
    for model in list(_subclasses(schema.Arguments)):
        schema.model_schema(model)
    entries = settings.ToolsConfig().sensitive_paths
    paths.SensitivePaths(entries, project=Path("/")).hold(Path("/a/b"))
    # A prompt begins with a thousand bindings of keys, the same in every process.
    bindings = prompt.load_key_bindings()
    assert bindings.bindings
    setattr(prompt, "load_key_bindings", lambda: bindings)  # noqa: B010 - modules have no such type


def _load_package(name: str) -> None:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), f"{name}."):
        if found.name.rpartition(".")[2] != "__main__" and "testing" not in found.name:
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)


def _rehearse() -> None:
    """Carry out a run and a list, so that copies find patterns, schemas and texts prepared."""
    environ, words = dict(os.environ), sys.argv
    streams = sys.stdin, sys.stdout, sys.stderr
    handled = {number: signal.getsignal(number) for number in signal.valid_signals()}
    main: Any = importlib.import_module("agent_core.cli").main
    with (
        tempfile.TemporaryDirectory(prefix="soong-agent-warm-") as place,
        Path(os.devnull).open("r+", encoding="utf-8") as null,
    ):
        home, project = Path(place, "home"), Path(place, "project")
        home.mkdir()
        shutil.copytree(_TESTS.parent / "examples" / "hello-project", project)
        replies = json.dumps(str(_TESTS.parent / "examples" / "hello-replies.json"))
        (home / "config.toml").write_text(
            f'[model]\nprovider = "scripted"\nname = "m"\ncontext_window = 32768\npath = {replies}',
            encoding="utf-8",
        )
        os.environ["SOONG_AGENT_HOME"] = str(home)
        sys.stdin = sys.stdout = sys.stderr = null
        try:
            for command in (["run", "--mode", "accept-edits", "Fix the typo."], ["sessions"]):
                sys.argv = ["soong-agent", *command, "--path", str(project)]
                with contextlib.suppress(SystemExit):
                    main()
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
            sys.argv = words
            os.environ.clear()
            os.environ.update(environ)
    _restore_logging()
    assert handled == {number: signal.getsignal(number) for number in handled}
    # What confines a command depends on the environment, too.
    importlib.import_module("agent_core.process.confinement").probe.cache_clear()
    assert threading.active_count() == 1, "a copy would be without the threads of the rehearsal"


def _restore_logging() -> None:
    """Undo what the command line does for its own messages: a copy may be another program."""
    logging.captureWarnings(capture=False)
    logging.getLogger().handlers.clear()
    for each in logging.getLogger().manager.loggerDict.values():
        if isinstance(each, logging.Logger):
            each.propagate = True
            each.setLevel(logging.NOTSET)


def _use_huge_pages() -> None:
    """Have the system keep this memory in a few large pages: it copies their table for each copy.

    That halves what a short command costs. Linux before 6.1 cannot, which only takes longer.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        area, rights, _, _, inode, *name = line.split()
        if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            begin, end = (int(each, 16) for each in area.split("-"))
            for page in range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                advise(page, _HUGE, _MADV_COLLAPSE)


def _subclasses(of: type[Any]) -> Iterable[type[Any]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


def _serve(asked: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Make a copy for each job, and return only in a copy: with its job and its descriptors."""
    with contextlib.suppress(OSError):
        asked.sendall(b"warm")
    while True:
        size, fds, _, _ = socket.recv_fds(asked, 4, 64)
        if not size:
            os._exit(0)
        job = json.loads(asked.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        pid = _fork()
        if pid == 0:
            return job, fds
        for each in fds:
            os.close(each)
        asked.sendall(max(pid, 0).to_bytes(4, "big"))


def _fork() -> int:
    """Do what `os.fork` does, with a child whose parent is the parent of this process."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid = system.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    (python.PyOS_AfterFork_Child if pid == 0 else python.PyOS_AfterFork_Parent)()
    return pid


def _run_next(asked: socket.socket) -> None:
    """Serve as the stock, and run the program of a job in each copy; return in none."""
    job, fds = _serve(asked)
    _take_place(job, fds)
    sys.orig_argv[:] = [sys.executable, *job["words"]]
    _run(job["words"])


def _take_place(job: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Give this copy what the process of the job would have been started with."""
    if job["is_leader"]:
        os.setsid()
    if job["group"] is not None and job["group"] >= 0:
        os.setpgid(0, job["group"])
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, _FIRST_FREE) for each in fds]
    os.closerange(0, _FIRST_FREE)
    for number, descriptor in zip(job["fds"], moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.umask(job["umask"])
    new_databases.are_copied = job["copies_databases"]
    os.chdir(job["folder"])
    added = len(_path(os.environ))
    sys.path[1:] = dict.fromkeys([*_path(job["environ"]), *sys.path[1 + added :]])
    sys.dont_write_bytecode = bool(job["environ"].get("PYTHONDONTWRITEBYTECODE"))
    if job["environ"].get("PYTHONWARNINGS") == "error":
        sys.warnoptions[:] = ["error"]
        warnings.simplefilter("error")
    os.environ.clear()
    os.environ.update(job["environ"])
    time.tzset()
    sys.stdin = sys.__stdin__ = _text(0, sys.stdin, "r")
    sys.stdout = sys.__stdout__ = _text(1, sys.stdout, "w")
    sys.stderr = sys.__stderr__ = _text(2, sys.stderr, "w")


def _text(number: int, like: Any, mode: str) -> Any:
    """Open a standard stream as Python opens it."""
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    is_raw = is_unbuffered and mode == "w"
    binary: Any = open(number, f"{mode}b", 0 if is_raw else -1, closefd=False)  # noqa: SIM115
    (binary if is_raw else binary.raw).name = like.name
    text: Any = io.TextIOWrapper(
        binary,
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=not is_unbuffered and (number == 2 or os.isatty(number)),
        write_through=is_unbuffered,
    )
    text.mode = mode
    return text


def _run(words: list[str]) -> None:
    """Run a program the way `python` would, except that it does not take itself apart at its end.

    That takes longer than the whole command where much is loaded.
    """
    code = 1
    try:
        _call_main(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - it is shown as Python shows it
        _show(error)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if sys.warnoptions == ["error"]:
        gc.collect()  # what was left open is reported
    python: Any = (threading, atexit)
    python[0]._shutdown()
    python[1]._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _show(error: BaseException) -> None:
    """Print an error without the calls that led to the program."""
    shown = error.__traceback__
    while shown and shown.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        shown = shown.tb_next
    traceback.print_exception(type(error), error, shown)


def _make_stock() -> None:
    """Copy this worker before it begins, and let the copy be the stock of its programs."""
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        importlib.import_module("warm").keep_stock(pid, ours)
        return
    ours.close()
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)
    _forget_tests()
    _run_next(theirs)


def _forget_tests() -> None:
    """Undo what collecting the tests has done to this process, beyond loading modules."""
    warm: Any = importlib.import_module("warm")
    warm.is_cold = True
    sys.path[:] = _path_before
    for name, module in [*sys.modules.items()]:
        place = getattr(module, "__file__", None)
        if place and name not in _KEPT and Path(place).is_relative_to(_TESTS):
            del sys.modules[name]
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)
    _restore_logging()


def _call_main(words: list[str]) -> None:
    if words == _WORKER:
        _make_stock()
        for each in _found:
            importlib.import_module("collected").hand_over(*each)
        sys.path[0] = ""
        sys.argv = ["-c"]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(words[-1], vars(main))  # noqa: S102 - as Python would
        return
    if words[0] == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(words[0]).resolve().parent)
    sys.argv = words
    if words[0].endswith(".py"):
        runpy.run_path(words[0], run_name="__main__")
    else:
        sys.exit(importlib.import_module("agent_core.cli").main())


if __name__ == "__main__":
    if sys.argv[2:]:
        importlib.import_module("hypothesis")  # which warns if it finds `trio` loaded before it
        _load()
        for each in _OF_TESTS:
            with contextlib.suppress(ImportError):
                importlib.import_module(each)
        _path_before[:] = sys.path
        _import_tests(sys.argv[2:])
    else:
        _load()
    _use_huge_pages()
    _run_next(socket.socket(fileno=int(sys.argv[1])))
