"""Other people's knowledge graphs to datasets: text, N-Triples, OGB's wikikg2, WordNet, and inductive splits of a dataset."""

from gids.convert.kg.formats import KG_FORMATS, convert_kg, detect_kg
from gids.convert.kg.write import KgOptions, Piece, TripleSource, write_triples

__all__ = ["KG_FORMATS", "KgOptions", "Piece", "TripleSource", "convert_kg", "detect_kg", "write_triples"]
