"""python -m ale_jax.sandbox.cli"""

import sys

from ale_jax.sandbox.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
