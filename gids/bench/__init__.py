"""Benchmarks behind ``gids bench NAME``: contenders alternate in one run, and every promise is a bar with its floor."""

from gids.bench.harness import Bar, Contender, Measurement, Report, alternate

__all__ = ["Bar", "Contender", "Measurement", "Report", "alternate"]
