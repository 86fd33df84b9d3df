"""Makes the QEMU harness importable as ``nvme_qemu`` for tests that sit elsewhere in the tree."""

import importlib.util
import sys
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("nvme_qemu", Path(__file__).parent / "qemu.py")
if "nvme_qemu" not in sys.modules:
    sys.modules["nvme_qemu"] = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(sys.modules["nvme_qemu"])
