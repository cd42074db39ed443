# SPDX-License-Identifier: Apache-2.0
"""Prompts become tokens as the model's chat template says, and the right tokens end a response."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from m2flow.data.samples import Prompt
from m2flow.errors import DataError, ModelError
from m2flow.policies.llm import Llm

EOS, TURN, END = 1, 2, 3
HELLO = ({"role": "user", "content": "hello"},)


def policy(folder: Path, **chat: object) -> Llm:
    return Llm(Llm.Config.from_dict({"model": str(folder), "chat": chat}))


def shown(policy: Llm, prompt: Prompt) -> str:
    """The prompt's tokens as text, special ones too."""
    return policy.tokenizer.decode(policy.encode(prompt))


def test_text_is_encoded_as_it_is(llama: Path):
    ids = policy(llama).encode(Prompt(id="a", text="12+3="))
    assert ids.dtype == np.int64 and policy(llama).decode(ids) == "12+3="


def test_messages_go_through_the_template_up_to_the_answer(llama: Path):
    assert shown(policy(llama), Prompt(id="a", messages=HELLO)) == "<|turn|>user:hello<|end|><|turn|>assistant:"


def test_decoding_leaves_special_tokens_out(llama: Path):
    assert policy(llama).decode(np.array([TURN, 5, 6, END, EOS])) == "ab"


def test_decoding_keeps_spaces_before_punctuation(llama: Path):
    ids = policy(llama).encode(Prompt(id="a", text="a . b ?"))
    assert policy(llama).decode(ids) == "a . b ?"


def test_the_end_of_a_chat_turn_stops_a_response(llama: Path):
    assert policy(llama).stop_token_ids == (EOS, END)


def test_without_a_template_only_the_end_of_sequence_stops(build: Callable[..., Path], tmp_path: Path):
    assert policy(build(tmp_path, chat_template=None)).stop_token_ids == (EOS,)


def test_the_generation_configuration_adds_stop_tokens(build: Callable[..., Path], tmp_path: Path):
    build(tmp_path, chat_template=None)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    assert policy(tmp_path).stop_token_ids == (EOS, 7, 9)


def test_a_system_message_is_put_first_unless_there_is_one(llama: Path):
    strict = policy(llama, system="be kind")
    assert shown(strict, Prompt(id="a", messages=HELLO)).startswith("<|turn|>system:be kind<|end|><|turn|>user:")
    own = ({"role": "system", "content": "be brief"}, *HELLO)
    assert shown(strict, Prompt(id="a", messages=own)).startswith("<|turn|>system:be brief<|end|><|turn|>user:")


def test_options_reach_the_template(llama: Path):
    assert shown(policy(llama, options={"think": True}), Prompt(id="a", messages=HELLO)).endswith("assistant:hm")


def test_a_template_from_a_file_replaces_the_tokenizers(llama: Path, tmp_path: Path):
    (tmp_path / "own.jinja").write_text("{% for m in messages %}{{ m.content }}!{% endfor %}")
    assert shown(policy(llama, template=tmp_path / "own.jinja"), Prompt(id="a", messages=HELLO)) == "hello!"


def test_an_option_that_the_template_does_not_read_is_an_error(llama: Path):
    with pytest.raises(ModelError, match=r"does not read thnk .*it reads think"):
        policy(llama, options={"thnk": True}).encode(Prompt(id="a", messages=HELLO))


def test_a_chat_without_a_template_is_an_error(build: Callable[..., Path], tmp_path: Path):
    with pytest.raises(ModelError, match="prompt 'a' is a chat, and the tokenizer has no chat template"):
        policy(build(tmp_path, chat_template=None)).encode(Prompt(id="a", messages=HELLO))


def test_a_system_message_without_a_template_is_an_error(build: Callable[..., Path], tmp_path: Path):
    with pytest.raises(ModelError, match="no chat template to use them"):
        policy(build(tmp_path, chat_template=None), system="x").encode(Prompt(id="a", text="x"))


def test_a_system_message_for_raw_text_is_an_error(llama: Path):
    with pytest.raises(DataError, match=r"no place for chat.system"):
        policy(llama, system="x").encode(Prompt(id="a", text="x"))


@pytest.mark.parametrize("prompt", [Prompt(id="a", text=""), Prompt(id="a", messages=())])
def test_an_empty_prompt_is_an_error(llama: Path, prompt: Prompt):
    with pytest.raises(DataError, match="prompt 'a' is empty"):
        policy(llama).encode(prompt)


@pytest.mark.parametrize("prompt", [Prompt(id="a"), Prompt(id="a", text="x", messages=HELLO)])
def test_a_prompt_is_either_text_or_messages(llama: Path, prompt: Prompt):
    with pytest.raises(DataError, match="both or neither"):
        policy(llama).encode(prompt)


def test_what_a_template_refuses_names_the_prompt(llama: Path, tmp_path: Path):
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}x"
    )
    with pytest.raises(DataError, match="refuses prompt 'a': no tools here"):
        policy(llama, template=tmp_path / "t.jinja").encode(
            Prompt(id="a", messages=({"role": "tool", "content": "1"},))
        )
