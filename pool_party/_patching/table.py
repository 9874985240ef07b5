"""The table of all patches. docs/patching.md shows it, and a test compares the two.

Each patch changes one object in place: the classes of pools, and joblib's dictionary of backends, stay the same
objects. So the patches also reach names that other modules have imported before, and undoing them leaves no trace.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Patch:
    """A patch: what it changes in which module, and for which parts it is needed."""

    def __init__(self, module: str, target: str, parts: "Sequence[str]", what: str, why: str, undone: str) -> None:
        self.module = module
        self.target = target
        self.parts = parts
        self.what = what
        self.why = why
        self.undone = undone


_CLASS_IS_RESTORED = "the class gets its own `__init__` back"
_EXECUTOR = "an executor becomes one of ours as it is made"

PATCHES = (
    Patch(
        "multiprocessing.pool",
        "Pool",
        ("multiprocessing", "scipy"),
        "a pool becomes one of ours as it is made; the context is kept",
        "`multiprocessing.Pool`, `get_context(...).Pool` and SciPy's `workers=` all make objects of this class",
        _CLASS_IS_RESTORED,
    ),
    Patch(
        "multiprocessing.pool",
        "ThreadPool",
        ("multiprocessing",),
        "a pool becomes one of our pools of threads as it is made",
        "`multiprocessing.pool.ThreadPool` and `multiprocessing.dummy.Pool` make objects of this class",
        _CLASS_IS_RESTORED,
    ),
    Patch(
        "concurrent.futures.thread",
        "ThreadPoolExecutor",
        ("concurrent.futures", "asyncio", "dask"),
        _EXECUTOR + ", with threads whatever `kind` says",
        "asyncio's default executor, `asyncio.to_thread` and Dask's threaded scheduler use this class, too",
        _CLASS_IS_RESTORED,
    ),
    Patch(
        "concurrent.futures.process",
        "ProcessPoolExecutor",
        ("concurrent.futures", "dask"),
        _EXECUTOR,
        "Dask's scheduler `processes` uses this class, too",
        _CLASS_IS_RESTORED,
    ),
    Patch(
        "concurrent.futures.interpreter",
        "InterpreterPoolExecutor",
        ("concurrent.futures",),
        _EXECUTOR + ", with interpreters whatever `kind` says",
        "it is the third executor of the standard library, from Python 3.14 on",
        _CLASS_IS_RESTORED,
    ),
    Patch(
        "joblib.parallel",
        "BACKENDS",
        ("joblib",),
        "the backends `loky`, `multiprocessing` and `threading` are ours",
        "joblib looks up each backend here, also for `prefer=` and `require=`, and so does scikit-learn's `n_jobs`",
        "the dictionary gets joblib's own classes back",
    ),
)
