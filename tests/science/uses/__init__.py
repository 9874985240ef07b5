"""A use of each package: a function that computes something, and returns it as a value that can be compared.

Each imports its package itself, in the interpreter that calls it. The names are those of distributions, with "_" for
"-" and ".".
"""

from uses import data, pictures, science, stores, system, text

ALL = {
    name: function
    for module in (science, pictures, stores, text, data, system)
    for name, function in vars(module).items()
    if getattr(function, "__module__", None) == module.__name__
}
