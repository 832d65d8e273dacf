"""The files of a report, without a browser."""

import html.parser
import json
import re
import subprocess
import sys

import pytest

from rime_jax.report import __main__ as program
from rime_jax.report import runs, site
from tests.report.made import noise, row, write_run
from tests.report.test_shards import unpacked

HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "template": "{{ 7 * 7 }}{% raw %}${alert(1)}`",
    "right to left": "\u202e\u2067olleh\u05d0",
    "nul": "a\0b",
    "surrogate": "\ud800x\udfff",
    "separators": "a\u2028b\u2029c\r\nd",
    "comment": "<!--<script>",
    "quotes": "\"'`&amp;",
}


def _write(paths, out):
    return site.write(runs.read(paths), out, "/* plotly */", lambda said: None)


def _parsed(page):
    """(tags with their attributes, text) of a page."""
    tags, texts = [], []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append((tag, dict(attrs)))

        def handle_data(self, data):
            texts.append(data)

    Parser().feed(page.read_text())
    return tags, " ".join(" ".join(texts).split())


def test_the_first_page_shows_published_and_own_numbers(tmp_path):
    path = write_run(
        tmp_path / "rime", lines=[{"step": 40}], dumps={40: [row(0, 0, 1)]},
        evaluations={"final": {"setting": "a small game", "policies": {
            "initial": {"performance": 0.25, "gain": -0.125},
            "step 40": {"performance": [0.512, 0.4, 0.6], "improvement": -0.0625}}}})
    tags, text = _parsed(_write([path], tmp_path / "out"))
    for said in ("0.490 0.512 [0.400, 0.600]", "+0.213 −0.062", "0.301 0.250", "a small game",
                 "0.250 → 0.512", "step 40", "1 dump"):
        assert said in text, said
    assert {"href": "browse.html#run=0"} in [attributes for tag, attributes in tags if tag == "a"]


def test_the_options_in_which_a_run_differs_are_listed(tmp_path):
    paths = [write_run(tmp_path / "rime"),
             write_run(tmp_path / "off", options={"reward.exploration": 0.0, "learner.lr": 0.5})]
    _, text = _parsed(_write(paths, tmp_path / "out"))
    assert "2 options changed learner.lr = 0.5 reward.exploration = 0.0" in text


def test_the_list_of_runs_shows_sums_where_there_is_nothing_else(tmp_path):
    curve = {"mean": [0.5, 1.5], "se": [0.1, 0.1]}
    found = {"protocol": "runs", "policies": {name: {
        "reward": {"mean": reward}, "gain": {"mean": 0.25}, "cumulative_reward_by_position": curve}
        for name, reward in (("initial", 0.5), ("step 3", 1.5))}}
    path = write_run(tmp_path / "r", evaluations={"x": found})
    _, text = _parsed(_write([path], tmp_path / "out"))
    assert "0.500 → 1.500 sums of 2 tasks +0.250 → +0.250" in text
    assert "not evaluated" not in text


def test_every_file_a_page_names_is_there_and_none_is_remote(tmp_path):
    page = _write([write_run(tmp_path / "r", dumps={1: [row(0, 0, 1)]})], tmp_path / "out")
    for name in ("index.html", "browse.html"):
        for _, attributes in _parsed(page.with_name(name))[0]:
            for key in ("src", "href"):
                link = attributes.get(key, "").split("#")[0]
                assert not re.match(r"\w+:", link) or link == "data:,"
                if link and not link.startswith("data:"):
                    assert (page.parent / link).is_file(), link


