"""NVMe drives in userspace: data on raw drives, files by their extents, and what a machine needs for it."""

from gids.nvme.drives import Drives, open_drives
from gids.nvme.extents import ExtentMap, FileExtents, map_files, resolve_extents
from gids.nvme.facts import Fact, facts, give_steps, take_back_steps
from gids.nvme.raw import Target, format_drives, load_dataset
from gids.nvme.superblock import StoredFile, Superblock

__all__ = [
    "Drives",
    "ExtentMap",
    "Fact",
    "FileExtents",
    "StoredFile",
    "Superblock",
    "Target",
    "facts",
    "format_drives",
    "give_steps",
    "load_dataset",
    "map_files",
    "open_drives",
    "resolve_extents",
    "take_back_steps",
]
