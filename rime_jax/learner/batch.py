"""From samples and their credit to packed arrays (numpy only).

A row of a batch holds several sequences one after another, told apart by segment ids; a micro-batch
is R rows of L tokens, a batch is M micro-batches.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flax import struct

ROLES = {"act": 1, "write": 2}


@struct.dataclass
class Batch:
    """One mini-batch: the data of one optimiser update.

    Entry t of a row speaks of predicting tokens[t] from what precedes it in its segment.

    Attributes:
      tokens: int32 [M, R, L].
      positions: int32 [M, R, L], from 0 within each segment.
      segments: int32 [M, R, L], from 1 within each row; 0 is padding.
      roles: int8 [M, R, L]: 0 not trained, otherwise a value of `ROLES`.
      weights: float32 [M, R, L], share in the loss and in its denominator; 0: not trained.
      advantages: float32 [M, R, L].
      behaviour: float32 [M, R, L], log-probabilities of the sampler.
      n_micro: int32, micro-batches that hold anything; M is rounded up so that few are compiled.
    """

    tokens: Any
    positions: Any
    segments: Any
    roles: Any
    weights: Any
    advantages: Any
    behaviour: Any
    n_micro: Any


@dataclasses.dataclass(frozen=True)
class Trainable:
    """One sequence with what each of its T tokens earns.

    Attributes:
      key: (group, sibling, position) of the task it comes from.
      ids: int32 [T].
      roles: int8 [T], as in `Batch`.
      weights: float32 [T], as in `Batch`; 0 exactly where the role is 0.
      advantages: float32 [T].
      behaviour: float32 [T].
    """

    key: tuple[int, int, int]
    ids: np.ndarray
    roles: np.ndarray
    weights: np.ndarray
    advantages: np.ndarray
    behaviour: np.ndarray


def make_batches(
    samples: Sequence[Any], credit: Any, roles: Any, learner: Any, seed: Sequence[int],
    rows: int | None = None, agree: Callable[[np.ndarray], np.ndarray] = lambda sizes: sizes,
) -> dict[str, list[Batch]]:
    """The mini-batches of one iteration, for each trained parameter set.

    With several processes each packs its own samples, and all get mini-batches of the same shapes:
    what one lacks is padding without weight.

    Args:
      samples: of the rollouts (ids, mask, logprobs, role, group, sibling, position).
      credit: a `credit.Credit`; sample.group, .sibling and .position index its arrays.
      roles: the `roles` part of a config.
      learner: the `learner` part of a config.
      seed: decides, with its group, into which mini-batch a sequence goes.
      rows: rows of a micro-batch that this process packs; None: learner.microbatch_rows.
      agree: from the numbers of micro-batches that this process needs, int [sets, mini-batches], to
        the largest over all processes.

    Raises:
      ValueError: a conversation does not fit into learner.row_tokens.
    """
    rows = learner.microbatch_rows if rows is None else rows
    parts = {}
    for name in roles.train:
        own = [s for s in samples if roles[s.role] == name]
        sequences = merge_prefixes(trainables(own, credit, learner.aggregation))
        parts[name] = minibatches(sequences, learner.minibatches, seed)
    sizes = agree(np.array([[micro_batches(part, learner.row_tokens, rows) for part in own]
                            for own in parts.values()]))
    return {
        name: [pack(part, learner.row_tokens, rows, int(size))
               for part, size in zip(own, own_sizes, strict=True) if size]
        for (name, own), own_sizes in zip(parts.items(), sizes, strict=True)
    }


def trainables(samples: Iterable[Any], credit: Any, aggregation: str) -> list[Trainable]:
    """The samples that train, with their advantages; the others are left out.

    A trained token weighs 1 (aggregation `token`), or 1 / trained tokens of its sample (`sequence`,
    so that each sample weighs 1: method section 4).

    Raises:
      ValueError: the first token of a sample claims to be sampled; nothing predicts it.
    """
    earned = {
        "act": (credit.act_weight, credit.act_advantage),
        "write": (credit.write_weight, credit.write_advantage),
    }
    kept = []
    for s in samples:
        key = (s.group, s.sibling, s.position)
        weight, advantage = (array[key] for array in earned[s.role])
        mask = np.asarray(s.mask, bool)
        if weight == 0 or not mask.any():
            continue
        if mask[0]:
            raise ValueError(
                f"the {s.role} sample {key} marks its first token as sampled, but no token precedes"
                " it; start every conversation with a prompt"
            )
        share = weight / mask.sum() if aggregation == "sequence" else weight
        kept.append(
            Trainable(
                key=key,
                ids=np.asarray(s.ids, np.int32),
                roles=np.where(mask, ROLES[s.role], 0).astype(np.int8),
                weights=np.where(mask, share, 0.0).astype(np.float32),
                advantages=np.where(mask, advantage, 0.0).astype(np.float32),
                behaviour=np.where(mask, s.logprobs, 0.0).astype(np.float32),
            )
        )
    return kept


def merge_prefixes(sequences: Iterable[Trainable]) -> list[Trainable]:
    """Joins sequences of one task where one continues the other (WRITE continues ACT).

    In a causal model the shared prefix has the same log-probabilities in both, so the loss stays
    the same and the prefix is computed once. Sequences that train the same token stay apart.
    """
    tasks: dict[tuple[int, int, int], list[Trainable]] = {}
    for sequence in sequences:
        tasks.setdefault(sequence.key, []).append(sequence)
    merged = []
    for own in tasks.values():
        own.sort(key=lambda s: len(s.ids))
        current = own[0]
        for longer in own[1:]:
            if _continues(longer, current):
                current = _join(current, longer)
            else:
                merged.append(current)
                current = longer
        merged.append(current)
    return merged


def minibatches(
    sequences: Sequence[Trainable], n: int, seed: Sequence[int]
) -> list[list[Trainable]]:
    """Deals whole sequences at random to n parts of about equal number, which may be empty.

    Each group is dealt by itself, so that it does not matter who has which groups.
    """
    groups: dict[int, list[Trainable]] = {}
    for sequence in sequences:
        groups.setdefault(sequence.key[0], []).append(sequence)
    parts: list[list[Trainable]] = [[] for _ in range(n)]
    for group, own in groups.items():
        order = np.random.default_rng((*seed, group)).permutation(len(own))
        # Groups start at different parts, or the first part would get what is left over of each.
        for turn, i in enumerate(order, start=group):
            parts[turn % n].append(own[i])
    return parts


def micro_batches(sequences: Sequence[Trainable], row_tokens: int, rows: int) -> int:
    """Micro-batches that `pack` fills."""
    return -(-_place([len(s.ids) for s in sequences], row_tokens)[1] // rows)


def pack(
    sequences: Sequence[Trainable], row_tokens: int, microbatch_rows: int, at_least: int = 1
) -> Batch:
    """Packs sequences into rows, longest first, each into the first row that has room.

    Args:
      sequences: any number.
      row_tokens: L.
      microbatch_rows: R.
      at_least: micro-batches that count, though the last ones be empty.

    Raises:
      ValueError: a sequence is longer than a row.
    """
    placed, n_rows = _place([len(s.ids) for s in sequences], row_tokens)
    n_micro = max(at_least, -(-n_rows // microbatch_rows))
    rows = _capacity(n_micro) * microbatch_rows

    def empty(dtype: type) -> np.ndarray:
        return np.zeros((rows, row_tokens), dtype)

    arrays = {
        "tokens": empty(np.int32),
        "positions": empty(np.int32),
        "segments": empty(np.int32),
        "roles": empty(np.int8),
        "weights": empty(np.float32),
        "advantages": empty(np.float32),
        "behaviour": empty(np.float32),
    }
    counting = np.arange(row_tokens, dtype=np.int32)
    for s, (row, start, segment) in zip(sequences, placed, strict=True):
        at = (row, slice(start, start + len(s.ids)))
        arrays["tokens"][at] = s.ids
        arrays["positions"][at] = counting[: len(s.ids)]
        arrays["segments"][at] = segment
        arrays["roles"][at] = s.roles
        arrays["weights"][at] = s.weights
        arrays["advantages"][at] = s.advantages
        arrays["behaviour"][at] = s.behaviour
    shaped = {k: x.reshape(-1, microbatch_rows, row_tokens) for k, x in arrays.items()}
    return Batch(**shaped, n_micro=np.int32(n_micro))


def _place(lengths: Sequence[int], row_tokens: int) -> tuple[list[tuple[int, int, int]], int]:
    """(row, start, segment id) of each sequence by first-fit decreasing; and the rows used."""
    longest = max(lengths, default=0)
    if longest > row_tokens:
        raise ValueError(
            f"a conversation has {longest} tokens but learner.row_tokens = {row_tokens}; raise"
            " learner.row_tokens or lower rollout.context_tokens"
        )
    room = np.full(len(lengths), row_tokens)
    held = np.zeros(len(lengths), int)
    placed = [(0, 0, 0)] * len(lengths)
    for i in np.argsort(-np.asarray(lengths), kind="stable"):
        row = int(np.argmax(room >= lengths[i]))
        held[row] += 1
        placed[i] = (row, int(row_tokens - room[row]), int(held[row]))
        room[row] -= lengths[i]
    return placed, int((held > 0).sum())


def _capacity(n_micro: int) -> int:
    """The next of 4, 8, 16, …: what is not used costs a copy to the device and no computation."""
    return max(4, 1 << (n_micro - 1).bit_length())


def _continues(longer: Trainable, shorter: Trainable) -> bool:
    n = len(shorter.ids)
    return bool(
        np.array_equal(longer.ids[:n], shorter.ids)
        and not np.any((longer.roles[:n] > 0) & (shorter.roles > 0))
    )


def _join(shorter: Trainable, longer: Trainable) -> Trainable:
    n = len(shorter.ids)

    def summed(field: str) -> np.ndarray:
        # At most one of the two is non-zero at a token.
        array = getattr(longer, field).copy()
        array[:n] += getattr(shorter, field)
        return array

    return dataclasses.replace(
        longer, roles=summed("roles"), weights=summed("weights"),
        advantages=summed("advantages"), behaviour=summed("behaviour"))
