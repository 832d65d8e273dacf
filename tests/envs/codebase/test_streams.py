"""Plans of repair streams on random task pools, and the study's published ones."""

import collections
import dataclasses
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax import config as config_lib
from rime_jax import domain_codebase
from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import loaders, streams
from rime_jax.envs.codebase import published as shipped
from rime_jax.envs.codebase.tasks import CodeTask

PUBLISHED = pathlib.Path(__file__).parents[4] / "shared" / "data" / "rime_streams_382.jsonl"
SIX = streams.Shape((6, 6))


def entries_of(rows):
    return [streams.Entry(f"{repository}.{i}", repository, strategy, frozenset(functions))
            for i, (repository, strategy, functions) in enumerate(rows)]


def by_id(entries):
    return {e.instance_id: e for e in entries}


functions = st.sets(st.tuples(st.sampled_from(["a.py", "b.py"]), st.sampled_from("fghijklm")),
                    max_size=2)
pools = st.lists(
    st.tuples(st.sampled_from(["one", "two", "three", "four"]),
              st.sampled_from([*streams.PASS_RATES, "never_measured"]), functions),
    max_size=60).map(entries_of)
shapes = st.builds(
    lambda n, size, curriculum: streams.Shape((size,) * n, curriculum),
    st.integers(1, 3), st.integers(1, 6), st.booleans())


@given(pools, shapes, st.integers(0, 9))
def test_a_plan_keeps_every_constraint(pool, shape, seed):
    try:
        planned = streams.plan(pool, shape, seed)
    except ValueError as error:
        assert "allow no stream" in str(error)
        return
    assert streams.problems(planned, by_id(pool), shape) == []
    for stream in planned:
        first = {t.segment: by_id(pool)[t.payload].repository for t in reversed(stream.tasks)}
        assert stream.info["repositories"] == [first[i] for i in range(len(shape.segments))]
    assert len({stream.id for stream in planned}) == len(planned)


@given(pools, shapes, st.integers(0, 9), st.randoms())
def test_a_plan_depends_on_its_arguments_and_not_on_the_order_of_the_tasks(pool, shape, seed, rng):
    def plan(entries):
        try:
            return streams.plan(entries, shape, seed)
        except ValueError:
            return None

    assert plan(pool) == plan(rng.sample(pool, len(pool)))


@given(st.integers(1, 3), st.integers(1, 9), st.lists(st.sampled_from(list(streams.PASS_RATES)),
                                                      min_size=9, max_size=9))
def test_enough_tasks_make_a_stream_whatever_their_difficulty(n, size, strategies):
    pool = entries_of((f"r{r}", strategies[i], [("a.py", f"f{i}")])
                      for r in range(n) for i in range(size))
    assert len(streams.plan(pool, streams.Shape((size,) * n), 0)) == 1


@given(pools, shapes)
def test_tiers_say_which_levels_a_segment_has(pool, shape):
    try:
        planned = streams.plan(pool, shape, 0)
    except ValueError:
        return
    size = shape.segments[0]
    for stream in planned:
        for segment in range(len(shape.segments)):
            own = collections.Counter(
                streams.level(by_id(pool)[t.payload].strategy)
                for t in stream.tasks if t.segment == segment)
            counts = [own[name] for name in streams.LEVELS]
            if stream.info["tier"] == "mixed":
                assert min(counts) >= 1 and max(counts) - min(counts) <= 1
            elif stream.info["tier"] == "easy_mid":
                assert counts[2] == 0 and 0 <= counts[0] - counts[1] <= 1 <= counts[1]
            elif stream.info["tier"] == "pure_easy":
                assert counts == [size, 0, 0]


def good_pool():
    """Enough for one 6 + 6 stream; functions are all different."""
    strategies = ["op_swap", "op_swap", "pr", "pr", "lm_rewrite", "lm_rewrite"]
    return entries_of((repository, strategy, [("a.py", f"{repository}{i}")])
                      for repository in ("one", "two") for i, strategy in enumerate(strategies))


def rearranged(stream, order):
    """The tasks of `order`, in the places that there are."""
    tasks = [dataclasses.replace(stream.tasks[j], segment=stream.tasks[i].segment)
             for i, j in enumerate(order)]
    return dataclasses.replace(stream, tasks=tuple(tasks))


