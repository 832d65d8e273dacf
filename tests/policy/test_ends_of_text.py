"""Where generation stops: the ids that the files of a model name, beside the end of turn."""

import json

import pytest

from rime_jax.policy import weights


@pytest.mark.parametrize(("config", "generation", "ids"), [
    ({"eos_token_id": 5}, None, (5,)),
    ({"eos_token_id": 5}, {"eos_token_id": [5, 3]}, (3, 5)),
    ({"eos_token_id": None}, {}, ()),
    ({}, {"eos_token_id": 0}, (0,)),
])
def test_both_files_are_read(tmp_path, config, generation, ids):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert weights.ends_of_text(tmp_path) == ids


@pytest.mark.parametrize("text", [
    "{", "[]", '{"eos_token_id": "</s>"}', '{"eos_token_id": [true]}'])
def test_a_file_that_names_no_ids_is_refused_by_name(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(weights.ModelError, match="generation_config.json"):
        weights.ends_of_text(tmp_path)
