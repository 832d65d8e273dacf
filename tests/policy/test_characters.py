"""The policy of bytes: any text goes through its tokens, and the shipped one can be made again."""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rime_jax
from rime_jax.policy import characters
from rime_jax.policy import chat as chat_lib

SHIPPED = pathlib.Path(rime_jax.__file__).parent / "assets" / "tiny-bytes-v1"


@pytest.fixture(scope="module")
def chat():
    return chat_lib.ChatTokens(characters.byte_tokenizer())


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_is_its_bytes_and_comes_back(chat, text):
    ids = chat.text(text)
    assert len(ids) == len(text.encode()) and chat.decode(ids) == text
    assert not ids or min(ids) >= 3


def test_no_text_spells_a_marker(chat):
    text = characters.PAD + characters.START_OF_TURN + characters.END_OF_TURN
    assert chat.decode(chat.text(text)) == text and chat.end_of_turn not in chat.text(text)


def test_the_shipped_directory_is_what_its_program_writes(tmp_path):
    characters.main([f"--out={tmp_path}"])
    files = sorted(file.name for file in SHIPPED.iterdir())
    assert files == sorted(file.name for file in tmp_path.iterdir())
    assert all((tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes()
               for name in files if not name.endswith(".safetensors"))
    assert (tmp_path / "model.safetensors").stat().st_size == (
        SHIPPED / "model.safetensors").stat().st_size
