"""A killed evaluation goes on with the same numbers, and takes nothing over from another one."""

import asyncio
import copy
import dataclasses
import threading

import numpy as np
import pytest

from rime_jax import distributed
from rime_jax.evaluation import journal, protocols
from rime_jax.sampler.base import SamplerStop
from tests.evaluation import games

ALL = ("blanked", "swapped", "corrupted")
GAMES = [("streams", "act_write"), ("streams", "in_context"), ("runs", "act_write"),
         ("runs", "in_context")]


def built(protocol="streams", scaffold="act_write", reply=games.counting, **options):
    return games.built(games.Reader(reply), **{
        "eval__protocol": protocol, "eval__scaffolds": (scaffold,), "eval__runs": 3,
        "eval__interventions": ALL if protocol == "streams" else ("blanked",), **options})


def play(made, kept=None):
    return asyncio.run(protocols.play(made, made.config.eval.rollouts, journal=kept))


def equal(a, b):
    for field in dataclasses.fields(a):
        np.testing.assert_equal(getattr(a, field.name), getattr(b, field.name))


def tasks(made):
    return sum(session.place.role == "act" for session in made.sampler.opened)


def opened(directory, made):
    return journal.opened(directory, made.config, {"model": "m"})


@pytest.mark.parametrize("protocol, scaffold", GAMES)
@pytest.mark.parametrize("calls", [0, 6, 13])
def test_a_stopped_evaluation_goes_on_with_the_same_numbers(protocol, scaffold, calls, tmp_path):
    whole = built(protocol, scaffold)
    expected = play(whole)
    left = [calls]

    def stopping(session):
        if not left[0]:
            raise SamplerStop("enough")
        left[0] -= 1
        return games.counting(session)

    first, second = built(protocol, scaffold, stopping), built(protocol, scaffold)
    with opened(tmp_path, first) as kept, pytest.raises(SamplerStop):
        play(first, kept)
    finished = sum(bool(line) for file in tmp_path.glob("*.jsonl")
                   for line in file.read_bytes().split(b"\n"))
    with opened(tmp_path, second) as kept:
        equal(play(second, kept), expected)
    assert tasks(second) == tasks(whole) - finished
    third = built(protocol, scaffold)
    with opened(tmp_path, third) as kept:
        equal(play(third, kept), expected)
    assert third.sampler.opened == []


def test_a_torn_line_costs_the_task_alone(tmp_path):
    made = built()
    with opened(tmp_path, made) as kept:
        expected = play(made, kept)
    (file,) = tmp_path.glob("*-0.jsonl")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - 30])
    again = built()
    with opened(tmp_path, again) as kept:
        equal(play(again, kept), expected)
    assert 1 <= len(again.sampler.opened) <= 2
    # The new line does not hang on the torn one.
    third = built()
    with opened(tmp_path, third) as kept:
        play(third, kept)
    assert third.sampler.opened == []


def test_what_was_lost_is_played_again_and_what_hangs_on_it(tmp_path):
    """The lost rollout's memories were nobody's; now the swapped and corrupted ones read them."""
    def failing(session):
        if session.place.group == 1 and session.label == 0 and session.place.position == 2:
            return ConnectionError()
        return games.counting(session)

    first, second = built(reply=failing), built()
    with opened(tmp_path, first) as kept:
        assert play(first, kept).lost > 0
    with opened(tmp_path, second) as kept:
        equal(play(second, kept), play(built()))


def test_a_larger_evaluation_goes_on_from_a_smaller_one(tmp_path):
    small = built(eval__streams=2, eval__rollouts=1, eval__interventions=("blanked",))
    large, whole = built(), built()
    with opened(tmp_path, small) as kept:
        play(small, kept)
    with opened(tmp_path, large) as kept:
        equal(play(large, kept), play(whole))
    assert tasks(large) == tasks(whole) - tasks(small) and tasks(small)
    assert len(list(tmp_path.glob("*.json"))) == 1


def knows(directory, config, who="m"):
    """Whether what `built()` played there is the beginning of this evaluation."""
    with journal.opened(directory, config, {"model": who}) as kept:
        return kept.get("act_write/with_memory", 0, 0, 0) is not None


@pytest.mark.parametrize("option, value, same", [
    ("eval.seed", 5, False), ("eval.temperature", 0.5, False), ("env.max_steps", 5, False),
    ("rollout.memory_tokens", 800, False), ("rollout.env_timeout_s", 9.0, True),
    ("rollout.retries", 0, True), ("env.cache_dir", "elsewhere", True),
    ("eval.bootstrap", 999, True)])
def test_another_game_has_another_journal_and_another_machine_has_not(
        option, value, same, tmp_path):
    made, other = built(), copy.deepcopy(built().config)
    section, name = option.split(".")
    other[section][name] = value
    with opened(tmp_path, made) as kept:
        play(made, kept)
    assert knows(tmp_path, made.config) and not knows(tmp_path, made.config, "n")
    assert knows(tmp_path, other) == same


def test_files_count_by_what_they_hold(tmp_path, monkeypatch):
    made, package = built(), tmp_path / "package"
    for folder in (package, tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        (folder / "file").write_text("x")
    made.config.eval.tasks_file = str(tmp_path / "one" / "file")
    (package / "code.py").write_text("pass")
    monkeypatch.setattr(journal.rime_jax, "__file__", str(package / "__init__.py"))
    with journal.opened(tmp_path / "played", made.config, {"model": "m"}) as kept:
        play(made, kept)
    made.config.eval.tasks_file = str(tmp_path / "two" / "file")
    assert knows(tmp_path / "played", made.config)
    (tmp_path / "two" / "file").write_text("y")
    assert not knows(tmp_path / "played", made.config)
    (tmp_path / "two" / "file").write_text("x")
    (package / "code.py").write_text("return")
    assert not knows(tmp_path / "played", made.config)


class Pair(distributed.Processes):
    """Two processes in two threads."""

    def __init__(self, index, barrier, board):
        super().__init__(index, 2)
        self._barrier, self._board = barrier, board

    def gather(self, value):
        self._board[self.index] = value
        self._barrier.wait(20)
        values = list(self._board)
        self._barrier.wait(20)
        return values

    def asked_to_stop(self):
        return False


@pytest.mark.parametrize("protocol, scaffold", GAMES[::2])
def test_two_processes_play_what_one_plays_alone(protocol, scaffold, tmp_path):
    expected, barrier, board = play(built(protocol, scaffold)), threading.Barrier(2), [None, None]
    found, samplers = [None, None], []

    def one(index):
        made, processes = built(protocol, scaffold), Pair(index, barrier, board)
        samplers.append(made.sampler)
        with journal.opened(tmp_path, made.config, {"model": "m"}, processes) as kept:
            found[index] = asyncio.run(protocols.play(
                made, 2, distributed.Stop(processes), journal=kept))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for own in found:
        equal(own, expected)
    assert all(sampler.opened for sampler in samplers)
    assert len(list(tmp_path.glob("*-?.jsonl"))) == 2
    # What two have played, one need not play again.
    alone = built(protocol, scaffold)
    with opened(tmp_path, alone) as kept:
        equal(play(alone, kept), expected)
    assert alone.sampler.opened == []
