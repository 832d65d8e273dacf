"""What an evaluation cannot do is refused by name, before anything is played."""

import dataclasses

import pytest

from rime_jax import config as config_lib
from rime_jax import domains
from rime_jax.evaluation import protocols
from tests.evaluation import games
from tests.scripted import small_config


@pytest.mark.parametrize("options, message", [
    ({"eval__interventions": ("swapped",), "eval__streams": 1}, "set eval.streams to 2"),
    ({"eval__interventions": ("blanked", "corrupted"), "eval__protocol": "runs"},
     "eval.interventions .* 'runs' has its own baseline"),
    ({"env__domain": "codebase", "rollout__env_timeout_s": 600.0, "eval__tasks_file": "t.jsonl"},
     "eval.tasks_file = 't.jsonl' needs eval.libraries_file"),
    ({"eval__libraries_file": "l.json"}, "eval.libraries_file .* set that as well"),
    ({"eval__scaffolds": ("notepad",)}, "eval.scaffolds holds 'notepad'"),
])
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(config_lib.ConfigError, match=message):
        small_config(**options)


@pytest.mark.parametrize("text", [None, "", "{", '{"id": 0}\n'])
def test_a_file_of_episodes_that_cannot_be_used_is_named(text, tmp_path):
    file = tmp_path / "episodes.jsonl"
    if text is not None:
        file.write_text(text)
    config = small_config(eval__tasks_file=str(file))
    with pytest.raises(config_lib.ConfigError, match="options eval.tasks_file.*episodes.jsonl"):
        domains.make_evaluated(config)


def test_no_fact_is_made_false_in_a_domain_that_has_no_false_words():
    domain = dataclasses.replace(games.counting_domain(), false_words=None)
    built = games.built(games.Reader(lambda session: ""), domain,
                        eval__interventions=("blanked", "corrupted"))
    with pytest.raises(config_lib.ConfigError, match="'corrupted', but .* has no false_words"):
        protocols.check(built)
    protocols.check(dataclasses.replace(built, domain=games.counting_domain()))


def test_a_domain_of_ones_own_has_no_files_of_tasks():
    config = small_config(env__domain="examples.lockbox:make", eval__tasks_file="t.jsonl")
    with pytest.raises(config_lib.ConfigError, match="means nothing to env.domain"):
        domains.make_evaluated(config)
