"""Task sets: built from a made-up library, resumed, written, read; and the one that is shipped."""

import collections
import json
import os
import re

import pytest

pytest.importorskip("libcst", reason="libcst is not installed (extra build)")

from rime_jax.envs.codebase import (  # noqa: E402
    build,
    grading,
    published,
    sandbox,
    sources,
    submission,
    tasks,
    trees,
    validation,
)
from rime_jax.tracking import progress  # noqa: E402
from tests.envs.codebase import repositories  # noqa: E402

LIBRARY = """\
def clamp(value, low, high):
    if value < low:
        result = low
    elif value > high:
        result = high
    else:
        result = value
    return result


def total(values, start=0):
    n = start * 1 + 0
    for value in values:
        if value is not None:
            n += value
    return n


def ratio(a, b):
    try:
        if a == b:
            return 1.0
        return (a - b) / (b + 1)
    except ZeroDivisionError:
        return None
"""
TESTS = """\
import shop


def test_low():
    assert shop.clamp(1, 3, 5) == 3


def test_high():
    assert shop.clamp(9, 3, 5) == 5


def test_middle():
    assert shop.clamp(4, 3, 5) == 4


def test_total():
    assert shop.total([1, None, 2], 3) == 6


def test_ratio():
    assert shop.ratio(5, 1) == 2


def test_no_ratio():
    assert shop.ratio(5, -1) is None
"""
SHIPPED = pytest.mark.skipif(not (published.DIRECTORY / "tasks.jsonl.xz").exists(),
                             reason="no task set is shipped")


@pytest.fixture(scope="module")
def box():
    made = repositories.box()
    yield made
    made.close()


@pytest.fixture(scope="module")
def built(box, tmp_path_factory):
    """(options, rows) of a build of one good library and one that is not to be had."""
    out = tmp_path_factory.mktemp("out")
    files = out / "work" / "sources" / "shop"
    (files / "tests").mkdir(parents=True)
    (files / "shop.py").write_text(LIBRARY)
    (files / "tests" / "test_shop.py").write_text(TESTS)
    (out / "work" / "environments").mkdir()
    repositories.environment(out / "work" / "environments" / "shop")
    options = build.Options(out, per_library=5, workers=2)
    rows, failed = build.build(libraries(), box, options)
    assert list(failed) == ["gone"] and "nowhere" in failed["gone"]
    return options, rows


def libraries():
    return {"shop": sources.Library("shop", "made-up@0", licence="MIT"),
            "gone": sources.Library("gone", "/nowhere@0")}


def set_bytes(options):
    return {file.name: file.read_bytes() for file in (options.out / "set").iterdir()}


def test_a_library_gives_the_tasks_wanted_of_it(built):
    options, rows = built
    assert len(rows) == options.per_library
    assert all(row["licence"] == "MIT" and row["source_url"] == "made-up@0" for row in rows)
    assert len({row["strategy"] for row in rows}) >= 3


def test_what_is_read_is_what_was_built(built):
    options, rows = built
    assert published.rows(options.out / "set") == rows
    assert list(published.libraries(options.out / "set")) == ["shop"]


def test_a_built_set_is_read_like_any_file_of_tasks(built):
    options, rows = built
    files = options.out / "set" / "tasks.jsonl.xz", options.out / "set" / "libraries.json"
    own, known = published.load(*map(str, files))
    assert own == published.tasks(options.out / "set")
    assert [task.pass_to_pass for task in own] == [tuple(row["PASS_TO_PASS"]) for row in rows]
    published.check_listed(own, known)


@pytest.mark.parametrize(("text", "why"), [
    (None, "cannot be read as a JSON list"), ("{}", "must hold a JSON list"),
    ('[{"name": "x"}]', "describes no library")])
