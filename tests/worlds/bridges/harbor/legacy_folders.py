"""Small task folders in the format of terminal-bench, sound unless a test says otherwise."""

from pathlib import Path

TASK = """\
instruction: |-
  Write a function `double` into /app/solution.py.
author_email: unknown
difficulty: easy
tags:
  - python
parser_name: pytest
max_agent_timeout_sec: 20.0
max_test_timeout_sec: 30
"""
# As the published ones are: pytest comes from the network.
RUN_TESTS = """\
#!/bin/bash

# Install curl
apt-get update
apt-get install -y curl

# Install uv
curl -LsSf https://localhost/uv/0.7.13/install.sh | sh

source $HOME/.local/bin/env

if [ "$PWD" = "/" ]; then
    echo "Error: No working directory set. Please set a WORKDIR in your Dockerfile."
    exit 1
fi

uv init
uv add pytest==8.4.1

uv run pytest $TEST_DIR/test_outputs.py -rA"""
SOLUTION = """\
#!/bin/bash
cat > /app/solution.py << 'EOL'
def double(x):
    return x + x
EOL
"""
TEST = """\
import importlib.util

def test_solution():
    spec = importlib.util.spec_from_file_location("solution", "/app/solution.py")
    solution = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(solution)
    assert solution.double(21) == 42
"""
COMPOSE = """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
"""
FILES = {
    "task.yaml": TASK,
    "solution.sh": SOLUTION,
    "run-tests.sh": RUN_TESTS,
    "tests/test_outputs.py": TEST,
    "Dockerfile": "# a comment\nFROM registry/python-3-13:20250620\n\nWORKDIR /app",
    "docker-compose.yaml": COMPOSE,
}


def write_task(folder: Path, changes: dict[str, str | None] | None = None) -> Path:
    """A task folder; `changes` gives files another content, or none."""
    for name, text in (FILES | (changes or {})).items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder
