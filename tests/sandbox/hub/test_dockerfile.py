"""What a Dockerfile would fetch is seen before the daemon sees it."""

import pytest

from ale_jax.sandbox.hub.recipe import base_images, network_sources
from tests.rows import each_row


@each_row(
    "text, bases",
    [
        ("FROM debian:12", ("debian:12",)),
        ("from  debian:12  as  One\nFROM one\nCOPY --from=ONE /a /b", ("debian:12",)),
        ("# FROM a\n\nFROM --platform=linux/amd64 \\\n# b\n  c\n", ("c",)),
        ("FROM scratch\nCOPY --chown=1 --from=busybox /a /b", ("busybox",)),
        ("FROM a AS x\nCOPY --from=0 /a /b\nFROM b\nFROM a", ("a", "b")),
        ("FROM\ta\nRUN echo FROM b", ("a",)),
        ("RUN a \\\nFROM b", ()),
    ],
)
def test_bases_are_named_once_and_stages_are_not(text, bases):
    assert base_images(text) == bases


@each_row(
    "text, reason",
    [
        ("ARG X\nFROM $X", "not a variable"),
        ("FROM a\nCOPY --from=${X} /a /b", "not a variable"),
        ("# escape=`\nFROM a", "use the backslash"),
        ("FROM", "cannot read the line"),
        ("FROM a b c", "cannot read the line"),
    ],
)
def test_what_hides_a_base_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        base_images(text)


@each_row(
    "line",
    [
        "ADD https://localhost/a /a",
        'add ["http://localhost/a", "/a"]',
        "ADD --chown=1 git@localhost:a /a",
        "ADD $WHERE /a",
        "ADD \\\n  ftp://localhost/a /a",
        "ONBUILD ADD http://localhost/a /a",
    ],
)
def test_sources_on_the_network_are_found(line):
    assert len(network_sources(f"FROM a\n{line}\nRUN true")) == 1


def test_local_sources_and_commands_are_none():
    assert network_sources("FROM a\nADD a.tar /a\nRUN curl http://localhost\nCOPY a /a") == ()
