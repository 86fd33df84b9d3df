"""Storage that fails under a whole loader: the error surfaces, nothing hangs, and the loader goes on or is closed."""

import errno
import time

import numpy as np
import pytest
import torch

from gids.errors import StorageError
from gids.generate import communities
from gids.sampling import Topology
from gids.storage import RowReader, StorageOptions
from gids.storage.options import FaultOptions

from .conftest import make, same

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Every batch is read from disk, in several groups.
FROM_DISK = {"cache": 0, "host_buffer": 0, "groups": "60KiB", "sweep_batches": 2, "window": 0}


def faulty(engine="auto", timeout_s=None, **fault):
    """About 55 requests a batch: neighbours do not merge over gaps, and a read ends after 4 KiB.

    Only what is stuck is to time out, not what a busy disk is slow with.
    """
    timeout_s = timeout_s or (1.5 if "stuck_at" in fault else 60)
    small = {"threads": 1, "staging_bytes": 1 << 20, "merge_gap_bytes": 0, "max_io_bytes": 4096}
    return StorageOptions(engine=engine, timeout_s=timeout_s, fault=FaultOptions(**fault), **small)


@pytest.fixture(scope="module")
def reference(graph):
    with make(graph) as loader:
        return [list(loader), list(loader)]


@pytest.mark.parametrize("engine", ["uring", "pread"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"fail_at": 150, "error_number": errno.EIO}, "Input/output error"),
        ({"short_at": 150, "short_bytes": 0}, "the file ends before its rows do"),
        ({"stuck_at": 150}, "timed out"),
    ],
)
def test_a_failed_read_surfaces_and_the_next_epoch_is_whole(graph, reference, engine, fault, message):
    with make(graph, storage=faulty(engine, **fault), **FROM_DISK) as loader:
        loader.prepare()
        begin, delivered = time.monotonic(), []
        with pytest.raises(StorageError, match=message) as caught:
            delivered.extend(loader)
        assert time.monotonic() - begin < 60
        assert caught.value.path.endswith("feat.bin")
        assert 0 < len(delivered) < len(reference[0]), "what came before the failure was delivered"
        assert all(same(a, b) for a, b in zip(delivered, reference[0], strict=False))
        assert loader.state_dict()["batches_done"] == len(delivered), (
            "it knows what was delivered until the next iter()"
        )
        assert all(same(a, b) for a, b in zip(loader, reference[1], strict=True)), "no stale batch, none missing"


def test_the_batches_that_a_failure_left_out_can_be_had(graph, reference):
    with make(graph, storage=faulty(fail_at=150), **FROM_DISK) as loader:
        delivered, states = [], [loader.state_dict()]

        def noting(batches):
            for batch in batches:
                states.append(loader.state_dict())
                yield batch

        with pytest.raises(StorageError):
            delivered.extend(noting(loader))
        loader.load_state_dict(states[-1])
        delivered += list(loader)
    assert all(same(a, b) for a, b in zip(delivered, reference[0], strict=True))


@pytest.mark.parametrize("fault", [{"short_at": 150, "short_bytes": 512}, {"delay_us": 300, "reorder": True}])
def test_what_can_be_mended_is_not_an_error(graph, reference, fault):
    with make(graph, storage=faulty(**fault), **FROM_DISK) as loader:
        assert all(same(a, b) for a, b in zip(loader, reference[0], strict=True))


def test_a_loader_whose_reads_are_stuck_closes_long_before_their_time_out(graph):
    loader = make(graph, storage=faulty(stuck_at=150, timeout_s=60), **FROM_DISK)
    running = iter(loader)
    next(running)
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 30


def test_a_failure_while_the_host_buffer_is_filled_is_raised_by_prepare(graph, reference):
    broken = make(graph, storage=faulty(fail_at=0), host_buffer="60KiB", cache=0, groups="100KiB")
    with broken, pytest.raises(StorageError, match="Input/output error"):
        broken.prepare()
    with make(graph, host_buffer="60KiB", cache=0, groups="100KiB") as loader:
        assert all(same(a, b) for a, b in zip(loader, reference[0], strict=True)), "not one row of the failed fill"


def test_a_failure_in_the_topology_on_disk_surfaces(graph, reference):
    options = {"topology": "disk", "topology_budget": 0, "features": None}
    with make(graph, storage=faulty(), **options) as loader:
        (counts,) = loader.prepare().topology.disk_stats().values()
    with make(graph, storage=faulty(fail_at=counts["reads"] + 20), **options) as loader:
        with pytest.raises(StorageError, match="Input/output error") as caught:
            list(loader)
        assert caught.value.path.endswith("indices.bin")
        again = list(loader)
        assert [len(b.input_nodes) for b in again] == [len(b.input_nodes) for b in reference[1]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A graph whose rows are a page each: they are read to where they belong, see gids.storage."""
    dataset = communities(tmp_path_factory.mktemp("pages") / "g", num_nodes=4000, dim=1024, num_classes=5)
    Topology.from_dataset(dataset)  # what this maps stays open with the dataset
    return dataset


#: As above, for rows of 4 KiB.
PAGES_FROM_DISK = FROM_DISK | {"groups": "24MiB"}


@pytest.fixture
def placed(monkeypatch):
    """Reads that went straight to their place, by the readers that were closed."""
    counts = []
    close = RowReader.close
    monkeypatch.setattr(RowReader, "close", lambda reader: (counts.append(reader.stats()["placed"]), close(reader)))
    return counts


def test_epochs_of_page_rows_that_are_left_early_leave_nothing_for_the_next(pages, placed):
    table = torch.from_numpy(np.fromfile(pages.feature_table().stripes[0].path, np.float32).reshape(-1, 1024))
    storage = faulty(delay_us=3000, reorder=True)
    with make(pages, budget="96MiB", storage=storage, **PAGES_FROM_DISK) as loader:
        for batches in (1, 3, None, 2, None):
            for number, batch in enumerate(loader):
                assert torch.equal(batch.x, table[batch.input_nodes])
                if number + 1 == batches:
                    break
    assert sum(placed) > 1000


@pytest.mark.parametrize("engine", ["uring", "pread"])
def test_a_page_row_that_never_comes_ends_the_loader_with_an_error(pages, engine):
    with make(pages, budget="96MiB", storage=faulty(engine, stuck_at=1500), **PAGES_FROM_DISK) as loader:
        for message in ("timed out", "must be closed: 1 reads that timed out may still write"):
            with pytest.raises(StorageError, match=message):
                list(loader)
