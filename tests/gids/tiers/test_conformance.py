"""The store of the CPU keeps the contract of gids/tiers/contract.py; the CUDA store's run is in standin/case_store.py."""

from gids.storage import RowReader
from gids.tiers import TableStore

from .store_contract import StoreContract


class TestCpu(StoreContract):
    #: Parts in which the table is swept: with more than one, groups share reads.
    regions = 1

    def open(self, table, storage, *, group_bytes, **options):
        arena_rows = max(1, group_bytes // table.row_bytes)
        reader = RowReader(table, storage)
        return TableStore(table, reader, arena_rows=arena_rows, regions=self.regions, ledger=self.ledger, **options)

    def ids(self, rows):
        return rows

    def rows(self, gathered):
        return gathered


class TestSwept(TestCpu):
    regions = 4