def test_every_violation_is_reported():
    pool = by_id(good_pool())
    (stream,) = streams.plan(pool.values(), SIX, 0)
    first, second = stream.tasks[0], stream.tasks[6]
    function = pool[first.payload].functions

    def found(planned=(stream,), entries=pool, shape=SIX, **options):
        return "\n".join(streams.problems(planned, entries, shape, **options))

    assert found() == ""
    other = dataclasses.replace(stream, id="other")
    assert f"other: {first.payload} stands in two places" in found([stream, other])
    assert "stands in two places" in found([dataclasses.replace(
        stream, tasks=(*stream.tasks[:11], stream.tasks[10]))])
    assert f"{first.payload} is unknown" in found(
        entries={k: v for k, v in pool.items() if k != first.payload})
    assert "segments of (6, 5) tasks instead of (6, 6)" in found(
        [dataclasses.replace(stream, tasks=stream.tasks[:11])])
    assert "instead of (12,)" in found(shape=streams.Shape((12,)))
    swapped = rearranged(stream, [6, *range(1, 6), 0, *range(7, 12)])
    assert "one segment has tasks of ['one', 'two']" in found([swapped])
    backwards = rearranged(stream, [5, 1, 2, 3, 4, 0, *range(6, 12)])
    assert "does not go from easy to hard" in found([backwards])
    assert found([backwards], shape=streams.Shape((6, 6), curriculum=False)) == ""
    woven = [stream.tasks[i] for pair in zip(range(6), range(6, 12), strict=True) for i in pair]
    assert "segments are mixed up" in found([dataclasses.replace(stream, tasks=tuple(woven))])
    assert "one is held out" in found(held_out=frozenset(["one"]))
    neighbour = stream.tasks[1].payload
    assert "corrupted 2 times in a segment" in found(entries={
        **pool, neighbour: dataclasses.replace(pool[neighbour], functions=function)})
    same = {name: dataclasses.replace(e, repository="one") for name, e in pool.items()}
    assert "neighbouring segments are of one repository" in found(entries=same)
    twice = {**same, second.payload: dataclasses.replace(
        same[second.payload], functions=function, strategy=pool[first.payload].strategy)}
    assert "is corrupted by ['op_swap', 'op_swap']" in found(entries=twice)


def test_a_function_is_corrupted_at_most_twice_and_differently():
    strategies = ["op_swap", "op_change", "func_basic"]
    pool = [streams.Entry(f"{r}.{i}.{s}", r, s, frozenset([("a.py", f"f{i}")]))
            for r in ("one", "two") for i in range(6) for s in strategies]
    planned = streams.plan(pool, SIX, 0)
    assert len(planned) == 2  # Three strategies of each function would give three.
    assert streams.problems(planned, by_id(pool), SIX) == []
    third = [dataclasses.replace(e, strategy="op_swap") for e in pool]
    assert len(streams.plan(third, SIX, 0)) == 1


def test_every_stream_comes_once_in_each_pass_in_different_orders():
    planned = [streams_lib.Stream(str(i), ()) for i in range(20)]
    source = streams_lib.StreamSource(streams.make_streams(planned), seed=3)
    passes = [[stream.id for stream in source.take(20)] for _ in range(3)]
    assert [sorted(p) for p in passes] == [sorted(map(str, range(20)))] * 3
    assert passes[0] != passes[1] != passes[2]
    make = streams.make_streams(planned)
    assert [make(i, np.random.default_rng(i)).id for i in range(20)] == passes[0]


@pytest.mark.parametrize(("text", "segments"), [
    ("6+6", (6, 6)), ("3+3", (3, 3)), ("9+9+9", (9, 9, 9)), ("13+13", (13, 13)), ("1", (1,))])
def test_shapes_are_read_from_sums(text, segments):
    assert streams.Shape.parse(text) == streams.Shape(segments)
    assert not streams.Shape.parse(text, curriculum=False).curriculum


@pytest.mark.parametrize("text", ["", "+", "6+", "6,6", "6+0", "-6+6", "6 + 6", "six"])
def test_other_texts_are_no_shapes(text):
    with pytest.raises(ValueError, match="no shape of streams; write"):
        streams.Shape.parse(text)


