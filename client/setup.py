"""The client of the sandbox service alone, without what trains models and starts sandboxes:

    pip install ./client

It has `ale-sandbox` and `ale_jax.sandbox.sdk`. An environment has either it or ale-jax, which holds
the same files.
"""

from setuptools import find_namespace_packages, setup

setup(
    name="ale-sandbox",
    version="0.1.0",
    description="Client of the sandbox service of ALE-JAX",
    license="Apache-2.0",
    python_requires=">=3.11",
    package_dir={"": ".."},
    packages=[
        *("ale_jax", "ale_jax.config"),
        *find_namespace_packages("..", include=["ale_jax.sandbox*"]),
    ],
    install_requires=[
        "httpx>=0.28",
        "python-multipart>=0.0.34",
        "rich>=14",
        "websockets>=15",
    ],
    entry_points={"console_scripts": ["ale-sandbox = ale_jax.sandbox.cli.main:main"]},
)
