"""The pages in headless Chromium, from a file URL and without a network."""

import re
import shutil
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from benchmarks import browser as browser_lib
from rime_jax.report import __main__ as program
from rime_jax.report import runs, site
from tests.report.made import noise, row, write_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\0\ud800"


@pytest.fixture(scope="module")
def chromium():
    pytest.importorskip("plotly", reason="needs plotly (extra `report`)")
    with pytest.MonkeyPatch.context() as patch:
        # Chromium is one process with many threads; jax's flags mean nothing to it.
        patch.delenv("XLA_FLAGS", raising=False)
        launched = browser_lib.launch()
        try:
            opened = launched.__enter__()
        except RuntimeError as error:
            pytest.skip(str(error))
        try:
            yield opened
        finally:
            launched.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def _no_faults(chromium):
    """No error, console message, dialog or request to anything but files, in any test."""
    chromium.faults.clear()
    yield
    assert chromium.faults == []


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The directory of a report of two runs, each with three dumps of two streams."""
    root = tmp_path_factory.mktemp("browser")
    paths = []
    for name, options in (("rime", {}), ("untrained", {"reward.writer": "none"})):
        dumps = {step: _rows(step) for step in (1, 10, 20)}
        lines = [{"step": i, "exploration/score": i / 40, "memory/tokens": 5 + i}
                 for i in range(1, 21)]
        final = {"setting": "a game", "policies": {
            "initial": {"performance": 0.2}, "step 20": {
                "performance": [0.5, 0.4, 0.6], "by_position": [0.3, 0.5, 0.7],
                "cumulative_gain_by_position": {"mean": [0.1, 0.3, 0.6], "se": [0.1, 0.1, 0.2]}}}}
        paths.append(write_run(root / name, options=options, dumps=dumps, lines=lines,
                               evaluations={"final": final}))
    return site.write(runs.read(paths), root / "out", program._plotly(), lambda said: None).parent


def _rows(step):
    rows = [
        row(g, i, t, stream=f"train-{step + g}",
            status="failed" if (i, t) == (1, 2) else "solved",
            malformed="too long" if (step, g, i, t) == (10, 1, 2, 3) else None,
            transcript=[["environment", f"task {t} of {i}"], ["actor", "go"]])
        for g in range(2) for i in range(3) for t in (1, 2, 3)]
    old = {"group": 0, "sibling": 0, "position": 3, "reward": 0.5, "status": "solved"}
    lost = {"stream": f"train-{step}", "group": 0, "sibling": 2, "position": 3,
            "status": "env_crash"}
    return [r for r in rows if (r["group"], r["sibling"], r["position"]) not in
            ((0, 0, 3), (0, 2, 3))] + [old, lost]


@pytest.fixture
def browse(chromium, report):
    """The browser of rollouts, with its first task shown."""
    with chromium.page() as page:
        page.goto((report / "browse.html").as_uri())
        page.wait_for_selector("article.task")
        yield page


def _place(page):
    """(group, sibling, position) of the chosen task, from the map."""
    return page.get_attribute("[aria-current=true]", "data-place")


def _iteration(page):
    return page.input_value("#dump")


def _wait_place(page, place):
    page.wait_for_selector(f'[data-place="{place}"][aria-current=true]')


def _until(condition, seconds=20.0):
    """Waits in this process: a page may not evaluate strings (its content security policy)."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


# ------------------------------------------------------------------------------ first page
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_open_from_a_file_and_fit_the_window(chromium, report, width, dark):
    for name, ready in (("index.html", "table"), ("browse.html", "article.task")):
        with chromium.page(width, dark=dark) as page:
            page.goto((report / name).as_uri())
            page.wait_for_selector(ready)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.get_attribute("html", "data-theme") == ("dark" if dark else "light")


def test_every_figure_is_drawn_when_it_comes_near_the_screen(chromium, report):
    with chromium.page(height=500) as page:
        page.goto((report / "index.html").as_uri())
        plots = page.query_selector_all(".plot")
        assert plots[-1].query_selector(".main-svg") is None
        assert page.evaluate("typeof Plotly") == "undefined"  # most of what the page weighs
        page.wait_for_selector("table")
        for plot in plots:
            plot.scroll_into_view_if_needed()
            plot.wait_for_selector(".main-svg")
        assert len(plots) > 6


