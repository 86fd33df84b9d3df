"""Launches entry points on the PTX machine, with its own checks and counts, through the lane-by-lane build's interface."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels" / "simt")]

from ptx_build import build  # noqa: E402
from runner import LaunchError, Simt  # noqa: E402


class PtxMachine(Simt):
    """Runs the PTX of kernels/entry.cu and of the probe kernels, or a text of its own. The last one made counts.

    Parameters
    ----------
    text : str, optional
        PTX to run instead.
    races : bool
        Report accesses that conflict and that nothing orders.
    counting : bool
        Count sectors, atomics, divergence and chains; warps then run in lockstep.
    """

    def __init__(self, text: str | None = None, *, races: bool = False, counting: bool = False):
        super().__init__(build())
        self._library.gids_ptx_take_counts.restype = ctypes.c_size_t
        self._library.gids_ptx_options(int(counting), int(races))
        self._call("gids_ptx_load", None if text is None else text.encode())
        self.names = self._library.gids_simt_names().decode().split()

    def _call(self, function: str, *arguments: Any) -> None:
        error = ctypes.create_string_buffer(2048)
        if getattr(self._library, function)(*arguments, error, ctypes.c_size_t(2048)):
            raise LaunchError(error.value.decode())

    def region(self, kind: str, address: int, count: int) -> None:
        """Say who else uses a range of memory; see regions.hpp for the kinds and their rules."""
        self._call("gids_ptx_region", kind.encode(), ctypes.c_uint64(address), ctypes.c_uint64(count))

    def forget_regions(self) -> None:
        """Forget every range of :meth:`region`."""
        self._call("gids_ptx_region", b"", ctypes.c_uint64(0), ctypes.c_uint64(0))

    def options(self, *, races: bool, counting: bool) -> None:
        """Change what later launches check and count."""
        self._library.gids_ptx_options(int(counting), int(races))

    def take_counts(self) -> dict[str, dict[str, Any]]:
        """Return the counts per kernel since the last call."""
        size = self._library.gids_ptx_take_counts(None, ctypes.c_size_t(0))
        text = ctypes.create_string_buffer(size)
        self._library.gids_ptx_take_counts(text, ctypes.c_size_t(size))
        return dict(json.loads(text.value))
