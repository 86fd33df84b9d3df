"""Long windows whose sampled batches wait on disk: the same batches, little memory, space used again, errors that say where."""

import errno
import os

import pytest
import torch

import gids
from gids import ConfigError, StorageError, generate
from gids.runtime.spill import SpillFile
from gids.sampling import NeighborSampler, SampleKey, Topology
from tests.gids.loader.conftest import same


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("spill") / "g"
    return generate.communities(path, num_nodes=4000, degree=10, dim=64, num_classes=4, train=0.5, seed=1)


def payload(number):
    shared = torch.arange(number, number + 5)
    return {"a": [shared, torch.rand(number + 1, 3)], "b": (shared, "text"), "none": torch.empty(0)}


def test_what_is_stored_comes_back(tmp_path):
    file, kept = SpillFile(tmp_path), torch.arange(9)
    value = payload(4) | {"kept": kept}
    spilled = file.store(value, {id(kept)})
    assert spilled.payload["kept"] is kept
    assert spilled.length == 5 * 8 + 5 * 3 * 4
    found = file.load(spilled)
    assert torch.equal(found["a"][1], value["a"][1])
    assert torch.equal(found["a"][0], value["a"][0])
    assert found["a"][0] is found["b"][0]  # one tensor stays one
    assert found["kept"] is kept
    assert found["b"][1] == "text"
    file.close()
    assert list(tmp_path.iterdir()) == []  # it never had a name


def test_space_is_used_again_and_nothing_overlaps(tmp_path):
    file, waiting, most = SpillFile(tmp_path), [], 0
    sizes = [7, 3, 20, 1, 9, 14, 2, 0, 0, 30, 5, 5, 8, 1] * 8
    for number, size in enumerate(sizes):
        value = torch.full((size,), number)
        waiting.append((number, size, file.store(value, set())))
        most = max(most, waiting[-1][2].offset + waiting[-1][2].length)
        if len(waiting) > 4 + number % 3:
            for _ in range(2):
                due, count, spilled = waiting.pop(0)
                assert torch.equal(file.load(spilled), torch.full((count,), due))
    assert most < 8 * sum(sizes) / 4
    file.close()


def test_short_writes_and_reads_and_many_tensors(tmp_path, monkeypatch):
    write, read = os.pwritev, os.preadv
    # As a busy kernel may: half of the first piece at a time.
    monkeypatch.setattr("gids.runtime.spill.os.pwritev", lambda f, v, at: write(f, [v[0][: len(v[0]) // 2 + 1]], at))
    monkeypatch.setattr("gids.runtime.spill.os.preadv", lambda f, v, at: read(f, [v[0][: len(v[0]) // 2 + 1]], at))
    file, value = SpillFile(tmp_path), payload(4)
    found = file.load(file.store(value, set()))
    assert torch.equal(found["a"][0], value["a"][0])
    assert torch.equal(found["a"][1], value["a"][1])
    monkeypatch.undo()
    many = [torch.full((2,), number) for number in range(1500)]  # more than one call takes
    assert [int(one[1]) for one in file.load(file.store(many, set()))] == list(range(1500))
    file.close()


def test_a_sample_survives(dataset, tmp_path):
    graph, sampler = Topology.from_dataset(dataset), NeighborSampler([4, 4], edge_ids=True)
    sample, file = sampler.sample(graph, torch.arange(50), SampleKey()), SpillFile(tmp_path)
    found = file.load(file.store(sample, set()))
    assert torch.equal(found.input_nodes["_N"], sample.input_nodes["_N"])
    for one, other in zip(found.blocks, sample.blocks, strict=True):
        assert all(torch.equal(one.src[e], other.src[e]) for e in other.src)
        assert all(torch.equal(one.edge_ids[e], other.edge_ids[e]) for e in other.src)
    file.close()


def loader(dataset, **options):
    pipeline = gids.PipelineOptions(**({"window": 24} | options.pop("pipeline", {})))
    memory = gids.MemoryOptions(policy="belady", cache="100KiB", host_buffer=0)
    asked = {"fanouts": [5, 5], "batch_size": 50, "budget": "32MiB"} | options
    return gids.Loader(dataset, "train", pipeline=pipeline, memory=memory, **asked)


def test_batches_and_hits_are_those_of_a_window_in_memory(dataset, tmp_path):
    with loader(dataset) as plain, loader(dataset, pipeline={"spill_samples": tmp_path}) as spilling:
        for each in (plain, spilling):
            each.prepare()  # stores are replaced when it is done, and begin with an empty cache
        for number in range(2):
            with spilling.tracing(tmp_path / f"trace{number}.json"):
                for expected, got in zip(plain, spilling, strict=True):
                    assert same(expected, got)
            names = [event["name"] for event in spilling.trace.as_dict()["traceEvents"]]
            assert names.count("spill") == names.count("load") > 0
        one, two = (next(iter(found.stats().tables.values())) for found in (plain, spilling))
        assert two.cache == one.cache > 0
        assert spilling.stats().usage["samples"].peak < plain.stats().usage["samples"].peak
        assert spilling.stats().memory.samples < plain.stats().memory.samples
        iterator = iter(spilling)  # an epoch left early leaves nothing behind
        next(iterator)
        del iterator
        list(spilling)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json"]


def test_no_window_is_longer_than_the_epoch(dataset):
    with loader(dataset, pipeline={"window": 100_000}) as long:
        assert long.division.window == len(long) == 40
        assert len(list(long)) == 40
    with loader(dataset, pipeline={"window": None, "spill_samples": True}) as chosen:
        assert chosen.division.window == 40  # 12 bytes for each row of a batch, 8 for each of the table
        assert chosen.division.window_map_bytes == 8 * 4000


def test_a_full_disk_is_told(dataset, tmp_path, monkeypatch):
    write = os.pwritev

    def full(descriptor, data, offset):
        if offset > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr("gids.runtime.spill.os.pwritev", full)
    with loader(dataset, pipeline={"spill_samples": tmp_path}) as spilling:
        with pytest.raises(StorageError, match="spilling failed") as caught:
            list(spilling)
        assert caught.value.errno == errno.ENOSPC
        monkeypatch.undo()
        spilling.set_epoch(0)
        assert len(list(spilling)) == 40
    with pytest.raises(ConfigError, match="spill_samples must be a directory"):
        loader(dataset, pipeline={"spill_samples": tmp_path / "none"})
