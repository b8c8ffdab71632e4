"""What is read of a Dockerfile that is not built."""

import pytest

from ale_jax.worlds.bridges.harbor.dockerfile import Layout, Source, layout_of, workdir_of
from ale_jax.worlds.bridges.harbor.trees import Leaf


def written(folder, text):
    (folder / "in" / "sub").mkdir(parents=True)
    (folder / "in" / "empty").mkdir()
    (folder / "secret").write_text("s")
    for name in ("a", "b", "sub/c"):
        (folder / "in" / name).write_text(name)
    (folder / "in" / "Dockerfile").write_text(text)
    return folder, "in/Dockerfile"


def files(**content):
    return {path: Leaf(text.encode()) for path, text in content.items()}


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("FROM --platform=x a AS b\nWORKDIR /x\nWORKDIR y\n", Layout("/x/y")),
        ("from a\nworkdir /x/\n", Layout("/x")),
        ('FROM a\nENV A=1 B="2 3"\nENV C 4 5\n', Layout("", {"A": "1", "B": "2 3", "C": "4 5"})),
        ("FROM a\nCOPY a /x/\n", Layout("", {}, files(**{"/x/a": "a"}))),
        ("FROM a\nCOPY a /x\n", Layout("", {}, files(**{"/x": "a"}))),
        ("FROM a\nWORKDIR /w\nCOPY a b .\n", Layout("/w", {}, files(**{"/w/a": "a", "/w/b": "b"}))),
        ("FROM a\nWORKDIR /w\nCOPY a /w\n", Layout("/w", {}, files(**{"/w/a": "a"}))),
        ("FROM a\nCOPY sub /x\n", Layout("", {}, files(**{"/x/c": "sub/c"}))),
        ("FROM a\nCOPY ./sub/c \\\n  /x/d\n", Layout("", {}, files(**{"/x/d": "sub/c"}))),
        ('# no\nFROM a\nEXPOSE 80\nUSER root\nCMD ["x"]\nLABEL a=b\n', Layout()),
    ],
)
def test_what_a_dockerfile_lays_out(tmp_path, text, layout):
    folder, name = written(tmp_path, text)
    assert layout_of(Source(folder), name) == layout


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("COPY ../secret /x/", "makes an image of its own"),
        ("COPY empty /x/", "copies nothing"),
        ("COPY nowhere /x/", "in/nowhere is missing"),
        ("COPY --chown=a a /x", "makes an image of its own"),
        ("COPY a $HOME/x", "names a variable"),
        ("WORKDIR $HOME", "names a variable"),
        ("ADD a /x", "makes an image of its own"),
        ("ENV A", "makes an image of its own"),
        ("USER app", "makes an image of its own"),
        ("VOLUME /x", "makes an image of its own"),
    ],
)
def test_other_lines_are_refused_as_they_stand(tmp_path, line, why):
    with pytest.raises(ValueError, match=why) as refusal:
        folder, name = written(tmp_path, f"FROM a\n{line}\n")
        layout_of(Source(folder), name)
    assert str(refusal.value).startswith(f"in/Dockerfile: {line!r}")


def test_the_working_directory_of_an_image_that_was_built(tmp_path):
    text = "FROM a AS b\nWORKDIR /no\nFROM c\nRUN make\nWORKDIR /x\nWORKDIR y\n"
    assert workdir_of(*written(tmp_path, text)) == "/x/y"


def test_what_an_image_has_is_passed_over(tmp_path):
    text = "FROM a\nWORKDIR /no\nFROM b\nRUN make\nWORKDIR /x\nCOPY --from=a /y /z\nCOPY a .\n"
    folder, name = written(tmp_path, text)
    found = layout_of(Source(folder, installed=True), name)
    assert found == Layout("/x", {}, files(**{"/x/a": "a"}))


def test_a_dockerfile_that_cannot_be_read_is_named(tmp_path):
    folder, name = written(tmp_path, "# escape=`\nFROM a\n")
    with pytest.raises(ValueError, match=r"in/Dockerfile: the directive escape=` is not supported"):
        layout_of(Source(folder), name)
