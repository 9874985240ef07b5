"""The table of values, errors and effects in docs/data.md, which `python tests/differential/table.py` renews."""

import collections
import pathlib

import accepted
import corpus
import scripts
import subjects

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "data.md"
BEGIN, END = "<!-- made by tests/differential/table.py -->\n", "<!-- to here -->\n"
HEAD = "| | number | `multiprocessing.Pool` | processes | interpreters |\n|---|---|---|---|---|\n"
COLUMNS = (subjects.ORACLE, "process", "interp")


def _word(name, keys):
    """Return a word for the pool's treatment of these values."""
    theirs, ours = (subjects.observe(pool, subjects.by_values) for pool in (subjects.ORACLE, name))
    words = set()
    for key in keys:
        if ours[key][0] == "error":
            words.add("refused")
        elif name == subjects.ORACLE:
            words.add("arrive")
        else:
            words.add("the same" if ours[key] == theirs[key] else "arrive")
    return " or ".join(sorted(words))


def _row(title, keys):
    cells = [title, str(len(keys)), *(_word(name, keys) for name in COLUMNS)]
    return f"| {' | '.join(cells)} |\n"


def _rows_of_values():
    theirs, refused = subjects.observe(subjects.ORACLE, subjects.by_values), []
    for title, group in corpus.GROUPS.items():
        keys = [key for key in theirs if key.split(",")[0] in group]
        refused += [key for key in keys if theirs[key][0] == "error"]
        yield _row(title, [key for key in keys if theirs[key][0] != "error"])
    by_all = [key for key in refused if key.split(",")[0] not in accepted.VALUES]
    names = dict.fromkeys(key.split(",")[0] for key in by_all)
    yield _row(f"refused: {', '.join(names)}", by_all)
    for name, reason in accepted.VALUES.items():
        yield _row(f"{name}: {reason}", [key for key in refused if key.split(",")[0] == name])


def _rows_with_differences(title, look, reasons):
    different = {key for name in COLUMNS[1:] for key in subjects.differences(name, look)}
    n_same = len(subjects.observe(subjects.ORACLE, look)) - len(different)
    yield f"| {title} | {n_same} | | the same | the same |\n"
    for reason, n in collections.Counter(reasons.values()).items():
        yield f"| {reason} | {n} | | different | different |\n"


def _rows_of_scripts():
    by_reason = collections.defaultdict(list)
    for (kind, name), (reason, _) in accepted.SCRIPTS.items():
        by_reason[kind, reason].append(name.replace("_", " "))
    n_scripts = len(scripts.SCRIPTS)
    yield f"\nOf {n_scripts} scripts each prints the same in each kind as with Pool, but for these:\n\n"
    for (kind, reason), names in by_reason.items():
        yield f'- `kind="{kind}"`: {", ".join(names)}: {reason}.\n'


def made():
    rows = [
        *_rows_of_values(),
        *_rows_with_differences("exceptions that tasks raise", subjects.by_errors, accepted.ERRORS),
        *_rows_with_differences("effects of calls on their caller's objects", subjects.by_effects, accepted.EFFECTS),
    ]
    return HEAD + "".join([*rows, *_rows_of_scripts()])


def written():
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main():
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + made() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
