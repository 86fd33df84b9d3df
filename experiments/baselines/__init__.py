"""Everything that gids is compared with, behind one interface, and gids as each of the papers' systems."""

from experiments.baselines.contender import Contender
from experiments.baselines.dgl_memory import DglMemory
from experiments.baselines.dgl_mmap import DglMmapPlain, DglMmapRandom
from experiments.baselines.graphbolt import GraphBolt
from experiments.baselines.job import Job, Prepared
from experiments.baselines.pread import Pread
from experiments.baselines.pyg_memmap import PygMemmap
from experiments.baselines.systems import BamLike, Gids, GidsPaper, Ginex, GnnDrive

CONTENDERS: dict[str, type[Contender]] = {
    "DGL mmap, MADV_RANDOM": DglMmapRandom,
    "DGL mmap, plain": DglMmapPlain,
    "PyG memmap": PygMemmap,
    "GraphBolt": GraphBolt,
    "pread, one thread": Pread,
    "BaM": BamLike,
    "GNNDrive": GnnDrive,
    "Ginex": Ginex,
    "GIDS": GidsPaper,
    "gids": Gids,
    "DGL in memory": DglMemory,
}

__all__ = ["CONTENDERS", "Contender", "Job", "Prepared"]
