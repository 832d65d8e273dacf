import json
import math
import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax import config as config_lib
from rime_jax import config_page, config_rules

OPTIONS = dict(config_lib.options())


def _set(config, name, value):
    *parents, last = name.split(".")
    for part in parents:
        config = config[part]
    with config.ignore_type():
        config[last] = value


def _error(**values):
    """The message of validate() for the default configuration with `values` set."""
    config = config_lib.default()
    for name, value in values.items():
        _set(config, name, value)
    with pytest.raises(config_lib.ConfigError) as error:
        config_lib.validate(config)
    return str(error.value)


def test_the_default_is_valid():
    config_lib.validate(config_lib.default())


def test_every_default_is_documented():
    assert all(len(option.doc) > 3 for option in OPTIONS.values())


def test_a_saved_configuration_loads_as_it_was(tmp_path):
    config = config_lib.default()
    config_lib.override(config, {"learner.lr": "3e-5", "env.edges": "12,7", "resume": "false",
                                 "name": "x-y", "roles.train": "policy"})
    path = tmp_path / "config.json"
    path.write_text(config_lib.dump(config))
    loaded = config_lib.load(str(path))
    assert loaded == config
    config_lib.validate(loaded)


def test_an_option_that_does_not_exist_cannot_be_set():
    config = config_lib.default()
    with pytest.raises((AttributeError, KeyError)):
        config.learner.learning_rate = 1.0


@pytest.mark.parametrize("name", ["learner.learning_rate", "learner", "lr", "env.trails", ""])
def test_overriding_an_unknown_option_names_it(name):
    with pytest.raises(config_lib.ConfigError, match=re.escape(repr(name))):
        config_lib.override(config_lib.default(), {name: "1"})


def test_a_misspelt_option_gets_a_suggestion():
    with pytest.raises(config_lib.ConfigError, match="rollout.group_size"):
        config_lib.override(config_lib.default(), {"rollout.groupsize": "4"})


@pytest.mark.parametrize("name, text, value", [
    ("learner.lr", "1", 1.0), ("learner.lr", "1e-4", 1e-4), ("steps", "7", 7),
    ("resume", "False", False), ("resume", "true", True), ("name", "12", "12"),
    ("env.edges", "12,10", (12, 10)), ("env.edges", "(12, 10)", (12, 10)),
    ("roles.train", "a,b", ("a", "b")),
])
def test_an_override_takes_the_type_of_its_option(name, text, value):
    config = config_lib.default()
    config_lib.override(config, {name: text})
    got = config_lib.get(config, name)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("name, text", [
    ("steps", "many"), ("steps", "1.5"), ("learner.lr", "fast"), ("resume", "maybe"),
    ("resume", "1"), ("env.edges", "a,b"), ("steps", '"7"'), ("learner.lr", "null"),
    ("steps", "[1]"), ("learner.lr", "true"),
])
def test_an_override_of_the_wrong_type_fails_and_names_the_option(name, text):
    config = config_lib.default()
    with pytest.raises(config_lib.ConfigError, match=name):
        config_lib.override(config, {name: text})
        config_lib.validate(config)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_value_of_another_type_fails_and_names_the_option(name):
    wrong = 1.5 if isinstance(OPTIONS[name].default, (str, bool, int, tuple)) else "text"
    message = _error(**{name: wrong})
    assert name in message and repr(wrong) in message and OPTIONS[name].doc in message


@pytest.mark.parametrize("name", [n for n, o in OPTIONS.items() if isinstance(o.default, int)
                                  and not isinstance(o.default, bool)])
def test_a_truth_value_is_not_a_number(name):
    assert name in _error(**{name: True})


@pytest.mark.parametrize("name", [n for n, o in OPTIONS.items() if o.low is not None
                                  and not isinstance(o.default, tuple)])
def test_a_value_below_the_range_fails_and_names_the_bound(name):
    option = OPTIONS[name]
    message = _error(**{name: type(option.default)(math.floor(option.low) - 1)})
    assert name in message and str(option.low) in message and option.doc in message


@pytest.mark.parametrize("name", [n for n, o in OPTIONS.items() if o.high is not None])
def test_a_value_above_the_range_fails_and_names_the_bound(name):
    option = OPTIONS[name]
    message = _error(**{name: type(option.default)(option.high + 1)})
    assert name in message and str(option.high) in message


@pytest.mark.parametrize("name", [n for n, o in OPTIONS.items() if isinstance(o.default, float)])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_numbers_that_are_not_finite_fail(name, value):
    assert name in _error(**{name: value})


@pytest.mark.parametrize("name", [n for n, o in OPTIONS.items() if o.choices])
def test_a_choice_that_does_not_exist_fails_and_lists_those_that_do(name):
    option = OPTIONS[name]
    wrong = type(option.choices[0])("-1")
    wrong = (wrong,) if isinstance(option.default, tuple) else wrong
    message = _error(**{name: wrong})
    assert name in message and all(str(choice) in message for choice in option.choices)


