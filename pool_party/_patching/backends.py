"""joblib's backends under their own names, which run in our pools. Imported when joblib makes the first of them."""

import functools
from types import SimpleNamespace
from typing import Any

from pool_party._config import resolve_kind
from pool_party._integrations.joblib import OPTIONS, PoolPartyBackend
from pool_party._patching import replacing, usage

_OF_BACKEND = ("kind", "idle_worker_timeout", "nesting_level", "inner_max_num_threads", "on_error", "task_timeout_s")
_KNOWN = OPTIONS.union(_OF_BACKEND)


@functools.cache
def make(name: str, original: type) -> type:
    """Return the class in the place of joblib's backend of this name."""
    is_of_threads = name == "threading"
    names = {"uses_threads": is_of_threads, "supports_sharedmem": is_of_threads, "joblib_name": name}
    module = {"__module__": original.__module__, "__doc__": original.__doc__}
    return type(original.__name__, (_Backend, original), {**names, **module, "original": original})


class _Backend(PoolPartyBackend):
    """A backend that is ours, and an instance of joblib's class as well."""

    joblib_name: str
    original: type

    # joblib asks instances of its LokyBackend for this, to have memory-mapped files removed. We write none.
    _workers = SimpleNamespace(_temp_folder_manager=SimpleNamespace(set_current_context=lambda context_id: None))

    def __new__(cls, *args: Any, **options: Any) -> Any:
        unknown = sorted(options.keys() - _KNOWN)
        if not unknown:
            return super().__new__(cls)
        reason = f"Its option {unknown[0]!r} is joblib's own."
        usage.note(usage.LeftAlone("joblib", cls._describe_name(), replacing.find_caller("joblib"), reason))
        return cls.original(*args, **options)

    def __init__(self, nesting_level: int | None = None, kind: str | None = None, **options: Any) -> None:
        if kind is None:
            kind = "thread" if self.joblib_name == "threading" else replacing.choose_kind(options.get("context"))
        limits = replacing.for_workers(resolve_kind(kind), replacing.budget_options())
        super().__init__(kind, nesting_level=nesting_level, **{**limits, **options})

    @classmethod
    def _describe_name(cls) -> str:
        return f'joblib backend "{cls.joblib_name}"'

    def _count_workers(self, n_jobs: int) -> int:
        n_set = replacing.named_or_set(None)
        return super()._count_workers(n_jobs if n_jobs > 0 or n_set is None else max(1, n_set + 1 + n_jobs))

    def _take_pool(self, n_jobs: int) -> int:
        n_workers = super()._take_pool(n_jobs)
        caller = replacing.find_caller("joblib")
        usage.note(usage.Replaced("joblib", self._describe_name(), self._kind, caller, n_workers))
        return n_workers
