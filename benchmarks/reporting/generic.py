"""The default part for a benchmark without its own: a table for each section, with whatever its summaries hold."""

from tables import folded, number, table

from reporting.drawing import is_ours
from reporting.found import Found, Json, measured
from reporting.parts import Part, failure_list


def _section_table(section: Json) -> str:
    subjects = dict(measured(section))
    keys = list(dict.fromkeys(key for sums in subjects.values() for key in sums["summary"]))
    rows = [
        [f"**{subject}**" if is_ours(subject) else subject, *(_write(sums["summary"].get(key)) for key in keys)]
        for subject, sums in subjects.items()
    ]
    return table(["", *keys], rows)


def _write(value: object) -> str:
    if isinstance(value, int | float):
        return number(value)
    return "-" if value is None else str(value)


def generic(name: str, found: Found) -> Part:
    """Return the figures of any benchmark whose file has sections of subjects with summaries."""
    sections: dict[str, Json] = found.benchmarks[name].get("sections", {})
    texts = []
    for title, section in sections.items():
        body = "\n\n".join(filter(None, (_section_table(section), failure_list(section))))
        texts.append(f"### {title}\n\n{body}")
    return Part(folded("Tables", "\n\n".join(texts)))
