"""Names that every part shares: node types, edge types, and which table of a dataset is meant."""

from __future__ import annotations

from typing import NamedTuple

#: ``(source node type, name, destination node type)``.
EdgeType = tuple[str, str, str]
#: Names of the only types of a homogeneous graph, as in DGL.
NODE = "_N"
#: The same for edges.
EDGE: EdgeType = (NODE, "_E", NODE)


class TableKey(NamedTuple):
    """Which feature table of a dataset is meant; equal to the plain pair ``(type, name)``.

    Attributes
    ----------
    type : str or EdgeType
        A node type, or an edge type: ``(source, name, destination)``.
    name : str
        Name of the table, e.g. ``"feat"``.
    """

    type: str | EdgeType
    name: str

    @property
    def is_edge(self) -> bool:
        """Whether the rows belong to edges."""
        return not isinstance(self.type, str)

    def __str__(self) -> str:
        return f"{self.type if isinstance(self.type, str) else ':'.join(self.type)}/{self.name}"