def test_a_file_of_libraries_that_is_none_ends_in_one_line(tmp_path, capsys, text, why):
    file = tmp_path / "own.json"
    if text is not None:
        file.write_text(text)
    assert build.main([f"--out={tmp_path}/out", f"--libraries={file}"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and why in told


def test_built_tasks_are_valid(built, box, tmp_path):
    options, rows = built
    store = trees.TreeStore(options.out / "work", [], libraries())
    for task in published.tasks(options.out / "set")[:2]:
        assert validation.validate(task, store, box, tmp_path) == validation.Verdict("")


def test_a_build_that_was_killed_anywhere_ends_in_the_same_set(built, box, monkeypatch):
    options, rows = built
    whole = set_bytes(options)
    file = options.out / "work" / "verdicts" / "shop.jsonl"
    lines = file.read_bytes()
    for kept in (len(lines) - 3, len(lines.splitlines(True)[0]) + 5, len(lines)):
        file.write_bytes(lines[:kept])
        if kept == len(lines):
            monkeypatch.setattr(grading, "run_tests", None)
        again = build.build(libraries(), box, options)[0]
        assert again == rows
        assert set_bytes(options) == whole
        assert ([json.loads(line).get("bug") for line in file.read_bytes().splitlines()]
                == [json.loads(line).get("bug") for line in lines.splitlines()])


def test_a_line_behind_one_that_a_kill_cut_off_is_whole(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"tests": ["a"], "seconds": 1}\n{"bug": "x", "fai')
    verdicts = build._Verdicts(file)
    verdicts._append({"bug": "y"})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"tests": ["a"], "seconds": 1}, {"bug": "y"}]


def test_the_benchmarks_libraries_are_refused(box, tmp_path):
    for name, url in (("tenacity", "pypi:x==1"), ("x", "https://host/jazzband/tablib.git@0")):
        with pytest.raises(build.BuildError, match="benchmark"):
            build.build({name: sources.Library(name, url)}, box, build.Options(tmp_path))


def test_the_bar_ends_at_its_end_when_libraries_give_less(capsys):
    run = build._Run(progress.Progress(8, every_s=0), 4)
    run.add("a")
    run.finish("a")
    run.finish("b")
    assert [line.split(" ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "1/8", "4/8", "8/8"]


def test_a_broken_sandbox_stops_all_threads_at_once(built, box, monkeypatch):
    def fails(self, bug, box, base, suite):
        tried.append(bug)
        raise sandbox.SandboxError("no more")

    tried = []
    monkeypatch.setattr(build._Verdicts, "verdict", fails)
    with pytest.raises(sandbox.SandboxError, match="no more"):
        build.build(libraries(), box, built[0])
    assert len(tried) == 1


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_set_says_which_file(tmp_path, damage):
    if damage is not None:
        (tmp_path / "tasks.jsonl.xz").write_bytes(damage)
        (tmp_path / "libraries.json").write_bytes(damage)
    with pytest.raises(sources.SourceError, match="libraries.json"):
        published.libraries(tmp_path)
    if damage != b"":
        with pytest.raises(tasks.RowError, match=r"tasks\.jsonl\.xz"):
            published.rows(tmp_path)


def test_a_set_cut_off_is_refused(built, tmp_path):
    data = (built[0].out / "set" / "tasks.jsonl.xz").read_bytes()
    (tmp_path / "tasks.jsonl.xz").write_bytes(data[:-20])
    with pytest.raises(tasks.RowError, match="cannot be read"):
        published.rows(tmp_path)


def test_sources_with_another_digest_are_refused(tmp_path, monkeypatch):
    def download(argv, what, **options):
        (build.pathlib.Path(argv[argv.index("-d") + 1]) / "x-1.tar.gz").write_bytes(b"evil")

    monkeypatch.setattr(sources, "call", download)
    with pytest.raises(sources.SourceError, match="sha256"):
        sources.fetch(sources.Library("x", "pypi:x==1", sha256="0" * 64), tmp_path)
    assert not (tmp_path / "sources" / "x").exists()


@SHIPPED
def test_the_shipped_set_is_large_and_keeps_every_constraint():
    rows, known = published.rows(), published.libraries()
    assert len(rows) >= 400
    assert len({row["repo"] for row in rows}) >= 12
    assert len({row["instance_id"] for row in rows}) == len({row["patch"] for row in rows}) == len(
        rows)
    touched = collections.defaultdict(list)
    for row in rows:
        name = row["instance_id"]
        assert re.fullmatch(rf"{re.escape(row['repo'])}\.{row['strategy']}__[0-9a-f]{{8}}", name)
        assert 1 <= len(row["FAIL_TO_PASS"]) <= 20, name
        assert 3 <= len(row["PASS_TO_PASS"]) <= 500, name
        assert not set(row["FAIL_TO_PASS"]) & set(row["PASS_TO_PASS"]), name
        paths = submission.strip(row["patch"]).paths
        assert paths == (row["path"],), name
        touched[row["repo"], row["path"], row["function"]].append(row["strategy"])
        assert known[row["repo"]].url == row["source_url"]
        assert known[row["repo"]].licence == row["licence"] in (
            "MIT", "BSD-3-Clause", "BSD-2-Clause", "Apache-2.0")
        assert not {"tenacity", "tablib"} & set(re.split(r"\W|_", row["repo"]))
    assert all(len(s) <= 2 and len(set(s)) == len(s) for s in touched.values())
    assert len({row["strategy"] for row in rows}) >= 12


@SHIPPED
def test_the_shipped_set_is_small_and_loads_as_tasks():
    assert sum(file.stat().st_size for file in published.DIRECTORY.iterdir()) < 1_000_000
    loaded = published.tasks()
    assert {task.source for task in loaded} <= set(published.libraries())
    assert all(task.statement and task.strategy.startswith("func_pm_") for task in loaded)
    assert all(len(library.sha256) == 64 and library.url.startswith("pypi:")
               for library in published.libraries().values())


@SHIPPED
@pytest.mark.network
@pytest.mark.skipif(os.environ.get("RIME_NETWORK") != "1",
                    reason="fetches every library; set RIME_NETWORK=1")
def test_a_shipped_task_of_each_library_is_valid(box, tmp_path):
    store = trees.TreeStore(trees.cache_directory(), [], published.libraries())
    first = {task.source: task for task in reversed(published.tasks())}
    for task in first.values():
        assert validation.validate(task, store, box, tmp_path) == validation.Verdict(""), task
