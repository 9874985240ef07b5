"""The programs of examples/, each in a fresh process.

Their output is compared with results computed here in another way.
"""

import ast
import importlib.util
import math
import multiprocessing
import pathlib
import re
import runpy
import statistics
from typing import NamedTuple

import fresh
import pytest

from pool_party._workers.interp.extensions import IS_SUPPORTED

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
if not EXAMPLES.is_dir():
    pytest.skip("the examples are not here", allow_module_level=True)
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
KINDS = ("thread", "process", "interp")


class Example(NamedTuple):
    kinds: tuple[str, ...] = KINDS
    package: str = ""  # what it needs besides pool_party
    slow: tuple[str, ...] = ()  # kinds that take seconds


CASES = {
    "duplicates": Example(),
    "faults": Example(("process",)),
    "frequency_sweep": Example(package="numpy"),
    "grid_search": Example(package="sklearn", slow=KINDS),
    "group_apply": Example(package="pandas", slow=("thread", "interp")),
    "monte_carlo": Example(package="numpy"),
    "render": Example(),
    "stream": Example(),
    "thumbnails": Example(("thread", "process"), package="PIL"),
    "web_server": Example(),
}


def ways(name):
    """The kinds of an example, and the other start methods of processes, as command-line arguments."""
    example = CASES[name]
    for kind in example.kinds:
        marks = [pytest.mark.slow] if kind in example.slow else []
        yield pytest.param(() if example.kinds == ("process",) else ("--kind", kind), id=kind, marks=marks)
    for method in multiprocessing.get_all_start_methods()[1:]:  # the first one is the default
        if method.startswith("loky"):  # joblib adds its own if it is imported before
            continue
        kind = () if example.kinds == ("process",) else ("--kind", "process")
        yield pytest.param((*kind, "--context", method), id=method, marks=pytest.mark.slow)


def in_all_ways(name):
    package = CASES[name].package
    is_missing = bool(package) and importlib.util.find_spec(package) is None

    def decorate(test):
        test = pytest.mark.parametrize("way", list(ways(name)))(test)
        return pytest.mark.skipif(is_missing, reason=f"needs {package}")(test)

    return decorate


def run(name, way, *args, cwd):
    """Run an example, and return what it printed. Skip if it says that its package does not load in interpreters."""
    completed = fresh.check(fresh.run([EXAMPLES / f"{name}.py", "--quick", *way, *args], cwd=cwd))
    if "interp" in way and CASES[name].package and not IS_SUPPORTED:
        assert re.fullmatch(r"Skipped: .+ CPython 3\.14 .+\n", completed.out), completed
        pytest.skip("needs CPython 3.14 with a GIL")
    assert "NO" not in completed.out.split(), completed
    saved = (EXAMPLES / "output" / f"{name}.txt").read_text()
    assert without_numbers(saved.splitlines()[-1]) == without_numbers(completed.out.splitlines()[-1])
    return completed.out


def without_numbers(line):
    return re.sub(r"\d+(\.\d+)?", "0", line)


def line_after(start, text):
    """Return what follows `start` on the only line that begins with it."""
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.removeprefix(start)