def test_a_report_without_its_library_says_so_in_place_of_a_figure(chromium, report, tmp_path):
    shutil.copytree(report, tmp_path / "copy")
    (tmp_path / "copy" / "assets" / "plotly.js").unlink()
    with chromium.page() as page:
        page.goto((tmp_path / "copy" / "index.html").as_uri())
        page.locator(".plot").first.scroll_into_view_if_needed()
        page.wait_for_selector(".plot:has-text('assets/plotly.js cannot be read')")
    # The browser itself reports the missing file.
    assert all("ERR_FILE_NOT_FOUND" in fault for fault in chromium.faults)
    chromium.faults.clear()


def test_a_name_in_the_legend_hides_its_lines_in_all_panels(chromium, report):
    with chromium.page() as page:
        page.goto((report / "index.html").as_uri())
        button = page.locator("#learning .legend button", has_text="untrained")
        page.locator("#learning").scroll_into_view_if_needed()
        page.wait_for_selector("#learning .main-svg .trace")
        before = page.locator("#learning .trace").count()
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        _until(lambda: page.locator("#learning .trace").count() == before / 2)


def test_every_name_in_a_legend_has_the_colour_of_its_line(chromium, report):
    with chromium.page() as page:
        page.goto((report / "index.html").as_uri())
        colours = page.evaluate("[...document.querySelectorAll('.legend i')].map("
                                "e => e.style.getPropertyValue('--swatch'))")
    assert len(colours) > 10 and all(colour.startswith("var(--") for colour in colours)


def test_the_chosen_colours_stay(chromium, report):
    with chromium.page() as page:
        page.goto((report / "index.html").as_uri())
        page.click("#theme")  # as the system → light
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "dark"
        page.goto((report / "browse.html").as_uri())
        assert page.get_attribute("html", "data-theme") == "dark"


# ------------------------------------------------------------------------------ rollouts
def test_a_dump_is_loaded_when_it_is_first_looked_at(chromium, report):
    with chromium.page() as page:
        loaded = []
        page.on("request", lambda request: loaded.append(request.url.rpartition("/data/")[2]))
        page.goto((report / "browse.html").as_uri())
        page.wait_for_selector("article.task")
        assert [name for name in loaded if name.startswith("0/")] == ["0/step_000020.js"]
        page.keyboard.press("[")
        page.wait_for_selector("#rollout h2:text-is('train-10')")
        page.keyboard.press("]")
        page.wait_for_selector("#rollout h2:text-is('train-20')")
        assert [name for name in loaded if name.startswith("0/")] == [
            "0/step_000020.js", "0/step_000010.js"]


def test_a_task_shows_its_numbers(browse):
    text = " ".join(browse.inner_text("#task-1").split())
    for said in ("Task 1 solved t1", "reward r 1", "performance 0.500", "exploration e 0.500",
                 "advantage +1.50", "no action 1 ×", "improvement +0.250", "reward w +0.250",
                 "memory well-formed", "advantage −0.50", "new discoveries 2",
                 "corrected beliefs 1", "leads for later 0", "non-redundant 1"):
        assert said in text, said


def test_memory_shows_what_changed_and_both_sides(browse):
    memory = browse.locator("#task-1 .memory")
    assert memory.locator("ins").all_inner_texts() == ["\nblue: down"]
    browse.keyboard.press("d")
    assert memory.locator(".text").inner_text() == "red: up"
    browse.keyboard.press("d")
    assert memory.locator(".text").inner_text() == "red: up\nblue: down"


def test_a_conversation_is_folded_and_only_made_when_opened(browse):
    assert browse.locator("#task-1 .message").count() == 0
    browse.keyboard.press("o")
    browse.wait_for_selector("#task-1 .message")
    assert browse.locator("#task-1 .message .text").all_inner_texts() == ["task 1 of 0", "go"]
    browse.keyboard.press("o")
    assert not browse.locator("#task-1 .message").first.is_visible()


def test_what_an_old_run_did_not_record_is_said_and_a_lost_task_is_no_zero(browse):
    text = browse.inner_text("#task-3")
    assert text.count("not recorded") >= 6 and "Conversation: not recorded" in text
    browse.click('[data-place="0/2/3"]')
    browse.wait_for_selector("#task-3:has-text('Lost')")
    assert "reward r" not in browse.inner_text("#task-3")