def test_dumps_lie_beside_the_pages_in_files_of_their_own(tmp_path):
    rows = [row(g, i, t, status="failed" if t == 2 else "solved",
                malformed="too long" if i else None)
            for g in range(2) for i in range(2) for t in (1, 2)]
    page = _write([write_run(tmp_path / "r", dumps={3: rows, 12: rows})], tmp_path / "out")
    text = (page.parent / "data" / "index.js").read_text()
    [run] = json.loads(re.fullmatch(r"rimeIndex\((.*)\);\n", text)[1])["runs"]
    assert [dump["step"] for dump in run["dumps"]] == [3, 12]
    assert run["dumps"][0]["counts"] == {
        "solved": {"1": 4}, "failed": {"2": 4}, "malformed memory": {"1": 2, "2": 2}}
    assert [stream["id"] for stream in run["dumps"][0]["streams"]] == ["train-0", "train-1"]
    assert run["dumps"][0]["exploration"] == 0.5
    for dump in run["dumps"]:
        _, step, found = unpacked((page.parent / dump["file"]).read_text())
        assert step == dump["step"] and len(found["rows"]) == 8


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_of_a_run_becomes_markup(tmp_path, kind):
    bad = HOSTILE[kind]
    rows = [row(0, 0, 1, stream=bad, task=bad, status=bad, memory_before=bad, malformed=bad,
                memory_after=bad * 2, transcript=[[bad, bad]], info={bad: bad}, metrics={bad: 1.0})]
    path = write_run(
        tmp_path / "r", dumps={1: rows},
        options={"name": bad, "model.path": bad, "reward.horizon": 9},
        evaluations={"final": {"setting": bad, "policies": {
            bad: {"performance": 0.5, "by_position": [0.5, 0.75]}}}})
    plain = _write([write_run(tmp_path / "plain", dumps={1: [row(0, 0, 1)]}, options={
        "name": "x", "reward.horizon": 9}, evaluations={"final": {"setting": "x", "policies": {
            "x": {"performance": 0.5, "by_position": [0.5, 0.75]}}}})], tmp_path / "out_plain")
    page = _write([path], tmp_path / "out")
    for name in ("index.html", "browse.html"):
        tags, _ = _parsed(page.with_name(name))
        assert [tag for tag, _ in tags] == [tag for tag, _ in _parsed(plain.with_name(name))[0]]
        assert not any(key.startswith("on") for _, own in tags for key in own)
    for script in (page.parent / "data").rglob("*.js"):
        assert script.read_bytes().isascii()  # and so free of separators and surrogates
    _, _, found = unpacked((page.parent / "data/0/step_000001.js").read_text())
    assert bad in found["texts"] and found["rows"][0]["malformed"] == bad


def test_a_report_replaces_an_earlier_one_and_nothing_else(tmp_path):
    path = write_run(tmp_path / "r", dumps={1: [row(0, 0, 1)], 2: [row(0, 0, 1)]})
    page = _write([path], tmp_path / "out")
    (path / "samples" / "step_000002.jsonl.gz").unlink()
    _write([path], tmp_path / "out")
    assert [p.name for p in (page.parent / "data" / "0").iterdir()] == ["step_000001.js"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text("my page")
    for place in (tmp_path / "other", tmp_path / "r", path / "config.json"):
        with pytest.raises(runs.ReportError, match="--out"):
            _write([path], place)
    assert (tmp_path / "other" / "index.html").read_text() == "my page"


def test_what_a_run_lacks_is_said(tmp_path):
    path = write_run(tmp_path / "r", dumps={1: ["no row"]})
    (path / "config.json").write_text("{}")
    _, text = _parsed(_write([path], tmp_path / "out"))
    assert "not evaluated" in text and "step_000001.jsonl.gz: 1 line could not be read" in text


def test_many_dumps_that_do_not_fit_are_cut_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "_ROLLOUT_BYTES", 4000)
    text = noise(50_000)
    path = write_run(tmp_path / "r", dumps={
        step: [row(0, 0, 1, transcript=[["actor", text]])] for step in (1, 2)})
    page = _write([path], tmp_path / "out")
    assert sum(f.stat().st_size for f in (page.parent / "data" / "0").iterdir()) <= 4000
    assert re.search(r"messages over [\d,]+ characters are cut", _parsed(page)[1])


def test_the_program_writes_into_the_first_run_and_prints_where(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(program, "_plotly", lambda: "")
    paths = [str(write_run(tmp_path / name)) for name in ("a", "b")]
    program.main(paths)
    told = capsys.readouterr().out
    assert (tmp_path / "a" / "report" / "index.html").is_file()
    assert (tmp_path / "a" / "report" / "index.html").as_uri() in told
    program.main(paths)  # once more, over its own


def test_the_program_ends_with_a_sentence_where_there_is_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "_plotly", lambda: "")
    with pytest.raises(SystemExit, match="error: .*no run directory"):
        program.main([str(tmp_path)])


def test_a_missing_library_is_named_with_the_command(tmp_path):
    code = ("import sys; sys.modules['plotly'] = None; from rime_jax.report import __main__ as m; "
            f"m.main([{str(write_run(tmp_path / 'r'))!r}])")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 78
    assert re.search(r"error: .*plotly.*pip install 'rime_jax\[report\]'", found.stderr)
    assert "Traceback" not in found.stderr


def test_reading_runs_imports_no_jax():
    code = "import sys, rime_jax.report.__main__; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
