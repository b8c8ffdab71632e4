"""Attacks on the session: a shell that lies, breaks, or does not end."""

from __future__ import annotations

from benchmarks.sandbox.attacks.attack import Arena, Attack, require, require_alive

SESSION = "session"
BREAKERS = {
    "redefines what the loop calls": (
        "eval() { :; }; printf() { :; }; read() { :; }; builtin() { :; }; command() { :; }"
    ),
    "redefines what takes that back": (
        "unset() { :; }; builtin() { :; }; exit() { :; }; echo() { command echo lies; }"
    ),
    "aliases and freezes builtins": (
        "declare -rf builtin; alias builtin=true eval=true; shopt -s expand_aliases"
    ),
    "makes every error fatal": "set -eu; set -x",
    "changes how words are read": "set -f -o noclobber -o posix; IFS=0123456789abcdef/",
    "closes the loop's descriptors": "exec 198<&- 199>&- 10>&- 11>&-; true",
    "closes all descriptors": 'for fd in {3..250}; do eval "exec $fd>&-"; done',
    "sends its output away": "exec > /dev/null 2>&1",
    "closes its output": "exec 1>&- 2>&-",
    "traps everything": "trap 'echo trapped' DEBUG EXIT ERR",
    "ignores signals": "trap '' TERM INT HUP CHLD PIPE",
    "may open no file": "ulimit -n 3",
    "may write no file": "ulimit -f 0",
    "loses its variables": "PATH=; unset PATH HOME PWD OLDPWD; PWD=lies",
    "freezes the loop's variables": (
        "readonly __status __token __bytes __command REPLY IFS LC_ALL POSIXLY_CORRECT"
    ),
    "changes locale and mode": "export LC_ALL=xx_XX.UTF-16 LANG=nowhere; set -o posix",
    "removes where it stands": (
        "rm -rf /work /tmp /usr 2> /dev/null; mkdir gone; cd gone; rmdir ../gone"
    ),
    "kills all that it may": "kill -9 -1",
    "kills init and its parent": "kill -9 1 $PPID; kill -STOP 1 $PPID",
    "stops itself": "kill -STOP $$",
    "disables builtins": "enable -n read eval printf builtin echo",
    "debugs the loop": "shopt -s extdebug; trap 'false' DEBUG",
}


def _breaks(name: str, command: str) -> Attack:
    def play(arena: Arena) -> str:
        first = arena.box.run(command, timeout=0.5)
        second = arena.box.run("true", timeout=0.5)  # any damage shows here at the latest
        arena.box.kill_processes()
        require_alive(arena.box)
        return f"exit code {first.exit_code}, the next command's {second.exit_code}, then as new"

    return Attack(name, SESSION, "replies carry a token; a session is replaced", play)


def _forges(arena: Arena) -> str:
    # The session's bash can find its own descriptors, so that it may forge the reply to this
    # command, but not to the next one.
    forge = r"""printf '%s 7 /tmp\0' "$__token" >&$fd"""
    first = arena.box.run(
        f"for fd in {{3..250}}; do {forge}; done 2> /dev/null; sleep 0.3; echo late"
    )
    require(first.exit_code == 7, "could not be tried")
    # The late reply to the first ends the session.
    require(arena.box.run("echo second").exit_code == 137, "a forged reply passed for another's")
    require_alive(arena.box)
    return "the session is ended at the next command"


def _flooded_dialogue(arena: Arena) -> str:
    arena.box.begin("yes $(printf 'x%.0s' {1..4000}) | tr -d '\\n'")
    seen = arena.box.expect(".*never", timeout=arena.load_seconds)
    require(seen.exit_code is None and not seen.matched, f"it says {seen.output[:40]!r}")
    arena.box.exec("true")  # its runner has time for others
    require(arena.box.interrupt(), "it had ended")
    return f"{seen.omitted_bytes} bytes are left out"


ATTACKS = (
    *(_breaks(name, command) for name, command in BREAKERS.items()),
    Attack("floods a dialogue", SESSION, "only 4 KiB are matched at once", _flooded_dialogue),
    Attack("forges the reply to the next command", SESSION, "a new token per command", _forges),
)
