"""Runs a program as the interpreter would: in a `__main__` that lasts, with its own arguments, path, and end.

The rules are those of CPython's Modules/main.c and Python/pythonrun.c.
"""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from pool_party._running.options import Program

_CANNOT_OPEN = 2  # exit status
# Whether uncaught errors are reported after `__file__` is gone (CPython issue 152132, of July 2026).
_FORGETS_EARLY = sys.version_info >= (3, 14, 7) or (3, 13, 15) <= sys.version_info < (3, 14)
_OURS = __file__.removesuffix("_running/program.py")  # the folder of our own code
_files: Any = sys.modules["_frozen_importlib_external"]
_builtin_loader: Any = sys.modules["_frozen_importlib"].BuiltinImporter


def run(program: Program) -> int:
    """Run a program as `__main__`, and return the exit status. SystemExit is raised.

    If another tool runs us, so are all errors. Otherwise they are reported as the interpreter reports them.
    """
    if _is_inside_another():
        argv = sys.argv
        try:
            _RUN[program.form](program)
        finally:
            sys.argv = argv  # a debugger that starts us again passes them
        return 0
    error = _run_caught(program)
    if _FORGETS_EARLY:
        _forget_file()
    if isinstance(error, SystemExit) and not sys.flags.inspect:
        raise error
    status = 0 if error is None else _report(error)
    _forget_file()
    return status


def _is_inside_another() -> bool:
    """Return whether a tool, such as a debugger, runs us: whether others than the interpreter and we have frames.

    A console script, and the `__main__` of a zip file that calls us, are not tools.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__") == "runpy":
        frame = frame.f_back
    return frame is not None


def _run_caught(program: Program) -> BaseException | None:
    """Run a program. Return the exception that ended it, whose traceback has no frames of ours."""
    try:
        _RUN[program.form](program)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        return error.with_traceback(trace)
    return None


def _report(error: BaseException) -> int:
    """Report an uncaught error, and return the exit status. It is 0 if the interpreter's prompt is to follow."""
    from pool_party import _native

    _native.print_uncaught(error)
    if _is_prompt_next():
        return 0
    if type(error) is KeyboardInterrupt:
        _native.end_by_interrupt()
    if sys.flags.inspect:
        sys.excepthook = _be_silent  # or our SystemExit would be reported as an error
    return 1


def _is_prompt_next() -> bool:
    """Return whether the interpreter's prompt follows. The program may have set PYTHONINSPECT."""
    wants = sys.flags.inspect or os.environ.get("PYTHONINSPECT")
    return bool(wants) and (bool(sys.flags.interactive) or os.isatty(0))


def _be_silent(*args: object) -> None:
    pass


def _forget_file() -> None:
    """Remove what exit handlers do not find in a script's `__main__` under plain Python either."""
    main = sys.modules.get("__main__")  # the program may have removed it
    if main is not None and getattr(main, "__spec__", None) is None:
        vars(main).pop("__file__", None)
        vars(main).pop("__cached__", None)


# ---- the forms of programs ----


def _run_file(program: Program) -> None:
    path = _absolute(program.target)
    sys.argv = [program.target, *program.arguments]
    if _holds_modules(path):
        sys.path[0 : _n_own()] = [path]  # also with -P
        _run_as_main("__main__", alters_argv=False)
        return
    source = _read(path)
    code = _compiled(path, source)
    loader = _files.SourceFileLoader if code is None else _files.SourcelessFileLoader
    _set_path(os.path.dirname(os.path.realpath(path)))
    sys.audit("cpython.run_file", path)
    main = _make_main(loader("__main__", path))
    _set_file(main, path)
    exec(code or compile(source, path, "exec", 0, True), main)


def _run_module(program: Program) -> None:
    sys.argv = ["-m", *program.arguments]
    _set_path(os.getcwd())
    sys.audit("cpython.run_module", program.target)
    _run_as_main(program.target, alters_argv=True)


def _run_code(program: Program) -> None:
    sys.argv = ["-c", *program.arguments]
    _set_path("")
    source = _dedented(program.target) if sys.version_info >= (3, 14) else program.target
    sys.audit("cpython.run_command", source)
    main = _make_main(_builtin_loader)
    if not source.isascii():
        _check_decoded(source)
    code = compile(source, "<string>", "exec", 0, True)
    if sys.version_info >= (3, 13):
        _show_in_tracebacks(code, source)
    exec(code, main)


