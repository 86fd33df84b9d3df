"""The record of long tests: parts one by one, each with the commit at which it ran."""

from tests.long_run import kept


def entry(*paths, commit):
    return {"paths": list(paths), "commit": commit}


def test_a_part_that_runs_again_replaces_itself_and_what_lies_within_it():
    file, other, both = "tests/ptx/test_counts.py", "tests/gids/cuda", ["tests/kernels", "tests/ptx"]
    record = kept(kept([], entry(file, commit="a")), entry(other, commit="a"))
    assert record == [entry(other, commit="a"), entry(file, commit="a")]
    record = kept(record, entry(*both, commit="b"))
    assert record == [entry(other, commit="a"), entry(*both, commit="b")]
    record = kept(record, entry("tests/ptx", commit="c"))  # a part of a part: the larger one ran at its own commit
    assert record == [entry(other, commit="a"), entry(*both, commit="b"), entry("tests/ptx", commit="c")]
    assert kept(record, entry("tests", commit="d")) == [entry("tests", commit="d")]


def test_a_name_that_begins_alike_is_another_part():
    record = [entry("tests/gids/cuda_more", commit="a")]
    assert kept(record, entry("tests/gids/cuda", commit="b"))[1:] == record
