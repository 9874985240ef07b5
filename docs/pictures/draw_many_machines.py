"""Draws many-machines.svg, a picture of docs/performance.md, from figures of benchmarks/cluster_size.py.

python benchmarks/cluster_size.py --json cluster-size.json
python docs/pictures/draw_many_machines.py cluster-size.json
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).resolve().with_name("many-machines.svg")
COLOURS = {1.0: "#e08214", 10.0: "#8c8c8c", 100.0: "#c51b7d"}  # by ms of a task
BOUND = "#b2182b"
PANELS = {"tasks_per_s": "tasks per second", "us_per_task": "CPU time of a task, us"}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "pool_party", "font.family": "sans-serif", "font.size": 8}


def draw_panel(axes: Any, summaries: list[dict[str, float]], key: str) -> None:
    """Curves of a figure by the number of nodes, one for each duration of tasks; for rates their bounds, too."""
    for task_ms in sorted({found["task_ms"] for found in summaries} - {0}):
        points = [found for found in summaries if found["task_ms"] == task_ms]
        nodes = [found["n_nodes"] for found in points]
        style = {"color": COLOURS.get(task_ms), "label": f"tasks of {task_ms:g} ms", "marker": "o", "markersize": 2.5}
        axes.plot(nodes, [found[key] for found in points], **style)
        if key == "tasks_per_s":
            axes.plot(nodes, [found["bound_per_s"] for found in points], ":", color=BOUND, label="the bounds")
    axes.loglog()
    axes.set_xticks(nodes, [f"{n:g}" for n in nodes])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("nodes")


def draw(results: Path, picture: Path) -> None:
    """Draw a row of panels for each number of workers of a node."""
    import matplotlib
    from matplotlib.figure import Figure

    sections = json.loads(results.read_text())["sections"]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 2.6 * len(sections) + 0.6))
        rows = figure.subplots(len(sections), 2, squeeze=False)
        for row, (title, section) in zip(rows, sections.items(), strict=True):
            summaries = [found["summary"] for found in section.values() if "summary" in found]
            for axes, (key, name) in zip(row, PANELS.items(), strict=True):
                draw_panel(axes, summaries, key)
                axes.set_title(f"{name}, {title}", loc="left", fontsize=9)
        handles = {label: handle for handle, label in zip(*figure.axes[0].get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), frameon=False)
        figure.tight_layout(rect=(0, 0.05, 1, 1))
        figure.savefig(picture, format="svg", metadata={"Date": None})
    digits = re.compile(r"(\d\.\d)\d+")  # one is enough, and makes the file a third smaller
    picture.write_text(re.sub(r"<[^>]*>", lambda tag: digits.sub(r"\1", tag[0]), picture.read_text()))


if __name__ == "__main__":
    draw(Path(sys.argv[1]), PICTURE)
