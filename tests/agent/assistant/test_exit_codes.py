"""What a script can rely on when `ale-agent` ends."""

import re
from pathlib import Path

from ale_jax.agent.assistant import exit_codes
from ale_jax.agent.assistant.events import Ended
from ale_jax.agent.assistant.exit_codes import code_of

PAGE = Path(__file__).parents[3] / "docs" / "assistant.md"


def test_the_docs_have_all_exit_codes():
    table = PAGE.read_text().partition("| exit code |")[2].partition("\n\n")[0]
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)} == codes


def test_only_what_finished_is_a_success():
    reasons = ("finished", "refused", "max_turns", "length", "failed")
    assert [code_of(Ended(reason=reason)) for reason in reasons] == [0, 3, 1, 1, 1]
