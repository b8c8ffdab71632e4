"""Trees of files: out of a task's folder, and in and out of sandboxes, whose files are hostile."""

from __future__ import annotations

import dataclasses
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

MAX_TEXT_BYTES = 1 << 20
MAX_TREE_BYTES = 32 << 20
MAX_FILES = 1000
IGNORED = ".harborignore"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A file."""

    content: bytes
    is_executable: bool = False


Tree = Mapping[str, Leaf]  # by path relative to something, with "/" between its parts


def read_text(folder: Path, name: str) -> str:
    """Returns a text of a task's folder. ValueError, with its name, if it is none."""
    content = _read(_inside(folder, name), name, MAX_TEXT_BYTES).content
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no text: {error}") from None


def read_leaf(folder: Path, name: str) -> Leaf:
    """Returns a file of a task's folder. ValueError, with its name, if it is none."""
    return _read(_inside(folder, name), name, MAX_TREE_BYTES)


def read_tree(folder: Path, name: str) -> dict[str, Leaf]:
    """Returns the files of a subfolder, by path relative to it; none if it does not exist.
    ValueError, with the name, for links, for what is no file, and for too many or too large ones.
    """
    top = _inside(folder, f"{name}/")
    tree: dict[str, Leaf] = {}
    left = MAX_TREE_BYTES
    for path in _files(top):
        inner = path.relative_to(top).as_posix()
        if path.name == IGNORED:
            raise ValueError(f"{name}/{inner}: what it leaves out is not left out here: remove it")
        if len(tree) == MAX_FILES:
            raise ValueError(f"{name} has more than {MAX_FILES} files")
        tree[inner] = leaf = _read(path, f"{name}/{inner}", left)
        left -= len(leaf.content)
    return tree


def below(directory: str, tree: Tree) -> dict[str, Leaf]:
    """Returns a tree whose paths begin with a directory."""
    return {f"{directory.rstrip('/')}/{path}": leaf for path, leaf in tree.items()}


def packed(tree: Tree) -> bytes:
    """Returns a tar archive of files with absolute paths, to be unpacked at /."""
    return _archive((path.lstrip("/"), leaf) for path, leaf in sorted(tree.items()))


def cleaned(archive: bytes, sources: Sequence[str]) -> bytes:
    """Returns an archive that has only the regular files of one out of a sandbox, and of them only
    those that are one of `sources`, absolute paths, or below one. ValueError if it is damaged."""
    kept: dict[str, Leaf] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            for member in opened:
                path = PurePosixPath("/", member.name)
                file = opened.extractfile(member) if member.isreg() else None
                if file and ".." not in path.parts and any(map(path.is_relative_to, sources)):
                    kept[str(path)] = Leaf(file.read(), bool(member.mode & stat.S_IXUSR))
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise ValueError(f"the archive of a sandbox is damaged: {error}") from None
    return packed(kept)


def _archive(entries: Iterator[tuple[str, Leaf]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:") as archive:
        for path, leaf in entries:
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(leaf.content), 0o755 if leaf.is_executable else 0o644
            archive.addfile(member, io.BytesIO(leaf.content))
    return buffer.getvalue()


def _inside(folder: Path, name: str) -> Path:
    """Returns a path in a task's folder. ValueError if a link is on the way to it, which could lead
    to any file of this machine."""
    path = folder
    for part in PurePosixPath(name).parts[: None if name.endswith("/") else -1]:
        path /= part
        if path.is_symlink():
            raise ValueError(f"{path.relative_to(folder)} is a link, not a folder")
    return folder / name


def _files(top: Path) -> Iterator[Path]:
    """All that is below a folder and is no folder, links included."""
    for parent, directories, names in os.walk(top):
        directories.sort()
        for name in sorted((*directories, *names)):
            path = Path(parent, name)
            if not stat.S_ISDIR(path.lstat().st_mode):
                yield path


def _read(path: Path, name: str, max_bytes: int) -> Leaf:
    if not path.exists() and not path.is_symlink():
        raise ValueError(f"{name} is missing")
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError(f"{name} is not a regular file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{name} is too large: at most {max_bytes} bytes are left for it")
    return Leaf(content, bool(mode & stat.S_IXUSR))
