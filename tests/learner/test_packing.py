"""Packing, merging and splitting lose nothing and mix nothing."""

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax import config as config_lib
from rime_jax.learner import batch as batch_lib


def random_sequences(rng, n, longest=40):
    """Trainables with distinct content; every third continues the one before it."""
    out = []
    for i in range(n):
        length = int(rng.integers(3, longest // 2))
        roles = (rng.random(length) < 0.5).astype(np.int8)
        roles[0], roles[-1] = 0, 1
        ids = rng.integers(1, 40, length).astype(np.int32)
        key = (i, 0, 0)
        if i % 3 == 2:
            first = out[-1]
            ids = np.concatenate([first.ids, ids])
            roles = np.concatenate([0 * first.roles, 2 * roles]).astype(np.int8)
            key = first.key
        length = len(ids)
        weights = np.where(roles > 0, rng.random(length) + 0.1, 0).astype(np.float32)
        out.append(batch_lib.Trainable(
            key, ids, roles, weights,
            np.where(roles > 0, rng.normal(size=length), 0).astype(np.float32),
            np.where(roles > 0, -rng.random(length), 0).astype(np.float32)))
    return out


def unpack(batch):
    """(tokens, roles, weights, advantages, behaviour) of every segment, as hashable tuples."""
    found = []
    names = ("tokens", "roles", "weights", "advantages", "behaviour")
    for m in range(batch.tokens.shape[0]):
        for segments, positions, *rows in zip(batch.segments[m], batch.positions[m],
                                              *(getattr(batch, n)[m] for n in names), strict=False):
            for segment in range(1, segments.max() + 1):
                here = segments == segment
                assert (np.diff(np.flatnonzero(here)) == 1).all()
                np.testing.assert_array_equal(positions[here], np.arange(here.sum()))
                found.append(tuple(tuple(x[here].tolist()) for x in rows))
    return sorted(found)


def contents(sequences):
    names = ("ids", "roles", "weights", "advantages", "behaviour")
    return sorted(tuple(tuple(getattr(s, n).tolist()) for n in names) for s in sequences)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_packing_keeps_every_sequence_whole(n, seed, rows):
    sequences = random_sequences(np.random.default_rng(seed), n)
    batch = batch_lib.pack(sequences, 64, rows)
    assert unpack(batch) == contents(sequences)
    assert batch.tokens.shape[1:] == (rows, 64)
    assert not batch.segments[int(batch.n_micro):].any()
    assert batch.segments[int(batch.n_micro) - 1].any()
    np.testing.assert_array_equal(batch.weights > 0, batch.roles > 0)
    assert not batch.roles[batch.segments == 0].any()


def test_capacities_take_few_values():
    capacities = {batch_lib._capacity(n) for n in range(1, 1025)}
    assert all(batch_lib._capacity(n) >= n for n in range(1, 1025))
    assert len(capacities) <= 9


def test_a_row_too_short_names_the_option():
    sequences = random_sequences(np.random.default_rng(0), 3)
    with pytest.raises(ValueError, match="learner.row_tokens"):
        batch_lib.pack(sequences, 8, 2)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_minibatches_share_out_whole_sequences_and_repeat(n, parts, seed):
    sequences = random_sequences(np.random.default_rng(seed), n)
    split = batch_lib.minibatches(sequences, parts, (seed, 1))
    assert contents(sum(split, [])) == contents(sequences)
    assert len(split) == parts
    again = batch_lib.minibatches(sequences, parts, (seed, 1))
    assert [contents(p) for p in again] == [contents(p) for p in split]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_minibatches_do_not_depend_on_who_has_which_groups(n, parts, processes, seed):
    rng = np.random.default_rng(seed)
    sequences = [dataclasses.replace(s, key=(int(rng.integers(5)), i, 0))
                 for i, s in enumerate(random_sequences(rng, n))]
    whole = batch_lib.minibatches(sequences, parts, (seed, 1))
    shares = [batch_lib.minibatches([s for s in sequences if s.key[0] % processes == i], parts,
                                    (seed, 1)) for i in range(processes)]
    for part, own in zip(whole, zip(*shares, strict=True), strict=True):
        assert contents(part) == contents(sum(own, []))
    sizes = [len(part) for part in whole]
    # Each group is dealt evenly.
    assert max(sizes) - min(sizes) <= len({s.key[0] for s in sequences})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_processes_agree_on_shapes_and_lose_nothing(counts, seed):
    """Every process packs its own; what one lacks is padding without weight."""
    config = config_lib.default()
    config.learner.row_tokens, config.learner.minibatches = 64, 3
    shape = (len(counts), 2, 20)
    credit = earned(**{name: np.ones(shape) for name in (
        "act_advantage", "act_weight", "write_advantage", "write_weight")})
    samples = [[types.SimpleNamespace(**{**vars(sample("act", t, [0, 1] * 15)), "group": g})
                for t in range(n)] for g, n in enumerate(counts)]
    asked = []
    for own in samples:
        batch_lib.make_batches(own, credit, config.roles, config.learner, (seed,), 2,
                               lambda sizes: asked.append(sizes) or sizes)
    largest = np.max(asked, axis=0)
    made = [batch_lib.make_batches(own, credit, config.roles, config.learner, (seed,), 2,
                                   lambda sizes: largest)["policy"] for own in samples]
    assert len({tuple((b.tokens.shape, int(b.n_micro)) for b in own) for own in made}) == 1
    for own, batches in zip(samples, made, strict=True):
        assert sum(float(b.weights.sum()) for b in batches) == 15 * len(own)


def sequence(ids, roles, key=(0, 0, 0)):
    roles = np.array(roles, np.int8)
    value = (roles > 0).astype(np.float32)
    return batch_lib.Trainable(key, np.array(ids, np.int32), roles, value, value * 2, value * -1)


def test_a_continuation_is_merged_with_both_roles_kept():
    act = sequence([5, 6, 7, 8], [0, 1, 0, 1])
    write = sequence([5, 6, 7, 8, 9, 4], [0, 0, 0, 0, 0, 2])
    (merged,) = batch_lib.merge_prefixes([write, act])
    np.testing.assert_array_equal(merged.ids, write.ids)
    np.testing.assert_array_equal(merged.roles, [0, 1, 0, 1, 0, 2])
    np.testing.assert_array_equal(merged.weights, [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(merged.advantages, [0, 2, 0, 2, 0, 2])


@pytest.mark.parametrize("other", [
    sequence([5, 6, 3, 8, 9], [0, 0, 0, 0, 2]),
    sequence([5, 6, 7, 8, 9], [0, 2, 0, 0, 2]),
    sequence([5, 6, 7, 8, 9], [0, 0, 0, 0, 2], key=(0, 1, 0)),
], ids=["another text", "the same token trained twice", "another task"])
def test_what_is_no_continuation_stays_apart(other):
    act = sequence([5, 6, 7, 8], [0, 1, 0, 1])
    assert contents(batch_lib.merge_prefixes([act, other])) == contents([act, other])


def sample(role, position, mask):
    n = len(mask)
    return types.SimpleNamespace(
        role=role, group=0, sibling=1, position=position, ids=np.arange(1, n + 1),
        mask=np.array(mask, bool), logprobs=np.full(n, -0.5, np.float32))


def earned(**changes):
    shape = (1, 2, 3)
    values = {
        "act_advantage": np.full(shape, 0.5), "act_weight": np.ones(shape),
        "write_advantage": np.full(shape, -1.5), "write_weight": np.ones(shape)} | changes
    return types.SimpleNamespace(**values)


def test_sequence_aggregation_gives_every_sample_the_same_weight():
    samples = [sample("act", 0, [0, 1, 1, 1]), sample("write", 1, [0, 0, 1])]
    kept = batch_lib.trainables(samples, earned(), "sequence")
    np.testing.assert_allclose([s.weights.sum() for s in kept], 1)
    np.testing.assert_allclose(kept[0].weights, [0, 1 / 3, 1 / 3, 1 / 3])
    kept = batch_lib.trainables(samples, earned(), "token")
    np.testing.assert_array_equal(kept[0].weights, [0, 1, 1, 1])
    np.testing.assert_array_equal(kept[0].advantages, [0, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(kept[1].advantages, [0, 0, -1.5])


def test_samples_without_weight_or_sampled_token_are_dropped():
    no_write = np.ones((1, 2, 3))
    no_write[0, 1, 1] = 0
    samples = [sample("act", 0, [0, 1]), sample("write", 1, [0, 1]), sample("act", 2, [0, 0])]
    kept = batch_lib.trainables(samples, earned(write_weight=no_write), "token")
    assert [s.key for s in kept] == [(0, 1, 0)]


def test_a_sampled_first_token_is_refused():
    with pytest.raises(ValueError, match="first token"):
        batch_lib.trainables([sample("act", 0, [1, 1])], earned(), "token")


@pytest.mark.parametrize("write_set", ["policy", "writer"])
def test_each_trained_set_gets_the_samples_of_its_roles(write_set):
    config = config_lib.default()
    config.roles.write = write_set
    config.roles.train = tuple(sorted({"policy", write_set}))
    config.learner.minibatches = 1
    samples = [sample("act", 0, [0, 1, 0]), sample("write", 0, [0, 0, 0, 1])]
    batches = batch_lib.make_batches(samples, earned(), config.roles, config.learner,
                                     (0, 1))
    roles = {name: set(np.unique(b[0].roles)) - {0} for name, b in batches.items()}
    shared = {"policy": {1, 2}}
    assert roles == (shared if write_set == "policy" else {"policy": {1}, "writer": {2}})


def test_no_sample_makes_no_batch():
    config = config_lib.default()
    assert batch_lib.make_batches([], earned(), config.roles, config.learner,
                                  (0, 1)) == {"policy": []}


def test_merging_leaves_its_input_alone():
    sequences = random_sequences(np.random.default_rng(0), 12)
    copies = [dataclasses.replace(s, weights=s.weights.copy()) for s in sequences]
    batch_lib.merge_prefixes(sequences)
    assert contents(sequences) == contents(copies)
