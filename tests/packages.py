"""Why a package of the tests may be missing: some have no release for every Python that gids supports."""

import sys

NO_DGL = (
    f"dgl is not installed, and this is Python {sys.version_info.major}.{sys.version_info.minor}: "
    "tests/requirements.txt brings dgl for Python 3.10 and 3.11, the last ones it has wheels for that need no older torch"
)
