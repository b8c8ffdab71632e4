"""launch/ is no package: its programs find each other in the folder of the one that was started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "launch"))
