"""Files on their way: out of a folder, and out of a sandbox, where everything is hostile."""

import io
import tarfile

import pytest

from ale_jax.worlds.bridges.harbor.trees import Leaf, below, cleaned, packed, read_text, read_tree


def archive(*members) -> bytes:
    """A tar archive of (name, content, type of member)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as opened:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.size, member.type, member.mode = len(content), kind, 0o6777
            member.linkname = "/etc/passwd"
            opened.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def contents(given: bytes) -> dict:
    with tarfile.open(fileobj=io.BytesIO(given)) as opened:
        return {m.name: (opened.extractfile(m).read(), m.mode) for m in opened}


def test_only_files_below_what_was_asked_for_are_kept():
    given = archive(
        ("app/out/a", b"1", tarfile.REGTYPE),
        ("app/out/../../etc/passwd", b"2", tarfile.REGTYPE),
        ("app/outside", b"3", tarfile.REGTYPE),
        ("/app/out/absolute", b"4", tarfile.REGTYPE),
        ("app/out/link", b"", tarfile.SYMTYPE),
        ("app/out/hard", b"", tarfile.LNKTYPE),
        ("app/out/device", b"", tarfile.CHRTYPE),
        ("app/out/pipe", b"", tarfile.FIFOTYPE),
        ("tests/test.sh", b"5", tarfile.REGTYPE),
    )
    kept = contents(cleaned(given, ["/app/out"]))
    assert kept == {"app/out/a": (b"1", 0o755), "app/out/absolute": (b"4", 0o755)}


@pytest.mark.parametrize("given", [b"x" * 600, archive(("a", b"1" * 2000, b"0"))[:1000]])
def test_a_damaged_archive_is_refused(given):
    with pytest.raises(ValueError, match="the archive of a sandbox is damaged"):
        cleaned(given, ["/"])


def test_a_tree_keeps_what_can_be_executed(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a").write_text("1")
    (tmp_path / "in" / "deep" / "b").write_text("2")
    (tmp_path / "in" / "deep" / "b").chmod(0o755)
    tree = read_tree(tmp_path, "in")
    assert tree == {"a": Leaf(b"1"), "deep/b": Leaf(b"2", True)}
    sent = contents(packed(below("/app/", tree)))
    assert sent == {"app/a": (b"1", 0o644), "app/deep/b": (b"2", 0o755)}
    assert read_tree(tmp_path, "nowhere") == {}


def test_what_is_no_text_is_refused_by_its_name(tmp_path):
    (tmp_path / "instruction.md").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"^instruction.md is no text"):
        read_text(tmp_path, "instruction.md")
