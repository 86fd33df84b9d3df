"""Bytes of strangers for everything that parses files: targets.py says what, test_fuzz.py and run.py try it."""
