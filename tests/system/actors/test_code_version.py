"""Which code a process runs, and how it is told from another's."""

import shutil

from ale_jax.system.actors.code_version import PACKAGE, differing, own_code, source_digest


def test_the_digest_changes_with_every_file_and_name(tmp_path):
    package = tmp_path / "worlds"
    (package / "deep").mkdir(parents=True)
    digests = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("deep/a.py", "2"), ("deep/b.py", "")):
        (package / name).write_text(text)
        digests.append(source_digest(package))
    (package / "notes.txt").write_text("not code")
    assert len(set(digests)) == 4 and source_digest(package) == digests[-1]


def test_a_linked_folder_counts_like_a_folder(tmp_path):
    worlds = tmp_path / "worlds"
    for name in ("installed", "checkout", "worlds"):
        (tmp_path / name).mkdir()
    (worlds / "a.py").write_text("1")
    shutil.copytree(worlds, tmp_path / "installed" / "worlds")
    (tmp_path / "checkout" / "worlds").symlink_to(worlds)
    assert source_digest(tmp_path / "installed") == source_digest(tmp_path / "checkout")


def test_it_covers_the_worlds_and_names_the_versions():
    assert (PACKAGE / "envs" / "serve.py").is_file()
    assert list(own_code()) == ["python", "ray", "ale-jax", "source"]


def test_only_what_differs_is_said():
    ours = own_code()
    assert differing(dict(ours), ours) == ""
    theirs = ours | {"ray": "2.1.0", "source": "0"}
    assert differing(theirs, ours) == (
        f"it has ray 2.1.0, source 0, and this process has ray {ours['ray']}, "
        f"source {ours['source']}"
    )
