"""Input of a user to a notebook, cell by cell. `run(f, xs)` is a pool's `map`, and each cell prints something."""

SESSIONS = {
    "globals": (
        "K = 1",
        "print(run(lambda x: x + K, [1]))",
        "K = 10\nprint(run(lambda x: x + K, [1]))",
        "def f(x):\n    return x + K\nprint(run(f, [1]))",
        "K = 20\nprint(run(f, [1]))",
        "def f(x):\n    return x + K\nK = 30\nprint(run(f, [1]))",
    ),
    "globals_changed_in_place": (
        "data = [1]\ndef f(x):\n    return data",
        "print(run(f, [0]))",
        "data.append(2)\nprint(run(f, [0]))",
        "table = {'a': [1]}\ndef g(x):\n    return table['a'], len(data)\nprint(run(g, [0]))",
        "table['a'].append(3)\ndata.clear()\nprint(run(g, [0]), run(f, [0]))",
    ),
    "wraps": (
        "import functools\ndef wrap(f):\n"
        "    @functools.wraps(f)\n    def wrapper(x):\n        return f(x)\n    return wrapper",
        "@wrap\ndef f(x):\n    return x + 1\nprint(run(f, [1]))",
        "@wrap\ndef f(x):\n    return x + 2\nprint(run(f, [1]))",
        "def g(x):\n    return f(x)\nprint(run(g, [1]))",
        "@wrap\ndef f(x):\n    return x + 3\nprint(run(g, [1]))",
    ),
    "defaults": (
        "def f(x, items=[1]):\n    return items\nprint(run(f, [0]))",
        "def f(x, items=[2]):\n    return items\nprint(run(f, [0]))",
        "def f(x, items={'a': 1}):\n    return items\nprint(run(f, [0]))",
        "def f(x, items={'a': 2}):\n    return items\nprint(run(f, [0]))",
        "def f(x, *, items={'a': 3}):\n    return items\nprint(run(f, [0]))",
        "f.__kwdefaults__['items'] = 4\nprint(run(f, [0]))",
    ),
    "kinds_of_arguments": (
        "def f(x, y=1):\n    return x, y\ndef g(x):\n    return f(x, y=2)\nprint(run(g, [0]))",
        "def f(x, /, y=1):\n    return x, y\n"
        "def g(x):\n    try:\n        return f(x=x)\n    except TypeError:\n        return 'no'",
        "print(run(g, [0]))",
        "def f(x, y=1):\n    return x, y\nprint(run(g, [0]))",
    ),
    "class_attributes": (
        "class C:\n    items = [1]\ndef f(c):\n    return C.items, c.items, isinstance(c, C)\nprint(run(f, [C()]))",
        "class C:\n    items = [2]\nprint(run(f, [C()]))",
        "C.items.append(3)\nprint(run(f, [C()]))",
        "C.items = 'new'\nprint(run(f, [C()]))",
        "class D(C):\n    pass\nprint(run(f, [D()]))",
    ),
    "helpers_of_helpers": (
        "def c(x):\n    return 1\ndef b(x):\n    return c(x)\ndef a(x):\n    return b(x)\nprint(run(a, [0]))",
        "def c(x):\n    return 2\nprint(run(a, [0]))",
        "c = lambda x: 3\nprint(run(a, [0]))",
        "class Helper:\n    def __call__(self, x):\n        return 4\nc = Helper()\nprint(run(a, [0]))",
        "class Helper:\n    def __call__(self, x):\n        return 5\nc = Helper()\nprint(run(a, [0]))",
    ),
    "methods": (
        "class Model:\n    def fit(self, x):\n        return step(x)\ndef step(x):\n    return x + 1",
        "print(run(Model().fit, [1]))",
        "def step(x):\n    return x + 2\nprint(run(Model().fit, [1]))",
        "class Model:\n    def fit(self, x):\n        return step(x) * 10\nprint(run(Model().fit, [1]))",
        "Model.fit = lambda self, x: 'patched'\ndef use(model):\n    return model.fit(1)\nprint(run(use, [Model()]))",
    ),
    "back_to_the_first": (
        "def f(x):\n    return 'one'\nfirst = f\nprint(run(f, [0]))",
        "def f(x):\n    return 'two'\nprint(run(f, [0]))",
        "f = first\nprint(run(f, [0]))",
    ),
    "partial_and_cache": (
        "import functools\ndef f(a, x):\n    return a + x\ng = functools.partial(f, 1)\nprint(run(g, [1]))",
        "g = functools.partial(f, 2)\nprint(run(g, [1]))",
        "def h(x):\n    return g(x)\nprint(run(h, [1]))",
        "g = functools.partial(f, 3)\nprint(run(h, [1]))",
    ),
}


def text_of(name, prologue):
    """Return a program that runs the cells as a kernel does, all of them in `__main__`."""
    return f"""{prologue}
if __name__ == "__main__":
    for cell in {SESSIONS[name]!r}:
        exec(compile(cell, "<cell>", "exec"), globals())
    end()
"""
