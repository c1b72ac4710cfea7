"""`python -m kgent`."""

import sys

from kgent.cli import main

sys.exit(main())
