"""How the runner gets into a sandbox: its source is the first that a bare python3 is sent."""

from __future__ import annotations

import json
import struct
from pathlib import Path

# Short, because an agent sees it whenever it lists processes.
PROGRAM = "exec(open(0, 'rb', 0, closefd=False).readline())"
COMMAND = ["python3", "-I", "-S", "-c", PROGRAM]
# In the order in which they import each other.
MODULES = (
    *("wire", "loop", "link", "files", "accounts", "seccomp", "processes", "output", "session"),
    *("jobs", "memory", "relay", "usage", "main"),
)

# Makes the package out of a JSON frame. It must be one line, and what reads it reads no byte more.
LOADER = """
import json, os, struct, sys, types

def take(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or os._exit(0)
    return data

(size,) = struct.unpack(">I", take(4))
cargo = json.loads(take(size))
package = sys.modules["runner"] = types.ModuleType("runner")
package.__path__ = []
for name, source in cargo["modules"]:
    module = types.ModuleType("runner." + name)
    module.__package__ = "runner"
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(source, module.__name__, "exec"), module.__dict__)
package.main.main(cargo["config"])
"""


def bootstrap(config: dict) -> bytes:
    """What a process that was started with COMMAND must read first. config: see `runner.main`."""
    folder = Path(__file__).with_name("runner")
    modules = [(name, (folder / f"{name}.py").read_text()) for name in MODULES]
    cargo = json.dumps({"modules": modules, "config": config}).encode()
    return f"exec({LOADER!r})\n".encode() + struct.pack(">I", len(cargo)) + cargo