def test_the_map_is_walked_with_arrows_and_tasks_with_j_and_k(browse):
    browse.focus('#map [tabindex="0"]')
    for key, place in (("ArrowRight", "0/0/2"), ("ArrowDown", "0/1/2"), ("ArrowDown", "0/2/2"),
                       ("ArrowDown", "1/0/2"), ("ArrowUp", "0/2/2"), ("ArrowLeft", "0/2/1"),
                       ("ArrowLeft", "0/2/1")):
        browse.keyboard.press(key)
        _wait_place(browse, place)
    browse.keyboard.press("j")
    _wait_place(browse, "0/2/2")
    assert browse.evaluate("document.activeElement.id") == "task-2"
    browse.keyboard.press("k")
    _wait_place(browse, "0/2/1")


def test_tab_reaches_the_map_once_and_every_control_has_a_name(browse):
    assert browse.locator('#map [tabindex="0"]').count() == 1
    names = browse.evaluate(
        "[...document.querySelectorAll('button, select, input, [role=region]')].map(e => "
        "e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.[0]?.textContent.trim()"
        " || '')")
    assert all(names)


def test_the_skip_link_leads_to_the_tasks(browse):
    browse.keyboard.press("Tab")
    assert browse.evaluate("document.activeElement.className") == "skip"
    browse.keyboard.press("Enter")
    assert browse.evaluate("document.activeElement.id") == "main"


def test_keys_are_listed_and_escape_closes_the_list(browse):
    browse.keyboard.press("?")
    assert browse.locator("#keys").is_visible()
    browse.keyboard.press("Escape")
    assert not browse.locator("#keys").is_visible()


def test_a_filter_by_status_dims_the_rest_and_n_walks_all_dumps(browse):
    browse.check("input[value=failed]")
    lit = browse.locator("#map button:not(.dim)")
    assert [lit.nth(i).get_attribute("data-place") for i in range(lit.count())] == [
        "0/1/2", "1/1/2"]
    browse.locator("input[value=failed]").blur()
    for step, place in (("20", "0/1/2"), ("20", "1/1/2"), ("1", "0/1/2")):
        browse.keyboard.press("n")
        _wait_place(browse, place)
        assert _iteration(browse) == step
    browse.keyboard.press("p")
    _wait_place(browse, "1/1/2")
    assert _iteration(browse) == "20"


def test_a_malformed_memory_is_found_in_the_dump_that_has_it(browse):
    browse.check("input[value='malformed memory']")
    assert "0 tasks here, in 1 of 3 dumps" in browse.inner_text("#matches")
    browse.click("#next-match")
    _wait_place(browse, "1/2/3")
    assert _iteration(browse) == "10"
    assert "malformed: too long" in browse.inner_text("#task-3")


def test_a_task_without_a_status_is_found_as_such(chromium, tmp_path):
    rows = [row(0, 0, 1), {"group": 0, "sibling": 0, "position": 2, "reward": 1.0}]
    page_file = site.write(runs.read([write_run(tmp_path / "r", dumps={1: rows})]),
                           tmp_path / "out", "", lambda said: None)
    with chromium.page() as page:
        page.goto(page_file.with_name("browse.html").as_uri())
        page.wait_for_selector("article.task")
        page.check("input[value='not recorded']")
        assert page.get_attribute("#map button:not(.dim)", "data-place") == "0/0/2"
        assert page.inner_text("#task-2 .status") == "not recorded"


def test_a_filter_by_position(browse):
    browse.select_option("#from", "2")
    browse.select_option("#to", "2")
    lit = browse.locator("#map button:not(.dim)")
    assert {lit.nth(i).get_attribute("data-place")[-1] for i in range(lit.count())} == {"2"}
    assert "6 tasks here" in browse.inner_text("#matches")


def test_two_runs_stand_side_by_side_on_the_same_stream(browse):
    browse.select_option("#other", "1")
    browse.wait_for_selector(".columns.two")
    heads = browse.locator(".column-head").all_inner_texts()
    assert [head.split("\n")[0] for head in heads] == ["train-20", "train-20"]
    assert "rime" in heads[0] and "untrained" in heads[1]
    assert browse.locator("#beside-1").is_visible()
    left, right = (browse.locator(s).bounding_box() for s in ("#task-1", "#beside-1"))
    assert left["y"] == right["y"] and left["x"] < right["x"]


def test_a_stream_that_the_other_run_lacks_is_said(chromium, tmp_path):
    paths = [write_run(tmp_path / n, dumps={1: [row(0, 0, 1, stream=n)]}) for n in ("a", "b")]
    page_file = site.write(runs.read(paths), tmp_path / "out", "", lambda said: None)
    with chromium.page() as page:
        page.goto(page_file.with_name("browse.html").as_uri() + "#beside=1")
        page.wait_for_selector(".columns.two")
        assert "b has no dump with the stream a" in page.inner_text("#rollout")


