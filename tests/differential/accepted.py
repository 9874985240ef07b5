"""Every intended difference from `multiprocessing.Pool`, with its reason. Nothing else may differ."""

# Values that Pool refuses, and that our pools send by value with cloudpickle: name in corpus.py -> reason.
VALUES = {
    "lambda": "functions without a name travel",
    "local class": "classes without a name travel",
    "module": "travels as its name",
    "code": "travels with the functions that it belongs to",
    "memoryview": "travels as bytes",
    "proxy": "travels as a proxy of a copy",
    "mappingproxy of a class": "travels as a proxy of a copy",
    "dict keys": "travel as the keys of a copy",
}

_NOT_PICKLED = (
    "exceptions that do not pickle: RemoteError has their repr and traceback, where Pool's MaybeEncodingError has "
    "the repr of a wrapper and no traceback"
)
# Exceptions of tasks: name in errors.py -> reason.
ERRORS = {
    "Opaque": _NOT_PICKLED,
    "Refuses": _NOT_PICKLED,
    "its own argument": _NOT_PICKLED,
    "with a lambda": "exceptions that hold a lambda arrive, since functions without a name travel",
}

# Effects of a call on its caller's objects: function in effects.py -> reason.
EFFECTS = {
    "bad_arguments": (
        "wrong arguments are refused at once, with a clear error; Pool returns [None] for `map(f, [1], 0)`, and an "
        "iterator for `imap(f, 5)`"
    ),
    "tasks_that_leave": (
        "SystemExit, KeyboardInterrupt and GeneratorExit that a task raises are its outcome, as in concurrent.futures; "
        "Pool's worker ends, and who waits for the task waits for ever"
    ),
}

_NEEDS_STATE = "an interpreter has not run the script, and this cannot be sent to it"
_SHARED = "threads share the caller's objects"
# Scripts: kind and name in scripts.py -> reason, and the output instead; `None` stands for an error.
SCRIPTS = {
    ("interp", "global_lock"): (_NEEDS_STATE, None),
    ("interp", "sqlite_connection"): (_NEEDS_STATE, None),
    ("interp", "executor"): (_NEEDS_STATE, None),
    ("interp", "generator"): (_NEEDS_STATE, None),
    ("interp", "context_variable"): (_NEEDS_STATE, None),
    ("interp", "ctypes_library"): (_NEEDS_STATE, None),
    ("interp", "open_file"): (_NEEDS_STATE, None),
    ("interp", "weak_references"): (_NEEDS_STATE, None),
    ("interp", "unused_and_opaque"): (_NEEDS_STATE, None),
    ("thread", "class_counter"): (_SHARED, "[True, True, True, True, True, True] 9\nTrue True 10\n"),
    ("thread", "counter_in_worker"): (_SHARED, "[1, 2, 3] 3 3\n"),
    ("thread", "cache_in_worker"): (_SHARED, "[1, 1, 2] [3] {1: 2, 2: 1, 3: 1}\n"),
    ("thread", "value_changed_by_caller"): (_SHARED, "[2]\n[11]\n"),
    ("thread", "reducer_with_effects"): ("nothing is pickled", "[1, 2, 3] True 0\n"),
}
