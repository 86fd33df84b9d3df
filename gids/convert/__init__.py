"""Other people's graphs to datasets: streaming, in bounded memory, resumable after a kill."""

from gids.convert.arrays import ArrayFiles
from gids.convert.formats import FORMATS, convert, detect
from gids.convert.graph import ConvertOptions

__all__ = ["FORMATS", "ArrayFiles", "ConvertOptions", "convert", "detect"]