def test_a_group_of_one_has_no_baseline():
    assert "rollout.group_size = 1 is below 2" in _error(**{"rollout.group_size": 1})


def test_the_improvement_needs_a_window():
    assert "reward.horizon = 0 is below 1" in _error(**{"reward.horizon": 0})


def test_an_empty_list_where_one_element_is_needed_fails():
    assert "roles.train" in _error(**{"roles.train": ()})


def test_an_element_of_the_wrong_type_fails():
    assert "env.edges" in _error(**{"env.edges": ("12",)})


@pytest.mark.parametrize("values, names", [
    ({"roles.train": ("nobody",)}, ["roles.train", "nobody", "roles.act"]),
    ({"learner.row_tokens": 64}, ["learner.row_tokens = 64", "rollout.context_tokens = 128"]),
    ({"rollout.memory_tokens": 24}, ["rollout.write_tokens", "rollout.memory_tokens"]),
    ({"sampler.prefill_chunks": (32, 8)}, ["sampler.prefill_chunks", "ascending"]),
    ({"sampler.prefill_chunks": (0, 8)}, ["sampler.prefill_chunks", "positive"]),
    ({"learner.mesh_fsdp": -1}, ["learner.mesh_data", "mesh_fsdp", "mesh_tensor"]),
    ({"learner.mesh_tensor": 0}, ["learner.mesh_tensor", "use 1"]),
    ({"env.split_file": "s.json"}, ["env.episodes_file", "env.split_file"]),
    ({"env.potions": 7}, ["env.potions", "6"]),
    ({"env.hold_out": "graphs", "env.episodes_file": "e.jsonl", "env.split_file": "s.json"},
     ["env.hold_out", "chemistries"]),
    ({"warm_start.writer_keeps": 0.9}, ["warm_start.writer_keeps", "warm_start.writer_last"]),
])
def test_options_that_contradict_each_other_are_named(values, names):
    message = _error(**values)
    assert all(name in message for name in names)


def test_a_file_with_an_unknown_option_is_refused(tmp_path):
    tree = json.loads(config_lib.dump(config_lib.default()))
    tree["learner"]["speed"] = 3
    (tmp_path / "c.json").write_text(json.dumps(tree))
    with pytest.raises(config_lib.ConfigError, match=r"c\.json.*'learner.speed'"):
        config_lib.load(str(tmp_path / "c.json"))


def test_options_newer_than_a_file_take_their_defaults_and_are_named(tmp_path, caplog):
    tree = json.loads(config_lib.dump(config_lib.default()))
    tree["learner"]["clip_low"] = 0.125
    del tree["learner"]["lr"], tree["reward"]
    (tmp_path / "c.json").write_text(json.dumps(tree))
    loaded = config_lib.load(str(tmp_path / "c.json"))
    assert (loaded.learner.clip_low, loaded.learner.lr) == (0.125, 4e-4)
    assert loaded.reward == config_lib.default().reward
    assert "learner.lr=0.0004" in caplog.text and "reward.horizon=3" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"steps": "many"}'])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(config_lib.ConfigError, match=r"c\.json"):
        config_lib.load(str(tmp_path / "c.json"))


def test_a_file_with_a_value_of_another_type_is_refused(tmp_path):
    tree = json.loads(config_lib.dump(config_lib.default()))
    tree["learner"]["lr"] = "fast"
    (tmp_path / "c.json").write_text(json.dumps(tree))
    with pytest.raises(config_lib.ConfigError, match=r"learner\.lr"):
        config_lib.validate(config_lib.load(str(tmp_path / "c.json")))


@given(value=st.floats(allow_nan=False, allow_infinity=False, min_value=0, max_value=1e6))
def test_floats_survive_saving_exactly(tmp_path_factory, value):
    config = config_lib.default()
    config_lib.override(config, {"learner.clip_high": repr(value)})
    path = tmp_path_factory.mktemp("config") / "c.json"
    path.write_text(config_lib.dump(config))
    assert config_lib.load(str(path)).learner.clip_high == value


def test_the_configuration_reference_is_up_to_date_and_has_every_option_once():
    page = config_page.page()
    assert page == (pathlib.Path(__file__).parents[1] / "docs" / "configuration.md").read_text(), (
        "make it anew: python -m rime_jax.config_page > docs/configuration.md")
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(OPTIONS)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5
               for line in page.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("changes, said", [
    ({}, ""), ({"env.edges": "12,7"}, "env.pass_streams=24"),
    ({"env.edges": "12,7", "env.pass_streams": "24"}, ""),
    ({"env.edges": "12,7", "env.order": "shuffled"}, ""),
    ({"env.edges": "12,7", "env.episodes_file": "episodes.jsonl"}, "")])
def test_a_run_that_ends_before_the_hard_tiers_is_told(changes, said):
    config = config_lib.default()
    config_lib.override(config, {"steps": "6", "rollout.streams_per_step": "4", **changes})
    notes = config_rules.notes(config)
    assert len(notes) == bool(said) and said in "".join(notes)
