"""What packages.py measured: a file of JSON for each CPython, and the first section of docs/packages.md."""

import json
import platform
import re

import said

HEAD = """# Packages with extension modules in interpreters

This table was written by `python tests/science/packages.py`, once with each CPython, on {machine}. Each package ran a
small use, such as rendering a picture, fitting a model, or writing and reading a file: in one interpreter, in two and
four at once, in five pools one after another, and after other packages and beside the main interpreter. Every result
had to be the main interpreter's, the process had to end without a crash, and the extension modules that the use loads
in the main interpreter had to load in interpreters, too. "Yes" means without being named in `extensions=`. This does
not show that all of a package works. The MB are the private memory that each ended interpreter left; they vary much
between runs, and depend on what else is installed. Rows may come from several runs.
[interpreters.md](interpreters.md) explains how packages are loaded.

The last columns were written by `python tests/science/effects.py` on CPython 3.14.8, with the same uses; "-" means
that it did not measure the package. "Locks": the functions by which its copies lock files; locks by fcntl do not
conflict between interpreters of one process. "Callbacks": shared libraries whose data leads to a copy when the
interpreter ends, so that the copy stays loaded. "Threads left": how many were left of two pools. "Mappings": those
that a further interpreter takes, of some 65,530 of a process. "Orders": pools that overlapped ended in several orders,
with uses in the main interpreter before, between and after their ends. "Several writers": two workers wrote to one
file at the same time, and opened it for each record; "safe" means that all records were there that were committed,
"refused" that an open file could not be opened again.
"""
_EFFECTS = ("locks", "callbacks", "threads left", "mappings", "orders", "several writers")
HOW = {"default": "yes", "extensions": "with `extensions=`"}


def files():
    """Return the files with results, by minor version."""
    return sorted(said.HERE.glob("measured-*.json"), key=lambda path: int(path.stem.rpartition(".")[2]))


def read(python):
    """Return {package: row} as measured with a CPython of the same minor version."""
    path = _path(python)
    return json.loads(path.read_text())["rows"] if path.exists() else {}


def write(python, rows):
    """Keep the rows that a CPython has now, and write docs/packages.md again."""
    result = {"python": python, "machine": f"{platform.machine()} {platform.system()}", "rows": rows}
    _path(python).write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    said.TABLE.write_text(page())


def page():
    """Return docs/packages.md as the files with results say."""
    return text([json.loads(path.read_text()) for path in files()]) + said.section()


def text(results):
    """Return the first section. Packages that work with every CPython come first."""
    machine = " and ".join(dict.fromkeys(result["machine"] for result in results))
    columns = [*(f"CPython {result['python']}" for result in results), *_EFFECTS]
    effects = json.loads((said.HERE / "effects.json").read_text())
    lines = [HEAD.format(machine=machine), _line(["package", *columns]), _line(["---"] * (1 + len(columns)))]
    names = {name for result in results for name in result["rows"]} | {*effects}
    for name in sorted(names, key=lambda name: (not _works(name, results), name.lower())):
        cells = [_cell(result["rows"].get(name)) for result in results]
        lines.append(_line([f"`{name}`", *cells, *_effects(effects.get(name, {}))]))
    return "\n".join(lines) + "\n"


def _effects(row):
    """Yield the cells of _EFFECTS."""
    if ended := row.get("measure ended"):
        yield from ["-"] * 4
        yield ended.partition(":")[0]
    elif "orders" in row:
        yield from (", ".join(row["locks"]) or "none", ", ".join(map(_library, row["callbacks"])) or "none")
        yield from (str(max(0, row["threads"])), str(row.get("mappings", "-")), row["orders"].replace("|", "/"))
    else:
        yield from ["-"] * 5
    yield _writers(row)


def _library(path):
    return path.rpartition("/")[2].partition("-")[0]


def _writers(row):
    if "writers" not in row:
        return row.get("write_twice ended", "-")
    committed, there, refusal = row["writers"]["interp"]
    if committed != there:
        return f"**not safe**: {committed} committed, {there if isinstance(there, int) else 'unreadable'}"
    return f"safe{', refused meanwhile' if refusal else ''}: {there} records" if there else "all refused"


def _works(name, results):
    return all(result["rows"].get(name, {}).get("how") == "default" for result in results)


def _cell(row):
    if row is None:
        return "not measured"
    if row["how"] in HOW:
        return f"{row['version']}: {HOW[row['how']]}, {row['left_mb']:.1f} MB"
    why = row["why"].replace("|", "/")
    return f"{row['version']}: no: {why}" if row["how"] == "no" else f"not measured: {why}"


def _line(cells):
    return f"| {' | '.join(cells)} |"


def _path(python):
    minor = re.match(r"\d+\.\d+", python)[0]
    return said.HERE / f"measured-{minor}.json"
