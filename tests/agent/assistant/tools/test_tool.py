"""What a model writes as arguments is read strictly."""

import pytest

from ale_jax.agent.assistant.messages import AssistantCall
from ale_jax.agent.assistant.tools.steps import FinishTool, TaskTool
from ale_jax.agent.assistant.tools.tool import Arguments, Toolbox, ToolError, parse_arguments
from tests.rows import each_row


@each_row(
    "written",
    ["[]", "1", "{", '{"a": 1} x', '{"a": 1, "a": 2}', "[" * 100_000, '"' + "x" * (1 << 20) + '"'],
)
def test_what_is_no_object_is_refused(written):
    with pytest.raises(ToolError):
        parse_arguments(AssistantCall("c", "bash", written))


def test_no_arguments_are_an_empty_object():
    assert parse_arguments(AssistantCall("c", "bash", " ")) == {}


def test_a_schema_says_all_that_a_model_has_to_know():
    (finish,) = Toolbox([FinishTool()]).definitions()
    assert finish["function"]["parameters"] == {
        "type": "object",
        "properties": {"answer": {"type": "string", "default": ""}},
        "additionalProperties": False,
    }
    (task,) = Toolbox([TaskTool(None)]).definitions()
    assert task["function"]["parameters"]["required"] == ["task"]
    assert task["function"]["parameters"]["properties"]["task"]["minLength"] == 1


def test_what_a_class_says_of_itself_is_not_told_to_the_model():
    class Place(Arguments):
        """For those who read the code."""

        path: str

    class Named(FinishTool):
        Arguments = Place

    assert Named().parameters == {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    }


def test_two_tools_cannot_have_one_name():
    with pytest.raises(ValueError, match="two tools are called 'finish'"):
        Toolbox([FinishTool(), FinishTool()])