def _run_stdin(program: Program) -> None:
    sys.argv = ["-", *program.arguments]
    _set_path("")
    sys.audit("cpython.run_stdin")
    main = _make_main(_builtin_loader)
    if os.isatty(0):
        _run_prompt(main)
        return
    _set_file(main, "<stdin>")
    with open(0, "rb", closefd=False) as stdin:
        source = stdin.read()
    exec(compile(source, "<stdin>", "exec", 0, True), main)


def _run_prompt(main: dict[str, Any]) -> None:
    """Run what is typed at a terminal, as `pymain_run_stdin` in CPython's Modules/main.c does."""
    from pool_party import _native

    if not sys.flags.quiet:
        sys.stderr.write(f"Python {sys.version} on {sys.platform}\n")
        if not sys.flags.no_site:
            sys.stderr.write('Type "help", "copyright", "credits" or "license" for more information.\n')
    uses_environment = not sys.flags.ignore_environment
    startup = os.environ.get("PYTHONSTARTUP") if uses_environment else None
    if startup:
        _run_startup(startup, main)
    if (hook := getattr(sys, "__interactivehook__", None)) is not None:
        try:
            hook()
        except Exception as error:
            sys.stderr.write("Failed calling sys.__interactivehook__\n")
            _native.print_uncaught(error)
    if sys.version_info < (3, 13) or (uses_environment and os.environ.get("PYTHON_BASIC_REPL")):
        _native.run_prompt()
    else:
        from _pyrepl.main import interactive_console  # type: ignore[import-not-found]

        interactive_console(sys.modules["__main__"])


def _run_startup(path: str, main: dict[str, Any]) -> None:
    from pool_party import _native

    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write("Could not open PYTHONSTARTUP\n")
        _native.print_uncaught(error.with_traceback(None))
        return
    try:
        exec(compile(source, path, "exec", 0, True), main)
    except BaseException as error:
        trace = error.__traceback__
        _native.print_uncaught(error.with_traceback(trace and trace.tb_next))  # without our own frame


_RUN: dict[str, Callable[[Program], None]] = {
    "file": _run_file,
    "module": _run_module,
    "code": _run_code,
    "stdin": _run_stdin,
}


# ---- what the interpreter prepares ----


def _absolute(path: str) -> str:
    """Return a path as `__file__` has it: absolute, but not normalised."""
    return os.path.join(os.getcwd(), path)


def _holds_modules(path: str) -> bool:
    """Return whether modules can be imported from it: a directory, or a zip file."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(_CANNOT_OPEN) from None


def _compiled(path: str, data: bytes) -> CodeType | None:
    """Return the code in a .pyc file, or None for source."""
    if not path.endswith(".pyc") and data[:4] != _files.MAGIC_NUMBER:
        return None
    _files._classify_pyc(data, path, {"name": "__main__", "path": path})
    code: CodeType = _files._compile_bytecode(memoryview(data)[16:], "__main__", path)
    return code


def _n_own() -> int:
    """Return how many entries the start of the runner has put before the others in `sys.path`."""
    return 0 if sys.flags.safe_path else 1


def _set_path(first: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = first


def _make_main(loader: object) -> dict[str, Any]:
    """Replace `__main__` by a new module, and return its namespace."""
    main = type(sys)("__main__")
    namespace = vars(main)
    namespace["__loader__"] = loader
    if sys.version_info < (3, 14):
        namespace["__annotations__"] = {}
    namespace["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return namespace


def _set_file(namespace: dict[str, Any], path: str) -> None:
    namespace["__file__"] = path
    if sys.version_info < (3, 15):
        namespace["__cached__"] = None


def _run_as_main(name: str, alters_argv: bool) -> None:
    """Run a module, with the function that the interpreter calls for it."""
    import runpy

    _make_main(_builtin_loader)
    runpy._run_module_as_main(name, alters_argv)  # type: ignore[attr-defined]


def _dedented(source: str) -> str:
    if not source.lstrip("\n")[:1].isspace():
        return source
    from textwrap import dedent

    return dedent(source)


def _check_decoded(source: str) -> None:
    try:
        source.encode()
    except UnicodeEncodeError:  # the locale's encoding does not have what the command line contains
        sys.stderr.write("Unable to decode the command from the command line:\n")
        raise


def _show_in_tracebacks(code: CodeType, source: str) -> None:
    """Have tracebacks show lines of code that has no file."""
    import linecache

    is_by_code = hasattr(linecache, "_interactive_cache")
    linecache._register_code(code if is_by_code else "<string>", source, "<string>")  # type: ignore[attr-defined]