def load(name):
    """Return the functions and constants of an example."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


# ---- what each example computes ------------------------------------------------


@in_all_ways("render")
def test_render(tmp_path, way):
    run("render", way, cwd=tmp_path)
    _, pixels = load("demo/raytrace")["render_tile"]((32, 18, (0, 0, 32, 18)))  # one tile instead of six
    assert (tmp_path / "render.png").read_bytes() == load("demo/png")["encode_png"](32, 18, pixels)


@in_all_ways("frequency_sweep")
def test_frequency_sweep(tmp_path, way):
    out = run("frequency_sweep", way, cwd=tmp_path)
    exact = [2 * math.sqrt(400.0) * math.sin(k * math.pi / (2 * 21)) for k in range(1, 6)]  # a chain of 20 masses
    natural, peaks = line_after("natural frequencies:", out), line_after("peaks:", out)
    step = float(peaks.split()[-1])
    assert [float(word) for word in natural.split()[:-1]] == pytest.approx(exact, abs=1e-4)
    assert [float(word) for word in peaks.split(" rad/s")[0].split()] == pytest.approx(exact, abs=step)


@in_all_ways("grid_search")
def test_grid_search(tmp_path, way):
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    out = run("grid_search", way, cwd=tmp_path)
    chosen, accuracy = re.match(r" (\{.*\}), accuracy (.*)", line_after("best:", out)).groups()
    images, digits = (part[:300] for part in load_digits(return_X_y=True))
    scores = {
        depth: cross_val_score(
            RandomForestClassifier(5, max_depth=depth, max_features=4, random_state=0), images, digits, cv=3
        ).mean()
        for depth in (2, 4)
    }
    assert float(accuracy) == pytest.approx(max(scores.values()), abs=1e-4)
    assert ast.literal_eval(chosen)["max_depth"] == max(scores, key=scores.get)


@in_all_ways("group_apply")
def test_group_apply(tmp_path, way):
    out = run("group_apply", way, cwd=tmp_path)
    table = load("group_apply")["make_table"](20, 2_000)
    for sensor in range(3):
        rows = table[table["sensor"] == sensor]
        printed = [float(word) for word in re.search(rf"^{sensor} (.*)$", out, re.MULTILINE)[1].split()]
        assert printed == pytest.approx(described(rows["hour"].tolist(), rows["value"].tolist()), abs=1e-6)


def described(hours, values):
    """Compute a sensor's trend, roughness and highest hour, without pandas."""
    known = [n for n, value in enumerate(values) if value == value]
    for n in range(len(values)):
        if n not in known:
            left, right = max((k for k in known if k < n), default=None), min((k for k in known if k > n), default=None)
            if left is None or right is None:
                values[n] = values[right if left is None else left]
            else:
                values[n] = values[left] + (values[right] - values[left]) * (n - left) / (right - left)
    smooth = []
    for n in range(len(values)):
        weights = [(1 - 2 / 21) ** (n - k) for k in range(n + 1)]
        smooth.append(sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights))
    rough = statistics.stdev(v - s for v, s in zip(values, smooth, strict=True))
    by_hour = {hour: [v for h, v in zip(hours, values, strict=True) if h == hour] for hour in sorted(set(hours))}
    return [smooth[-1] - smooth[0], rough, max(by_hour, key=lambda hour: statistics.median(by_hour[hour]))]


@in_all_ways("thumbnails")
def test_thumbnails(tmp_path, way):
    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    pictures = [((200, 100), (255, 0, 0)), ((90, 180), (0, 99, 0)), ((30, 30), (0, 0, 7)), ((640, 64), (1, 2, 3))]
    for n, (size, colour) in enumerate([*pictures, ((64, 64), (9, 9, 9))]):
        Image.new("RGB", size, colour).save(folder / f"{n}.png")
    (folder / "notes.txt").write_text("no picture")
    assert run("thumbnails", way, folder, cwd=tmp_path).startswith("5 pictures;")
    expected = Image.new("RGB", (256, 128), "white")
    for n, size in enumerate([(64, 32), (32, 64), (64, 64), (64, 6)]):
        expected.paste(pictures[n][1], (64 * n, 0, 64 * n + size[0], size[1]))
    expected.paste((9, 9, 9), (0, 64, 64, 128))
    with Image.open(tmp_path / "thumbnails.png") as sheet:
        assert sheet.size == expected.size and sheet.convert("RGB").tobytes() == expected.tobytes()


