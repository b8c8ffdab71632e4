"""Completion of `ale-sandbox` command lines in bash and zsh, generated from the parser."""

from __future__ import annotations

import argparse

from ale_jax.sandbox.cli.parser import ID

# zsh runs bash's completions, too. Ids are asked of the service, so they are those of the moment.
SCRIPT = r"""
_ale_sandbox() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command= number
    for ((number = 1; number < COMP_CWORD; number++)); do
        case ${{COMP_WORDS[number]}} in
            {names}) command=${{COMP_WORDS[number]}}; break;;
        esac
    done
    local words= takes_ids= takes_files=
    case $command in
{cases}
    esac
    if [[ $word != -* && $takes_ids ]]; then
        words="$words $(ale-sandbox ps --quiet 2> /dev/null)"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word") $(${{takes_files:-:}} "$word"))
}}
_ale_sandbox_files() {{ compgen -f -- "$1"; }}
complete -o nosort -F _ale_sandbox ale-sandbox
"""
FOR_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
WITH_FILES = ("cp", "serve")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """What `shell` ("bash" or "zsh") must evaluate, for example in its ~/.bashrc."""
    commands = next(
        action.choices for action in parser._actions if isinstance(action.choices, dict)
    )
    cases = [f'        "") words="{" ".join((*commands, *_options(parser)))}";;']
    cases += [f"        {name}) {_case(name, each)};;" for name, each in commands.items()]
    text = SCRIPT.format(names="|".join(commands), cases="\n".join(cases)).lstrip("\n")
    return FOR_ZSH + text if shell == "zsh" else text


def _case(name: str, command: argparse.ArgumentParser) -> str:
    choices = [word for action in command._actions for word in action.choices or ()]
    ids = any(action.metavar == ID for action in command._actions) or name == "cp"
    files = "_ale_sandbox_files" if name in WITH_FILES else ""
    words = " ".join((*choices, *_options(command)))
    return f'words="{words}" takes_ids={"yes" if ids else ""} takes_files={files}'


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [word for action in parser._actions for word in action.option_strings]
