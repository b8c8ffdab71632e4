"""Commands that are longer than execve(2) takes as one argument."""

import pytest

from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.process_calls import LONGEST
from ale_jax.sandbox.spec import WORK
from tests.sandbox.conftest import SPEC

LONG = 300_000


def long(command, size=LONG):
    """`command`, with a comment before it, of `size` bytes."""
    return "#".ljust(size - len(command) - 1, "x") + "\n" + command


@pytest.mark.each_runtime
@pytest.mark.parametrize("size", [LONGEST, LONGEST + 1, LONG, 3 << 20])
def test_a_command_line_may_have_any_length(box, size):
    command = long("read line; echo $line $# $0; echo err >&2; exit 3", size)
    assert len(command) == size
    result = box.exec(command, stdin=b"in\n")
    assert (result.stdout, result.stderr, result.exit_code) == ("in 0 bash\n", "err\n", 3)


def test_it_is_text_in_utf_8(box):
    assert box.exec("# " + "ä" * LONGEST + "\necho 'ß\n'").stdout == "ß\n\n"


def test_it_leaves_nothing_open(box):
    listed = box.exec(long("exec 9< <(:); ls /proc/self/fd | sort -n | tr '\\n' ' '"))
    assert "197" not in listed.stdout and listed.exit_code == 0


def test_a_session_takes_it_too(box):
    assert box.run(long("x=5; exit_code() { return 4; }; exit_code")).exit_code == 4
    assert box.run("echo $x").output == "5\n"
    box.begin(long("read -p 'name? ' name; echo hello $name"))
    box.expect(r"\? ")
    box.send("joe\n")
    assert box.expect().output == "hello joe\n"


def test_a_long_command_on_a_terminal_ends_as_others_do(box):
    async def talk():
        job = box.later.spawn(long("stty size; read x; exit $x"), terminal=(30, 100))
        assert await job.receive() == ("stdout", b"30 100\r\n")
        await job.write(b"7\n")
        return await job.wait()

    assert wait_for(talk()) == 7


def test_one_that_ends_before_it_is_read_does_no_harm(box):
    box.exec("mkdir bin; printf '#!/bin/sh\\nexit 5\\n' > bin/bash; chmod +x bin/bash")
    assert box.exec(long("echo never", 3 << 20), env={"PATH": f"{WORK}/bin"}).exit_code in (0, 5)
    assert box.exec("echo next").stdout == "next\n"


def test_what_no_program_can_be_given_is_refused_by_name(box):
    with pytest.raises(ValueError, match=f"argument 1 has {LONG} bytes, .* at most {LONGEST}"):
        box.exec(["echo", "x" * LONG])
    with pytest.raises(ValueError, match=f"variable 'X' has {LONG + 2} bytes"):
        box.exec("true", env={"X": "x" * LONG})
    with pytest.raises(ValueError, match=f"variable 'X' has {LONG + 2} bytes"):
        box.open_session("other", env={"X": "x" * LONG})
    with pytest.raises(ValueError, match="NUL"):
        box.exec(long("echo \0"))
    assert box.exec(["echo", "x" * LONGEST]).stdout[: SPEC.output_bytes // 2] == "x" * (
        SPEC.output_bytes // 2
    )
