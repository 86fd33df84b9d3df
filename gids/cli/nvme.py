"""``gids nvme``: put datasets on raw drives, and say what a machine needs to read them from userspace."""

from __future__ import annotations

import argparse
from pathlib import Path

from gids.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    told_twice = "the drive's serial number, to show that this drive is meant (repeat in the same order)"

    def add_targets(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--device", type=Path, action="append", required=True, help="drive or image (repeat: stripes)"
        )
        command.add_argument("--serial", action="append", required=True, help=told_twice)

    command = actions.add_parser("format", help="make drives a set that gids owns; ERASES them")
    add_targets(command)
    command.add_argument("--erase", action="store_true", help="yes, destroy what the drives hold")

    command = actions.add_parser("load", help="write a dataset's features to drives formatted before")
    command.add_argument("dataset", type=Path)
    add_targets(command)
    command.add_argument("--overwrite", action="store_true", help="replace the dataset that the drives carry")

    command = actions.add_parser("info", help="show the superblock of a drive or image that the kernel owns")
    command.add_argument("device", type=Path)

    command = actions.add_parser("map", help="note where files of ext4 or xfs are, to read them without the kernel")
    command.add_argument("files", type=Path, nargs="+", help="immutable files, or files on a read-only mount")
    command.add_argument("--out", type=Path, required=True, help="where to write the map (JSON)")

    command = actions.add_parser("facts", help="IOMMU, vfio-pci, huge pages, drives, GPUs")
    for name, text in (("give", "print the steps that hand a drive to gids"), ("take", "print the steps back")):
        command = actions.add_parser(name, help=text)
        command.add_argument("address", help="PCI address such as 0000:01:00.0")


def run(args: argparse.Namespace) -> None:
    """Do what was asked."""
    from gids import nvme

    if args.action in ("format", "load"):
        if len(args.device) != len(args.serial):
            raise ConfigError(
                f"--serial must be given once per --device (got {len(args.serial)} for {len(args.device)})"
            )
        targets = [nvme.Target(path, serial) for path, serial in zip(args.device, args.serial, strict=True)]
        if args.action == "format":
            blocks = nvme.format_drives(targets, erase=args.erase)
            print(f"formatted {len(blocks)} drive(s) as set {blocks[0].set_id}")
        else:
            from gids.dataset import open_dataset

            blocks = nvme.load_dataset(open_dataset(args.dataset), targets, overwrite=args.overwrite)
            stored = sum(file.bytes for file in blocks[0].files)
            print(f"loaded dataset {blocks[0].dataset_id}: {len(blocks[0].files)} file(s), {stored:,} bytes")
    elif args.action == "info":
        from gids.nvme.raw import read_superblock

        block = read_superblock(args.device)
        print(f"set {block.set_id}, drive {block.position} of {block.drives}, serial {block.serial}")
        print(f"dataset {block.dataset_id or '(none)'}")
        for file in block.files:
            print(
                f"  {file.path}: {file.bytes:,} bytes at {file.offset}, unit {file.unit_bytes}, XXH64 {file.checksum}"
            )
    elif args.action == "map":
        extents = nvme.map_files(args.files)
        extents.save(args.out)
        count = sum(len(file.extents) for file in extents.files)
        print(f"{len(extents.files)} file(s) in {count} extent(s) on drive {extents.serial}, namespace {extents.nsid}")
    elif args.action == "facts":
        for fact in nvme.facts():
            mark = {True: "ok", False: "--", None: "  "}[fact.ok]
            print(f"{mark} {fact.name}: {fact.value}" + (f"  [{fact.hint}]" if fact.hint else ""))
    elif args.action == "give":
        print("\n".join(nvme.give_steps(args.address)))
    else:
        print("\n".join(nvme.take_back_steps(args.address)))
