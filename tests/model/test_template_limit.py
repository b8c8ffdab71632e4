"""Chat templates that do not end are refused, and nothing of them goes on."""

import threading

import pytest

from ale_jax.model import template_limit
from ale_jax.model.template_limit import TemplateTimeout, rendered
from ale_jax.model.tokenizer import ChatTokenizer
from tests.model.chat_families import CHATML, CHATML_SPECIAL, HERMES_CALL, QWEN_OTHERS, byte_level
from tests.model.test_template_settings import saved

PLAIN = CHATML.replace("CALL", HERMES_CALL)
LONG = "range(99999)"  # the longest that jinja's sandbox allows
LOOPS = f"{{% for a in {LONG} %}}{{% for b in {LONG} %}}{{% endfor %}}{{% endfor %}}"
TWICE = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
WITH_CALLS = "{% if messages[-1].tool_calls %}" + LOOPS + "{% endif %}"
ENDLESS = {"loops": LOOPS, "recursion": TWICE, "only where there are calls": WITH_CALLS}


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(template_limit, "SECONDS", 0.5)


@pytest.mark.parametrize("endless", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end_is_refused_and_ended(endless, tmp_path):
    with pytest.raises(ValueError, match=r"has not ended after 0\.5 s: give another in chat_templ"):
        ChatTokenizer.load(saved(tmp_path, endless + PLAIN))
    for each in threading.enumerate():
        if each.name == "chat template":
            each.join(60)
            assert not each.is_alive()


def test_a_power_which_nothing_could_end_is_refused_unread(tmp_path):
    with pytest.raises(ValueError, match="computes a power in line 17: leave it out"):
        ChatTokenizer.load(saved(tmp_path, PLAIN + "\n{% if 10 ** 10 ** 10 %}{% endif %}"))


def test_each_of_several_templates_is_read_before_one_is_rendered(tmp_path):
    given = byte_level(PLAIN, CHATML_SPECIAL, QWEN_OTHERS)()
    given.chat_template = {"tool_use": PLAIN, "default": "{{ 9 ** 9 ** 9 }}" + PLAIN}
    given.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="computes a power in line 1"):
        ChatTokenizer.load(tmp_path)


def test_what_a_template_raises_or_says_is_told():
    assert rendered(lambda: "text") == "text"
    with pytest.raises(KeyError, match="role"):
        rendered(lambda: {}["role"])
    with pytest.raises(TemplateTimeout):
        rendered(lambda: threading.Event().wait(2))


def test_a_thread_that_ends_at_the_limit_waits_until_nothing_is_sent_to_it(monkeypatch):
    lived = []
    really_end = template_limit._end

    def end_late(thread):
        thread.join(2)  # the template has ended meanwhile
        lived.append(thread.is_alive())
        really_end(thread)

    monkeypatch.setattr(template_limit, "_end", end_late)
    with pytest.raises(TemplateTimeout):
        rendered(lambda: str(threading.Event().wait(1)))
    assert lived == [True]
