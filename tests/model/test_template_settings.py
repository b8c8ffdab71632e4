"""What a chat template is told beside messages: variables, the date; and stop tokens of a model."""

import datetime
import json

import pytest

from ale_jax.model.template_settings import TemplateSettings, checked_date, variables_of
from ale_jax.model.tokenizer import ChatTokenizer
from tests.model.chat_families import CHATML, CHATML_SPECIAL, HERMES_CALL, QWEN_OTHERS, byte_level
from tests.rows import each_row

ASKED = [{"role": "user", "content": "Begin."}]
THINKING = CHATML.replace("CALL", HERMES_CALL).replace(
    "{{ '<|im_start|>assistant\\n' }}",
    "{{ '<|im_start|>assistant\\n' + ('<think>\\n' if enable_thinking else '') }}",
)
DATED = "{{ '<|im_start|>' + strftime_now('%d %B %Y') + '<|im_end|>' }}"


def saved(folder, template, others=()):
    byte_level(template, CHATML_SPECIAL, QWEN_OTHERS)().save_pretrained(folder)
    for name, content in others:
        (folder / name).write_text(json.dumps(content))
    return folder


def prompt(tokenizer):
    return tokenizer._tokenizer.decode(tokenizer.prompt_ids(ASKED, first=True))


def test_a_variable_is_told_to_the_template(tmp_path):
    folder = saved(tmp_path, THINKING)
    plain = ChatTokenizer.load(folder)
    assert plain.variables == {"enable_thinking"}
    thinking = plain.with_variables({"enable_thinking": True})
    assert prompt(thinking) == prompt(plain) + "<think>\n"
    assert (plain.opens_thoughts, thinking.opens_thoughts) == (False, True)
    assert prompt(ChatTokenizer.load(folder, variables={"enable_thinking": True})) == prompt(
        thinking
    )


def test_a_saved_tokenizer_keeps_its_variables_and_its_date(tmp_path):
    folder = saved(tmp_path / "given", DATED + THINKING)
    given = ChatTokenizer.load(folder, variables={"enable_thinking": True}, date="2026-07-31")
    given.save(tmp_path / "run")
    kept = ChatTokenizer.load(tmp_path / "run")
    assert prompt(kept) == prompt(given)
    assert "31 July 2026" in prompt(kept) and prompt(kept).endswith("<think>\n")


def test_without_a_date_a_run_keeps_the_day_on_which_it_began(tmp_path):
    given = ChatTokenizer.load(saved(tmp_path / "given", DATED + CHATML))
    given.save(tmp_path / "run")
    written = json.loads((tmp_path / "run" / "chat_settings.json").read_text())
    today = datetime.datetime.now(datetime.UTC).date()
    assert abs(datetime.date.fromisoformat(written["date"]) - today).days <= 1


@each_row(
    "variables, said",
    [
        ({"thinking": True}, "no variable 'thinking', but enable_thinking"),
        ({"messages": []}, "no variable 'messages'"),
        ({"enable_thinking": "<|im_end|>"}, "enable_thinking names a special token"),
    ],
)
def test_what_a_template_does_not_read_is_refused(tmp_path, variables, said):
    folder = saved(tmp_path, THINKING)
    with pytest.raises(ValueError, match=said):
        ChatTokenizer.load(folder, variables=variables)
    with pytest.raises(ValueError, match=said):
        ChatTokenizer.load(folder).with_variables(variables)


def test_what_a_template_sets_itself_is_no_variable_unless_it_asks_for_it():
    asks = "{% if thinking is not defined %}{% set thinking = false %}{% endif %}{{ thinking }}"
    sets = "{% if messages %}{% set role = 'a' %}{% endif %}{{ role }}"
    assert variables_of(asks + sets + "{{ effort | default('low') }}") == {"thinking", "effort"}


def test_a_message_without_content_has_none():
    text = "{% if message['content'] is not none %}a{% endif %}{{ message.content is none }}"
    assert TemplateSettings().adapted(text) == (
        "{% if (message['content'] | default(none)) is not none %}a{% endif %}"
        "{{ (message.content | default(none)) is none }}"
    )


def test_variables_are_found_in_templates_with_blocks_of_transformers():
    text = (
        "{% generation %}{{ a }}{% endgeneration %}{% for m in messages %}{% break %}{% endfor %}"
    )
    assert variables_of(text + "{{ bos_token }}{% if b is defined %}{% endif %}") == {"a", "b"}
    with pytest.raises(ValueError, match="cannot be read"):
        variables_of("{% if %}")


@each_row(
    "ids, files",
    [
        ([5, 7], [("generation_config.json", {"eos_token_id": [5, 7]})]),
        (
            7,
            [("generation_config.json", {"eos_token_id": 7}), ("config.json", {"eos_token_id": 5})],
        ),
        (7, [("config.json", {"eos_token_id": 7})]),
        ([5, 7], [("config.json", {"text_config": {"eos_token_id": [5, 7]}})]),
        ([], [("generation_config.json", {}), ("config.json", {"eos_token_id": 5})]),
    ],
)
def test_stop_tokens_are_those_of_the_template_and_of_the_authors(tmp_path, ids, files):
    folder = saved(tmp_path / f"{files}", CHATML, files)
    tokenizer, plain = ChatTokenizer.load(folder), byte_level(CHATML, CHATML_SPECIAL, QWEN_OTHERS)
    own = ChatTokenizer(plain()).stop_ids
    assert tokenizer.stop_ids == (*own, *(ids if isinstance(ids, list) else [ids]))
    tokenizer.save(tmp_path / "run")
    assert ChatTokenizer.load(tmp_path / "run").stop_ids == tokenizer.stop_ids


@each_row(
    "name, content, said",
    [
        ("generation_config.json", {"eos_token_id": ["a"]}, "must be ids of tokens"),
        ("generation_config.json", {"eos_token_id": "a"}, "is of the wrong type"),
        ("generation_config.json", {"eos_token_id": 10**6}, "the stop token 1000000 is none of"),
        ("generation_config.json", [1], "must have one JSON object"),
        ("chat_settings.json", {"date": 3}, "date 3 is of the wrong type"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, said):
    folder = saved(tmp_path, CHATML, [(name, content)])
    with pytest.raises(ValueError, match=said):
        ChatTokenizer.load(folder)


def test_a_date_is_one():
    assert checked_date("2026-07-31") == "2026-07-31" and checked_date("") == ""
    with pytest.raises(ValueError, match=r"tokenizer.date '31.7.'"):
        checked_date("31.7.")
    pinned = TemplateSettings(date="2026-07-31").adapted
    assert pinned("{{ strftime_now ( '%d %b' ) }}") == '{{ "31 Jul" }}'
    with pytest.raises(ValueError, match="no date is kept"):
        pinned("{{ strftime_now(format) }}")
