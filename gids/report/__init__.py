"""Runs as one page to look at: what was set, what happened when, where rows came from, what it cost."""

from gids.report.page import render, write_page
from gids.report.recorder import record
from gids.report.run import Epoch, Memory, Run, load_run

__all__ = ["Epoch", "Memory", "Run", "load_run", "record", "render", "write_page"]
