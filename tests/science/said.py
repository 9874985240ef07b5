"""What the packages' own tests said in an interpreter: said.json, and its section of docs/packages.md."""

import importlib.metadata
import json
import pathlib
import platform
from collections import Counter

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "said.json"
TABLE = HERE.parent.parent / "docs" / "packages.md"

HEAD = """
## What their own tests said

`python tests/science/run.py --record SUITE` wrote these rows: it runs tests that are in a package's wheel, or (with a
":") in its sdist, in one interpreter. Tests that failed were run again in the main interpreter. "Left out" is what the
suite itself skipped here. The tests of NumPy, SciPy, pandas, scikit-learn and PyArrow are in
[interpreters.md](interpreters.md#what-was-run).

| suite | version | CPython | passed | failed | left out |
|---|---|---|---|---|---|
"""


def record(suite, seen, judged, left_out):
    """Keep the counts of a suite, and write the section again.

    judged: test -> (error, reason or None), for those that failed. left_out: test -> reason, for those we did not run.
    """
    package, colon, _ = suite.partition(":")
    if not colon:
        package = importlib.metadata.packages_distributions()[suite.partition("/")[0].partition(".")[0]][0]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[suite] = {
        "version": importlib.metadata.version(package),
        "python": platform.python_version(),
        "passed": seen.count("passed"),
        "failed": Counter(reason or "not explained" for _, reason in judged.values()),
        "not run": Counter(left_out.values()),
        "left out": seen.count("skipped"),
    }
    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    TABLE.write_text(without_section(TABLE.read_text()) + section())


def without_section(text):
    """Return the text of docs/packages.md without this section."""
    return text.partition(HEAD.splitlines(keepends=True)[1])[0].rstrip("\n") + "\n"


def section():
    """Return the section, "" if nothing was recorded."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return HEAD + "".join(map(_row, results, results.values())) if results else ""


def _row(suite, its):
    failed = [str(sum(its["failed"].values()))]
    failed += [f"{count} {reason}" for reason, count in its["failed"].items()]
    failed += [f"{count} not run: {reason}" for reason, count in its["not run"].items()]
    cell = failed[0] + (": " + "; ".join(failed[1:]) if failed[1:] else "")
    return f"| {suite} | {its['version']} | {its['python']} | {its['passed']:,} | {cell} | {its['left out']:,} |\n"
