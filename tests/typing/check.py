"""Whether type checkers find in the programs of this folder what they should: `make types` runs it.

A line with an error ends in `# error`. One that some checkers take ends in `# error, but not for NAME: REASON`, and one
that only some refuse in `# error for NAME: REASON`.

    python tests/typing/check.py [NAME ...]     with these checkers; otherwise with all
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = [HERE / "accepted.py", HERE / "refused.py"]
MARK = re.compile(r"# error(?:, but not for (?P<but>[\w, ]+): .+| for (?P<only>[\w, ]+): .+)?$")

type Line = tuple[str, int]  # a program and the number of a line


def run(*command: str | pathlib.Path) -> str:
    """Return what a checker prints. One that fails in another way than by finding errors prints what is no error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # so that mypy takes this checkout, as an installed package
    done = subprocess.run([*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 1):
        sys.exit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def in_text(output: str, pattern: str) -> dict[Line, str]:
    found = re.finditer(pattern, output, re.M)
    return {(pathlib.Path(match[1]).name, int(match[2])): match[3] for match in found}


def mypy() -> dict[Line, str]:
    output = run(sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-pretty", *PROGRAMS)
    return in_text(output, r"^(\S+?):(\d+): error: (.*)")


def basedpyright() -> dict[Line, str]:
    output = run(sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", HERE)
    found = [one for one in json.loads(output)["generalDiagnostics"] if one["severity"] == "error"]
    return {(pathlib.Path(one["file"]).name, one["range"]["start"]["line"] + 1): one["message"] for one in found}


def ty() -> dict[Line, str]:
    environment = ("--python", sys.prefix, "--extra-search-path", ROOT)
    output = run(sys.executable, "-m", "ty", "check", "--output-format", "concise", *environment, *PROGRAMS)
    return in_text(output, r"^(\S+?):(\d+):\d+: error\S* (.*)")


def pyrefly() -> dict[Line, str]:
    environment = ("--python-interpreter-path", sys.executable, "--search-path", ROOT)
    output = run(sys.executable, "-m", "pyrefly", "check", "--output-format", "json", *environment, *PROGRAMS)
    found = [one for one in json.loads(output)["errors"] if one.get("severity", "error") == "error"]
    return {(pathlib.Path(one["path"]).name, one["line"]): one["description"] for one in found}


CHECKERS: dict[str, Callable[[], dict[Line, str]]] = {
    "mypy": mypy,
    "basedpyright": basedpyright,
    "ty": ty,
    "pyrefly": pyrefly,
}


def marked(checker: str) -> Iterator[Line]:
    """Yield the lines in which this checker should find an error."""
    for program in PROGRAMS:
        for number, line in enumerate(program.read_text().splitlines(), 1):
            mark = MARK.search(line)
            if mark and checker not in (mark["but"] or "") and checker in (mark["only"] or checker):
                yield program.name, number


def check(checker: str) -> int:
    """Print what a checker does not find, and what it finds elsewhere. Return how many lines that are."""
    found, expected = CHECKERS[checker](), {*marked(checker)}
    for name, number in sorted(expected - found.keys()):
        print(f"{name}:{number}: {checker} finds no error")
    for (name, number), message in sorted(found.items()):
        if (name, number) not in expected:
            print(f"{name}:{number}: {checker}: {message}")
    print(f"{checker}: {len(expected & found.keys())} of {len(expected)} errors, {len(found.keys() - expected)} others")
    return len(expected ^ found.keys())


if __name__ == "__main__":
    sys.exit(sum([check(checker) for checker in sys.argv[1:] or CHECKERS]) > 0)