@in_all_ways("web_server")
def test_web_server(tmp_path, way):
    out = run("web_server", way, cwd=tmp_path)
    is_prime = [n > 1 for n in range(2_071)]
    for n in range(2, 2_071):
        for multiple in range(2 * n, 2_071, n):
            is_prime[multiple] = False
    expected = " ".join(str(sum(is_prime[:limit])) for limit in range(2_000, 2_071, 10))
    assert line_after("primes: ", out) == f"{expected}; all right: yes"
    assert re.fullmatch(r"\d+ ms if the handler computes, \d+ ms if workers do", line_after("slowest ping: ", out))


@in_all_ways("monte_carlo")
def test_monte_carlo(tmp_path, way):
    import numpy as np

    out = run("monte_carlo", way, cwd=tmp_path)
    prices = re.findall(r"^workers: (\d), price: (\S+) \+-", out, re.MULTILINE)
    shocks = [np.random.default_rng(s).standard_normal(1_000) for s in np.random.SeedSequence(2026).spawn(10)]
    ends = 100.0 * np.exp(0.03 - 0.25**2 / 2 + 0.25 * np.concatenate(shocks))
    expected = math.exp(-0.03) * np.mean(np.where(ends > 105.0, ends - 105.0, 0.0))
    assert [n for n, _ in prices] == ["1", "2", "3"] and len({price for _, price in prices}) == 1
    assert float(prices[0][1]) == pytest.approx(expected, rel=1e-12)
    assert line_after("exact price: ", out).startswith("9.1218,")


@in_all_ways("stream")
def test_stream(tmp_path, way):
    out = run("stream", way, cwd=tmp_path)
    n_404 = len(range(0, 50_000, 13))
    n_500 = len(range(0, 50_000, 101)) - len(range(0, 50_000, 13 * 101))
    counts = {"200": 50_000 - n_404 - n_500, "404": n_404, "500": n_500}
    assert ast.literal_eval(line_after("50000 lines in 100 blocks: ", out)) == counts
    ours, theirs = map(int, re.findall(r"\d+", line_after("most blocks in flight: ", out)))
    assert 1 <= ours <= 17 and 1 <= theirs <= 100


@in_all_ways("faults")
def test_faults(tmp_path, way):
    out = run("faults", way, cwd=tmp_path)
    assert "signal 9 (SIGKILL)" in line_after("20 tasks, 3 losses; the first: ", out)  # task 3 once, task 13 twice
    assert line_after("workers lost and replaced: ", out) == "3"
    assert out.count(": yes") == 3


@in_all_ways("duplicates")
def test_duplicates(tmp_path, way):
    folder = tmp_path / "folder"
    small, large = b"same", b"twice" * 9
    contents = {"a": small, "b/c": small, "b/d": large, "e": large, "f": b"once", "g": b"", "h/i/j": b""}
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to("f")
    lines = run("duplicates", way, folder, cwd=tmp_path).splitlines()
    assert lines[0] == "7 files; 3 contents occur more than once"
    assert [line.split() for line in lines[1:4]] == [
        ["45", "bytes:", "b/d,", "e"],
        ["4", "bytes:", "a,", "b/c"],
        ["0", "bytes:", "g,", "h/i/j"],
    ]


# ---- examples as documentation -------------------------------------------------


def test_every_example_is_run_here():
    assert list(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_says_what_it_does(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    docstring = ast.get_docstring(ast.parse(text))
    assert text.count("\n") < 80
    assert f"python examples/{name}.py " in docstring and "It prints " in " ".join(docstring.split())
    assert f"[{name}.py]({name}.py)" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", [name for name, example in CASES.items() if example.package])
def test_an_example_says_which_package_is_missing(tmp_path, name):
    (tmp_path / f"{CASES[name].package}.py").write_text("raise ImportError('not installed')")
    paths = f"{tmp_path}:{fresh.environment()['PYTHONPATH']}"
    process = fresh.start([EXAMPLES / f"{name}.py", "--quick"], cwd=tmp_path, extra={"PYTHONPATH": paths})
    completed = fresh.check(fresh.finish(process))
    assert re.fullmatch(r"Skipped: this example needs \S+ \(pip install \S+\)\n", completed.out)
