"""Tasks, streams and libraries from files, whole and damaged."""

import gzip
import json
import lzma
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import loaders, sources, streams
from rime_jax.envs.codebase.tasks import CodeTask, RowError

SMITH = {
    "instance_id": "Suor__funcy.207a7810.func_pm_op_swap__ab12cd34",
    "repo": "swesmith/Suor__funcy.207a7810", "patch": "diff --git a/f.py b/f.py\n",
    "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": ["t.py::b", "t.py::c"],
    "problem_statement": "Zipping stops too early – always.", "image_name": "ignored"}
BENCH = {
    "instance_id": "owner__lib-7", "repo": "owner/lib", "base_commit": "0123abcd",
    "patch": "the repair", "FAIL_TO_PASS": ["tests/t.py::a"], "PASS_TO_PASS": [],
    "test_patch": "diff --git a/tests/t.py b/tests/t.py\n--- a/tests/t.py\n+++ b/tests/t.py\n",
    "problem_statement": "It fails.", "test_timeout": 180, "runtime_mode": "git_pr"}
TASKS = [
    CodeTask(SMITH["instance_id"], "Suor/funcy", "swesmith/Suor__funcy.207a7810", SMITH["patch"],
             "", ("t.py::a",), ("t.py::b", "t.py::c"), SMITH["problem_statement"],
             strategy="func_pm_op_swap"),
    CodeTask("owner__lib-7", "owner/lib", "owner/lib@0123abcd", BENCH["test_patch"], "the repair",
             ("tests/t.py::a",), (), "It fails.", ("tests/t.py",), 180.0, "pr"),
]


def jsonl(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


@pytest.mark.parametrize(("name", "pack"), [
    ("tasks.jsonl", bytes), ("tasks.jsonl.gz", gzip.compress), ("tasks.jsonl.xz", lzma.compress)])
def test_rows_of_both_schemas_become_tasks_however_they_are_packed(tmp_path, name, pack):
    file = tmp_path / name
    file.write_bytes(pack(jsonl(SMITH) + b"\n \n" + jsonl(BENCH)))
    assert loaders.load_tasks(file) == TASKS


@pytest.mark.parametrize(("name", "pack"), [
    ("tasks.jsonl", bytes), ("tasks.jsonl.gz", gzip.compress), ("tasks.jsonl.xz", lzma.compress)])
def test_a_file_that_is_cut_off_anywhere_is_refused_or_ends_between_rows(tmp_path, name, pack):
    file, whole = tmp_path / name, pack(jsonl(SMITH, BENCH))
    for size in range(1, len(whole), 13):
        file.write_bytes(whole[:size])
        try:
            found = loaders.load_tasks(file)
        except RowError as error:
            assert str(file) in str(error)
        else:
            # Only the line ends themselves can be missed.
            assert name == "tasks.jsonl" and size in (len(jsonl(SMITH)), len(whole) - 1)
            assert found == TASKS[: len(found)] and found


@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from([gzip, lzma]))
def test_a_damaged_byte_gives_the_tasks_or_an_error(tmp_path_factory, place, flip, packer):
    body = bytearray(packer.compress(jsonl(SMITH, BENCH)))
    body[place % len(body)] ^= flip
    file = tmp_path_factory.getbasetemp() / ("t.gz" if packer is gzip else "t.xz")
    file.write_bytes(body)
    try:
        assert loaders.load_tasks(file) == TASKS
    except RowError as error:
        assert str(file) in str(error)


@given(st.binary(max_size=200), st.sampled_from(["t.jsonl", "t.gz", "t.xz"]))
def test_any_bytes_give_tasks_or_an_error_that_names_the_file(tmp_path_factory, body, name):
    file = tmp_path_factory.getbasetemp() / name
    file.write_bytes(body)
    try:
        assert loaders.load_tasks(file) == []
    except RowError as error:
        assert str(file) in str(error)


@pytest.mark.parametrize("row", [SMITH, BENCH])
@pytest.mark.parametrize("value", [None, 3, "", {"a": 1}, [1]])
def test_a_wrong_field_is_named_with_its_row(tmp_path, row, value):
    file = tmp_path / "tasks.jsonl"
    used = [k for k in row if k not in ("image_name", "test_timeout", "runtime_mode")]
    for field in used:
        file.write_bytes(jsonl({**row, "instance_id": "first"}, {**row, field: value}))
        with pytest.raises(RowError, match=rf"{file}, row 2: .*{field}"):
            loaders.load_tasks(file)
        missing = {k: v for k, v in row.items() if k != field}
        file.write_bytes(jsonl(missing))
        if field != "test_patch":  # Without it, it is a row of the other schema.
            with pytest.raises(RowError, match=rf"{file}, row 1: .*{field}"):
                loaders.load_tasks(file)


@pytest.mark.parametrize("value", ["soon", None, [180], 0, -1, float("nan")])
def test_a_wrong_time_limit_is_named(tmp_path, value):
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(jsonl({**BENCH, "test_timeout": value}))
    with pytest.raises(RowError, match="row 1: owner__lib-7: test_timeout"):
        loaders.load_tasks(file)


