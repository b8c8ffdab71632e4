"""What is no Python but belongs to the package is installed with it."""

import ast
import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_other_file_of_the_package_is_package_data():
    keywords = [n for n in ast.walk(ast.parse((ROOT / "setup.py").read_text())) if named(n)]
    patterns = ast.literal_eval(keywords[0].value)[""]
    others = [
        path
        for path in (ROOT / "ale_jax").rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    ]
    assert {"fleet.html", "fleet.css", "fleet.js"} <= {path.name for path in others}
    assert [p for p in others if not any(fnmatch.fnmatch(p.name, each) for each in patterns)] == []


def named(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "package_data"