def test_the_address_leads_back_to_the_same_task(chromium, report, browse):
    browse.keyboard.press("[")
    browse.wait_for_selector("#rollout h2:text-is('train-10')")
    browse.click('[data-place="1/2/2"]')
    _wait_place(browse, "1/2/2")
    _until(lambda: "task=2" in browse.url)
    with chromium.page() as again:
        again.goto(browse.url)
        _wait_place(again, "1/2/2")
        assert _iteration(again) == "10"


@pytest.mark.parametrize("fragment", ["run=99&step=x&group=-1", "task=99&sibling=7", "%%%=&"])
def test_an_address_that_names_nothing_still_shows_something(chromium, report, fragment):
    with chromium.page() as page:
        page.goto((report / "browse.html").as_uri() + "#" + fragment)
        page.wait_for_selector("article.task")


def test_a_run_without_dumps_says_so(chromium, tmp_path):
    page_file = site.write(runs.read([write_run(tmp_path / "r")]), tmp_path / "out", "",
                           lambda said: None)
    with chromium.page() as page:
        page.goto(page_file.with_name("browse.html").as_uri())
        page.wait_for_selector("#rollout:has-text('track.samples_every')")


# ------------------------------------------------------------------------------ texts
def test_hostile_texts_are_shown_as_they_are(chromium, tmp_path):
    bad = HOSTILE
    path = write_run(tmp_path / "r", options={"name": bad}, dumps={1: [row(
        0, 0, 1, stream=bad, task=bad, status=bad, memory_before=bad, memory_after=bad * 2,
        malformed=bad, info={bad: bad}, transcript=[[bad, bad]], metrics={bad: 1.0})]})
    page_file = site.write(runs.read([path]), tmp_path / "out", program._plotly(), lambda s: None)
    with chromium.page() as page:
        page.goto(page_file.as_uri())
        page.wait_for_load_state("load")
        page.goto(page_file.with_name("browse.html").as_uri())
        page.wait_for_selector("article.task")
        page.keyboard.press("o")
        page.wait_for_selector(".message")
        # Characters are counted rather than sent: a lone surrogate has no UTF-8.
        shown = page.evaluate("document.querySelector('.message .text').textContent.length")
        assert shown == len(bad)
        assert page.locator("img, main script").count() == 0


def test_a_line_of_a_megabyte_is_shown_and_compared(chromium, tmp_path):
    before, after = noise(1_000_000), "x " + noise(1_000_000) + " y"
    path = write_run(tmp_path / "r", dumps={1: [
        row(0, 0, 1, memory_before=before, memory_after=after, transcript=[["actor", before]])]})
    page_file = site.write(runs.read([path]), tmp_path / "out", "", lambda said: None)
    with chromium.page(390) as page:
        page.goto(page_file.with_name("browse.html").as_uri())
        page.wait_for_selector("#task-1 ins")
        page.keyboard.press("o")
        page.wait_for_selector(".message")
        assert "900,000 characters left out" in page.inner_text(".message .cut")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.fixture(scope="module")
def word_diff(chromium, report):
    """The page's own difference of two texts."""
    with chromium.page() as page:
        page.goto((report / "browse.html").as_uri())
        page.wait_for_selector("article.task")
        yield lambda before, after: page.evaluate("([a, b]) => wordDiff(a, b)", [before, after])


WORDS = st.lists(st.sampled_from(["a", "bb", " ", "\n", "-", "é", "c3", ". "]), max_size=30).map(
    "".join)


@hypothesis.given(WORDS, WORDS)
@hypothesis.settings(max_examples=150,
                     suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_differences_are_made_of_both_texts(word_diff, before, after):
    found = word_diff(before, after)
    assert "".join(text for kind, text in found if kind != "added") == before
    assert "".join(text for kind, text in found if kind != "removed") == after


def test_differences_of_unrelated_long_texts_are_made_of_both(word_diff):
    before, after = (" ".join(re.findall("..", noise(40_000)[i:])) for i in (0, 1))
    found = word_diff(before, after)
    assert "".join(text for kind, text in found if kind != "added") == before
    assert "".join(text for kind, text in found if kind != "removed") == after


def test_differences_are_of_words(word_diff):
    assert word_diff("red makes it small", "red makes it large") == [
        ["same", "red makes it "], ["removed", "small"], ["added", "large"]]
    assert word_diff("same", "same") == [["same", "same"]]
    assert word_diff("", "") == []
