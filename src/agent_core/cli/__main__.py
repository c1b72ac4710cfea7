"""`python -m agent_core.cli`: the command without an installed script."""

import sys

from agent_core.cli import main

sys.exit(main())
