"""Directive ``gids-commands``: the reference of the command line, from the parsers that the commands themselves use."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gids.cli import COMMANDS, NESTED


def parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield name, summary and parser of every command, nested ones after theirs."""
    for name, summary in COMMANDS.items():
        yield name, summary, parser_of(name, f"gids.cli.{name}", summary)
        for (command, nested), words in NESTED.items():
            if command == name:
                yield f"{name} {nested}", words, parser_of(f"{name} {nested}", f"gids.cli.{name}_{nested}", words)


def parser_of(name: str, module: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser that a command configures."""
    parser = argparse.ArgumentParser(prog=f"gids {name}", description=summary)
    importlib.import_module(module).configure(parser)
    return parser


def usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage on lines of at most 100 characters, whatever the terminal is."""
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    return parser.format_usage().removeprefix("usage: ").rstrip()


def arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield every argument as it is written, and its help with its default filled in."""
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if action.choices is not None and action.metavar is None:
            metavar = "{" + ",".join(str(choice) for choice in action.choices) + "}"
        takes = action.nargs != 0
        shown = (
            ", ".join(action.option_strings) + (f" {metavar}" if takes else "") if action.option_strings else metavar
        )
        yield (
            shown if action.option_strings or action.metavar else action.dest,
            formatter._expand_help(action) if (action.help) else "",
        )


def nested_parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield the subcommands that a parser has itself (``gids bench disk``)."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                yield f"{parser.prog.removeprefix('gids ')} {name}", helps.get(name, ""), inner


class Commands(SphinxDirective):
    """Write a section for every command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        found: list[nodes.Node] = []
        for name, summary, parser in parsers():
            found.append(self.section(name, summary, parser))
            found += [self.section(*inner) for inner in nested_parsers(parser)]
        return found

    def section(self, name: str, summary: str, parser: argparse.ArgumentParser) -> nodes.section:
        """Return title, summary, usage and arguments of one command."""
        section = nodes.section(ids=[nodes.make_id(f"gids-{name}")], names=[f"gids {name}"])
        section += nodes.title("", "", nodes.literal("", f"gids {name}"))
        if summary:
            section += nodes.paragraph("", summary[0].upper() + summary[1:] + ("" if summary.endswith(".") else "."))
        section += nodes.literal_block(text := usage(parser), text, language="text")
        entries = nodes.definition_list()
        for shown, words in arguments(parser):
            body = nodes.definition("", nodes.paragraph("", words)) if words else nodes.definition()
            entries += nodes.definition_list_item("", nodes.term("", "", nodes.literal("", shown)), body)
        if len(entries):
            section += entries
        return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("gids-commands", Commands)
    return {"parallel_read_safe": True}
