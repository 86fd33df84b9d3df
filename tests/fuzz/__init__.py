"""Bytes of strangers for everything that parses files: see targets.py for what, run.py for fuzzing by coverage."""