def test_an_id_stands_once(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(jsonl(SMITH, BENCH, SMITH))
    with pytest.raises(RowError, match=f"row 3: {SMITH['instance_id']} stands there twice"):
        loaders.load_tasks(file)


@pytest.mark.parametrize("line", ["[1]", "3", "null", '"text"'])
def test_a_line_that_is_no_object_is_named(tmp_path, line):
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(jsonl(SMITH) + line.encode())
    with pytest.raises(RowError, match="line 2: no JSON object"):
        loaders.load_tasks(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RowError, match="gone.jsonl cannot be read"):
        loaders.load_tasks(tmp_path / "gone.jsonl")


def test_a_saved_dataset_is_read_whole_or_by_its_parts(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    rows = datasets.Dataset.from_list([SMITH, {**SMITH, "instance_id": "a.b.op_swap__2"}])
    rows.save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "parts"))
    plain = loaders.load_tasks(tmp_path / "plain")
    assert plain[0] == TASKS[0] and len(plain) == 2
    assert loaders.load_tasks(tmp_path / "parts") == plain


def test_a_directory_that_cannot_be_read_says_what_is_needed(tmp_path):
    with pytest.raises(RowError, match=re.escape(str(tmp_path))):
        loaders.load_tasks(tmp_path)


STREAM = {"metadata": {
    "episode_index": 4, "difficulty_tier": "pure_easy", "instance_ids": ["a.1", "a.2", "b.1"],
    "stage_labels": ["a", "a", "b"], "strategies": ["func_pm_op_swap", "func_basic", "pr_12"]}}


def test_published_streams_are_read_with_what_their_ids_stand_for(tmp_path):
    file = tmp_path / "streams.jsonl"
    file.write_bytes(jsonl(STREAM))
    (stream,), entries = loaders.load_streams(file)
    assert stream.tasks == tuple(
        streams_lib.Task(name, name, segment) for name, segment in
        (("a.1", 0), ("a.2", 0), ("b.1", 1)))
    assert stream.info == {"tier": "pure_easy", "repositories": ["a", "b"]}
    assert entries == {"a.1": streams.Entry("a.1", "a", "op_swap"),
                       "a.2": streams.Entry("a.2", "a", "func_basic"),
                       "b.1": streams.Entry("b.1", "b", "pr")}


@pytest.mark.parametrize("row", [
    {}, {"metadata": None}, {"metadata": []}, *(
        {"metadata": {**STREAM["metadata"], field: value}}
        for field in ("instance_ids", "stage_labels", "strategies")
        for value in (None, [], ["x", "y"], [1, 2, 3, 4]))])
def test_a_wrong_stream_is_named(tmp_path, row):
    file = tmp_path / "streams.jsonl"
    file.write_bytes(jsonl(STREAM, row))
    with pytest.raises(RowError, match=rf"{file}, row 2: no stream"):
        loaders.load_streams(file)


def test_libraries_are_read_by_name(tmp_path):
    file = tmp_path / "libraries.json"
    file.write_text(json.dumps([
        {"name": "funcy", "url": "pypi:funcy==2.0", "requirements": ["pytest"]}]))
    assert loaders.load_libraries(file) == {
        "funcy": sources.Library("funcy", "pypi:funcy==2.0", ("pytest",))}


@pytest.mark.parametrize("body", [
    "", "{", "3", "{}", "[3]", '[{"name": "a"}]', '[{"url": "a@b"}]',
    '[{"name": "a", "url": "b@c", "colour": "red"}]',
    '[{"name": "a", "url": "b@c"}, {"name": "a", "url": "d@e"}]'])
def test_a_file_of_no_libraries_is_refused(tmp_path, body):
    file = tmp_path / "libraries.json"
    file.write_text(body)
    with pytest.raises(sources.SourceError):
        loaders.load_libraries(file)
    with pytest.raises(sources.SourceError, match="cannot be read"):
        loaders.load_libraries(tmp_path / "gone.json")


@pytest.mark.parametrize(("changed", "why"), [
    ({"url": 2}, "url must be a text"),
    ({"name": 2}, "name must be a text"),
    ({"requirements": "pytest"}, "list of texts"),
    ({"requirements": [1]}, "list of texts"),
    ({"requirements": None}, "list of texts"),
    ({"name": "../../elsewhere"}, "relative path"),
    ({"name": "/elsewhere"}, "relative path"),
    ({"name": ""}, "relative path"),
    ({"root": "src/../.."}, "folder of the repository"),
    ({"url": "pypi:x"}, "NAME==VERSION"),
    ({"url": "pypi:-r==1 /f"}, "NAME==VERSION"),
    ({"colour": "red"}, "colour"),
])
def test_a_library_that_is_none_or_leads_out_of_the_cache_is_refused(tmp_path, changed, why):
    file = tmp_path / "libraries.json"
    file.write_text(json.dumps([{"name": "owner/x@0", "url": "https://host/x@0"} | changed]))
    with pytest.raises(sources.SourceError, match=f"describes no library.*{why}"):
        loaders.load_libraries(file)


def test_an_address_that_begins_like_an_option_is_none_to_git(tmp_path):
    with pytest.raises(sources.SourceError, match="cloning --version failed.*does not exist"):
        sources.fetch(sources.Library("x", "--version@0"), tmp_path)
    with pytest.raises(sources.SourceError, match="names no commit"):
        sources.fetch(sources.Library("x", "/a@--output=b"), tmp_path)
