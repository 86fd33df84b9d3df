"""``python -m gids`` is the ``gids`` command."""

import sys

from gids.cli import main

sys.exit(main())