def test_unequal_segments_and_too_few_tasks_are_refused():
    with pytest.raises(ValueError, match=r"different lengths \(6, 3\)"):
        streams.plan(good_pool(), streams.Shape((6, 3)), 0)
    with pytest.raises(ValueError, match="needs 2 repositories with 7 tasks each .*'one': 6"):
        streams.plan(good_pool(), streams.Shape((7, 7)), 0)
    with pytest.raises(ValueError, match="allow no stream"):
        streams.plan([], SIX, 0)


@pytest.mark.parametrize("repository", ["tenacity", "jd/tenacity", "jd__tenacity.0d40e76f",
                                        "swesmith/jd__tenacity.0d40e76f", "jazzband/tablib"])
def test_the_benchmarks_repositories_are_left_out_and_refused(repository):
    pool = [dataclasses.replace(e, repository=repository) if e.repository == "one" else e
            for e in good_pool()]
    with pytest.raises(ValueError, match="allow no stream"):
        streams.plan(pool, SIX, 0)
    with pytest.raises(ValueError, match="x belongs to the benchmark .*; take it out"):
        streams.check_trainable([task(repository=repository)])


def test_the_benchmarks_canary_is_refused_wherever_it_stands():
    streams.check_trainable([task(), task(repository="tenacity-tools")])
    canary = "BENCHMARK DATA must never appear in training corpora, canary 1"
    for values in ({"statement": canary}, {"setup_patch": f"+# {canary}\n"}):
        with pytest.raises(ValueError, match="evaluation only"):
            streams.check_trainable([task(), task(**values)])


def task(**values):
    return dataclasses.replace(
        CodeTask("x", "funcy", "funcy", "patch", "", ("t",), (), "statement"), **values)


def test_an_entry_is_made_from_what_the_row_says():
    patch = ("diff --git a/colls.py b/colls.py\n--- a/colls.py\n+++ b/colls.py\n"
             "@@ -1,2 +1,2 @@ def zipped(a):\n-    return a\n+    return b\n")
    assert streams.entry(task(setup_patch=patch, strategy="func_pm_op_swap")) == streams.Entry(
        "x", "funcy", "op_swap", frozenset([("colls.py", "zipped")]))
    assert streams.strategy_name("pr_123") == "pr"
    assert [streams.level(s) for s in ("class_rm_base", "op_change_const", "pr", "class_rm_funcs",
                                       "lm_rewrite", "unheard_of")] == [
        "easy", "easy", "medium", "medium", "hard", "medium"]


@pytest.fixture(scope="module")
def published():
    if not PUBLISHED.exists():
        pytest.skip("the published streams are not there")
    return loaders.load_streams(PUBLISHED)


TIERS = {"mixed": 181, "easy_mid": 138, "pure_easy": 63}


def test_the_published_streams_keep_every_constraint(published):
    planned, entries = published
    assert streams.problems(planned, entries, SIX) == []
    assert collections.Counter(stream.info["tier"] for stream in planned) == TIERS
    assert len(entries) == 4_584 and len({e.repository for e in entries.values()}) == 53


def test_a_plan_on_the_published_tasks_gives_as_many_streams_of_each_tier(published):
    _, entries = published
    planned = streams.plan(entries.values(), SIX, 0)
    assert streams.problems(planned, entries, SIX) == []
    assert collections.Counter(stream.info["tier"] for stream in planned) == TIERS


@pytest.mark.parametrize(("shape", "train", "heldout"), [
    ("6+6", 27, 4), ("3+3", 60, 9), ("2+2", 90, 13), ("13+13", 7, 1), ("1", 382, 59)])
def test_the_shipped_set_makes_streams_that_keep_every_constraint(shape, train, heldout):
    tasks = shipped.tasks()
    hidden = domain_codebase.held_out(tasks, config_lib.default().env.heldout_fraction)
    parsed = streams.Shape.parse(shape)
    for own, wanted in (([t for t in tasks if t.repository not in hidden], train),
                        ([t for t in tasks if t.repository in hidden], heldout)):
        entries = by_id(map(streams.entry, own))
        planned = streams.plan(entries.values(), parsed, 0)
        assert len(planned) == wanted
        assert streams.problems(planned, entries, parsed) == []
