"""Programs in which a library has replaced threads by greenlets."""

import sys

from pool_party._ground.errors import PoolPartyError

# Modules that may have replaced the functions that start threads, and what tells whether they have.
_PATCHERS = {"gevent.monkey": ("is_module_patched", "threading"), "eventlet.patcher": ("is_monkey_patched", "thread")}


def check_threads() -> None:
    """Raise PoolPartyError if threads are not the system's: a pool's own would wait for each other for ever."""
    for module, (question, of) in _PATCHERS.items():
        is_patched = getattr(sys.modules.get(module), question, None)  # None while the module is being imported
        if is_patched is not None and is_patched(of):
            name = module.partition(".")[0]
            call = "monkey.patch_all(thread=False)" if name == "gevent" else "monkey_patch(thread=False, select=False)"
            raise PoolPartyError(
                f"a pool needs threads of the system, and {name} has replaced them by greenlets: patch all but threads "
                f"({name}.{call}), or open the pool in a process that {name} has not patched"
            )
