"""The CUDA store keeps the contract that the CPU's keeps, test for test, with reads through pinned staging."""

import contextlib

import torch

from gids.cuda.session import CudaSession, open_device
from gids.cuda.store import CudaTableStore
from gids.storage import RowReader
from tests.gids.tiers.store_contract import StoreContract, wait_until


class TestCuda(StoreContract):
    def open(self, table, storage, *, group_bytes, **options):
        device = open_device()
        self.plans, self.fetches = CudaSession(device), CudaSession(device)
        reader = RowReader(table, storage)
        options |= {"group_bytes": group_bytes, "ledger": self.ledger}
        return CudaTableStore(table, reader, self.plans, self.fetches, **options)

    def begun(self, store, batches, lookahead=()):
        """Return the store's thread the time to ask for memory: where there is some, it has it then."""
        ticket = super().begun(store, batches, lookahead)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: ticket.has_begun, seconds=0.5)
        return ticket

    def ids(self, rows):
        return self.plans.upload(rows.numpy())

    def rows(self, gathered):
        return torch.from_numpy(self.fetches.download(gathered))
