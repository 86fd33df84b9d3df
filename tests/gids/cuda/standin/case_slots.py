"""Engine gds reads rows to the slots where they stay: kvikio is given those addresses, and no kernel moves the rows."""

import importlib.util

import numpy as np
import pytest
import torch

import gids.cuda.gds as gds
from gids.cuda.arena import SlotArena
from gids.cuda.session import CudaSession, DeviceBudget, open_device
from gids.cuda.store import CudaTableStore
from gids.errors import DeviceError, StorageError
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable, Stripe
from gids.tiers import HostBuffer, HostRows, TableStore, popularity_levels

if importlib.util.find_spec("kvikio") is None:  # found, not imported: libcufile must be loaded before it
    pytest.skip("kvikio is not installed (make test installs it)", allow_module_level=True)

ROWS, STRIPE_ROWS = 1200, 24
POLICIES = ["window(3)", "belady", "gids(3)", "lru", "sieve", "random"]
OPTIONS = StorageOptions(merge_gap_bytes=0, max_io_bytes=64 << 10)


def make_table(directory, dtype, dim, files=1, header=0):
    """Write rows to files, behind a header as .npy files have one."""
    values = np.random.default_rng(dim).integers(0, 256, (ROWS, dim * np.dtype(dtype).itemsize), np.uint8)
    stripes = []
    for file in range(files):
        part = values[np.arange(ROWS) // STRIPE_ROWS % files == file]
        path = directory / f"rows{file}"
        path.write_bytes(bytes(header) + part.tobytes())
        stripes.append(Stripe(path, header, len(part)))
    rows = STRIPE_ROWS if files > 1 else ROWS
    return RowTable("t", dtype, dim, ROWS, values.shape[1], tuple(stripes), rows), values


def make_batches(seed=1, count=9):
    """Return batches of a few runs of neighbours and scattered rows, some of them again and again."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        runs = [np.arange(8 * at, 8 * at + 8) for at in rng.integers(0, ROWS // 8, 2)]
        batches.append(rng.permutation(np.unique(np.concatenate([*runs, rng.integers(0, ROWS, 12), np.arange(6)]))))
    return [torch.from_numpy(batch) for batch in batches]


class Spy:
    """Passes reads on to kvikio, and remembers which bytes of which file went where."""

    def __init__(self, file, number, seen):
        self._file, self._number, self._seen = file, number, seen

    def pread(self, buffer, size, file_offset):
        self._seen.append((self._number, file_offset, size, buffer.__cuda_array_interface__["data"][0]))
        return self._file.pread(buffer, size, file_offset)

    def close(self):
        self._file.close()


def begun(store, batches, lookahead):
    """Plan a group and begin to read all of it."""
    ticket = store.plan(batches, lookahead)
    ticket.begin()
    while not ticket.underway:
        store.advance()
    return ticket


class Setup:
    """A device store over engine gds, and what it asked of kvikio and of the device."""

    def __init__(self, table, capacity, policy, group_rows, hosted=0, popularity=None):
        device = open_device()
        self.sessions = [CudaSession(device), CudaSession(device)]
        self.launched = []
        launch = self.sessions[1].launch

        def spy(kernel, *arguments, **more):
            self.launched.append(kernel)
            launch(kernel, *arguments, **more)

        self.sessions[1].launch = spy
        host = torch.arange(0, 2 * hosted, 2)
        with RowReader(table, StorageOptions()) as reader:
            self.host = HostBuffer(HostRows(host), reader.read(host)) if hosted else None
        self.reads = []
        self.reader = gds.GdsReader(table, OPTIONS, self.sessions[1], 128 << 10, groups=2)
        self.spy(self.reader.transport)
        self.store = CudaTableStore(
            table, self.reader, *self.sessions, cache_rows=capacity, policy=policy, host_buffer=self.host, seed=3,
            group_bytes=group_rows * table.row_bytes, popularity=popularity,
        )  # fmt: skip
        self.store.group_account.limit = 1 << 40  # one thread plans and gathers here: it must not wait for itself

    def spy(self, transport):
        """Remember what is asked of kvikio."""
        transport.files = [Spy(file, number, self.reads) for number, file in enumerate(transport.files)]

    def run(self, batches, group=3):
        """Gather everything with two groups in flight; gives the batches as bytes."""
        plans, store, out = self.sessions[0], self.store, []
        rows = [plans.upload(batch.numpy()) for batch in batches]

        def start(at):
            return begun(store, rows[at : at + group], rows[at + group :])

        pending = start(0)
        for at in range(0, len(rows), group):
            following = start(at + group) if at + group < len(rows) else None
            arrays = [store.gather(pending, i) for i in range(len(pending.plan.batches))]
            out += [self.sessions[1].download(array).view(np.uint8) for array in arrays]
            pending = following
        return out

    def close(self):
        self.store.close()

    def inside(self, pointer, size):
        arena = self.store.arena.values
        return arena.pointer <= pointer and pointer + size <= arena.pointer + arena.nbytes


def check(table, values, capacity, policy, group_rows=ROWS, hosted=0, popularity=None):
    batches, setup = make_batches(), Setup(table, capacity, policy, group_rows, hosted, popularity)
    cpu = TableStore(
        table, RowReader(table, StorageOptions()), cache_rows=capacity, policy=policy, host_buffer=setup.host, seed=3,
        popularity=popularity, arena_rows=table.num_rows,
    )  # fmt: skip
    expected = []
    for at in range(0, len(batches), 3):
        ticket = begun(cpu, batches[at : at + 3], batches[at + 3 :])
        expected += [cpu.gather(ticket, i) for i in range(3)]
    for batch, mine, theirs in zip(batches, setup.run(batches), expected, strict=True):
        assert np.array_equal(mine, values[batch.numpy()])
        assert torch.equal(torch.from_numpy(mine).reshape(-1), theirs.contiguous().view(torch.uint8).reshape(-1))
    sources = ("requests", "cache", "host", "disk", "duplicates")
    assert [setup.store.counts()[name] for name in sources] == [cpu.counts()[name] for name in sources]
    assert np.array_equal(setup.store.planner.resident_rows(), cpu.planner.resident_rows().numpy())
    stats = setup.reader.stats()
    assert stats["rows"] == stats["rows_direct"] + stats["rows_staged"] == setup.store.counts()["disk"]
    if group_rows == ROWS:
        assert setup.store.arena.num_free == group_rows  # the cache has its slots, and every other one is free
    cpu.close()
    setup.close()
    return setup, stats


@pytest.mark.parametrize("capacity", [0, 40, 1000])
@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_a_page_stay_where_they_were_read_to(tmp_path, policy, capacity):
    table, values = make_table(tmp_path, "float32", 1024)
    setup, stats = check(table, values, capacity, policy, hosted=10 if capacity == 40 else 0)
    assert stats["rows_staged"] == 0
    assert stats["reads"] == len(setup.reads) < stats["rows"]  # neighbours came with one read
    assert all(setup.inside(pointer, size) for _, _, size, pointer in setup.reads)
    assert not {kernel for kernel in setup.launched if kernel.startswith(("admit_rows", "unpack"))}
    assert setup.store.rows_copied == 0
    address = {}  # of each row, where it was read to last
    for _, offset, size, pointer in setup.reads:
        address |= {offset // 4096 + k: pointer + 4096 * k for k in range(size // 4096)}
    resident, arena = setup.store.planner.resident_rows(), setup.store.arena
    slots = np.flatnonzero(resident >= 0)
    assert (len(slots) > 0) == (setup.store.rows_taken_over > 0) == (capacity > 0)
    assert (arena.place_of(slots) * 4096 + arena.values.pointer).tolist() == [address[r] for r in resident[slots]]
    held = setup.sessions[1].download(arena.values).reshape(-1, 4096)[arena.place_of(slots)]
    assert np.array_equal(held, values[resident[slots]])


@pytest.mark.parametrize(
    ("dtype", "dim", "files", "header", "straight"),
    [
        ("float16", 2048, 3, 0, "all"),
        ("float32", 256, 1, 0, "some"),
        ("float32", 128, 1, 0, "some"),
        ("float32", 384, 3, 0, "some"),  # eight rows are three pages
        ("float32", 100, 1, 0, "none"),
        ("float32", 1024, 1, 128, "none"),  # as in a .npy file
        ("float16", 256, 2, 4096, "some"),
    ],
)
def test_what_is_not_whole_pages_goes_by_way_of_a_region(tmp_path, dtype, dim, files, header, straight):
    table, values = make_table(tmp_path, dtype, dim, files, header)
    setup, stats = check(table, values, 60, "window(3)", hosted=5)
    assert (stats["rows_direct"] > 0) == (straight != "none")
    assert (stats["rows_staged"] > 0) == (straight != "all")
    assert sum(not setup.inside(pointer, size) for _, _, size, pointer in setup.reads) == stats["reads_staged"]
    ends = [(table.stripes[file].path.stat().st_size, offset + size) for file, offset, size, _ in setup.reads]
    assert not any(offset % 4096 or pointer % 4096 for _, offset, _, pointer in setup.reads)
    assert not any(end % 4096 and end != size for size, end in ends)
    assert setup.store.rows_copied == 0  # unpacked to their slots, and taken over there
    assert setup.store.rows_taken_over > 0


def test_popularity_decides_what_stays_beyond_the_window(tmp_path):
    table, values = make_table(tmp_path, "float32", 32)
    levels = popularity_levels(np.arange(ROWS)[::-1] ** 2)
    ranked, _ = check(table, values, 40, "window(1)", popularity=levels)
    counted, _ = check(table, values, 40, "window(1)")
    assert ranked.store.planner.resident_rows().mean() < counted.store.planner.resident_rows().mean()


def test_a_group_larger_than_expected_takes_more_memory(tmp_path):
    table, values = make_table(tmp_path, "float32", 1024)
    setup, _ = check(table, values, 40, "window(3)", group_rows=20)
    assert setup.store.rows_copied > 0
    assert setup.store.rows_taken_over > 0


def test_a_failed_read_leaves_the_store_usable(tmp_path):
    table, values = make_table(tmp_path, "float32", 1024)
    batches, setup = make_batches(), Setup(table, 40, "window(3)", ROWS)
    files = setup.reader.transport.files
    file = files[0]

    class Broken:
        def pread(self, *_):
            class Future:
                def get(self):
                    raise RuntimeError("POSIX error on pread: Input/output error")

            return Future()

    files[0] = Broken()
    with pytest.raises(StorageError, match=r"gds read failed \(POSIX error"):
        setup.run(batches)
    files[0] = file
    setup.store.reset()
    assert setup.store.arena.num_free == ROWS
    for batch, got in zip(batches, setup.run(batches), strict=True):
        assert np.array_equal(got, values[batch.numpy()])
    setup.close()


def test_memory_that_cannot_be_registered_is_reported(tmp_path, monkeypatch):
    import kvikio.buffer

    def refuse(_):
        raise RuntimeError("cuFileBufRegister: invalid argument")

    monkeypatch.setattr(kvikio.buffer, "memory_register", refuse)
    table, values = make_table(tmp_path, "float32", 1024)
    setup, stats = check(table, values, 40, "lru")
    assert "cuFile did not register" in setup.reader.notes
    assert stats["rows_direct"] == 0  # through regions, rather than through cuFile's own buffers


def test_kvikio_is_told_to_use_gds_for_small_reads_on_several_threads(tmp_path):
    import kvikio.defaults

    table, _ = make_table(tmp_path, "float32", 16)
    session = CudaSession(open_device())
    reader = gds.GdsReader(table, StorageOptions(queue_depth=5, max_io_bytes=1 << 20), session, 1 << 20, groups=1)
    assert kvikio.defaults.get("bounce_buffer_size") <= 1 << 20
    assert kvikio.defaults.get("gds_threshold") == 0
    assert kvikio.defaults.get("num_threads") >= 5
    reader.close()


def test_the_arena_counts_against_the_budget(fault, live):
    budget = DeviceBudget(100 << 10, "device_budget")
    session, before = CudaSession(open_device(), budget), live()["pieces"]
    with pytest.raises(DeviceError, match="device_budget must have room"):
        SlotArena(session, 10, 20, 4096)
    fault("cuMemAlloc", 1, 2)
    with pytest.raises(DeviceError, match=r"device memory of gids stand-in .* must have .* free .*OUT_OF_MEMORY"):
        SlotArena(session, 10, 10, 4096)
    arena = SlotArena(session, 10, 10, 4096)
    assert arena.values.pointer % 4096 == 0
    assert budget.used >= 20 * 4096
    del arena
    assert live()["pieces"] == before
    assert budget.used == 0
