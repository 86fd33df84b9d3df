"""Small knowledge graphs, and complete subgraphs of them in plain Python: the oracle."""

import numpy as np

from gids.convert.kg import KgOptions, convert_kg
from gids.convert.kg.text import TextOptions


def make(directory, triples, *, num_entities=None, reverse=True, identity=True):
    """Write triples (head, relation, tail) as a dataset."""
    rows = list(triples)
    if num_entities is not None:
        rows.append((num_entities - 1, 0, num_entities - 1))
    (directory / "graph.tsv").write_text("".join(f"{h}\t{r}\t{t}\n" for h, r, t in rows))
    options = KgOptions(reverse=reverse, identity=identity)
    return convert_kg(directory / "graph.tsv", directory / "kg", options=options, text=TextOptions(numeric=True))


def random_triples(num_entities, num_relations, num_triples, seed, hub=None):
    generator = np.random.default_rng(seed)
    limits = (num_entities, num_relations, num_entities)
    triples = np.column_stack([generator.integers(0, limit, num_triples) for limit in limits])
    if hub is not None:
        triples[:: hub[1], 0] = hub[0]
    return triples


def atoms(known):
    """Triples of every entity as head, in stored order."""
    indptr, rows = np.asarray(known.indptr()), np.asarray(known.triples()).tolist()
    return [[tuple(row) for row in rows[indptr[e] : indptr[e + 1]]] for e in range(known.num_entities)]


def subgraph(atom, roots, hops, removed=()):
    """Return (entities, distances, triples of node numbers) by breadth first search."""
    number, entities, distances, triples = {}, [], [], []

    def node(entity, distance):
        if entity not in number:
            number[entity] = len(entities)
            entities.append(entity)
            distances.append(distance)
        return number[entity]

    for root in roots:
        node(root, 0)
    done = 0
    for hop in range(hops):
        end = len(entities)
        while done < end:
            entity = entities[done]
            for relation, tail in atom[entity]:
                if (entity, relation, tail) not in removed:
                    triples.append((done, relation, node(tail, hop + 1)))
            done += 1
    return entities, distances, triples


def parts(subgraphs):
    """Split a batch of subgraphs into (entities, distances, triples) of each query, numbered from 0."""
    found = []
    for q in range(len(subgraphs)):
        nodes = slice(int(subgraphs.node_ptr[q]), int(subgraphs.node_ptr[q + 1]))
        edges = slice(int(subgraphs.edge_ptr[q]), int(subgraphs.edge_ptr[q + 1]))
        columns = (
            subgraphs.heads[edges] - nodes.start,
            subgraphs.relations[edges],
            subgraphs.tails[edges] - nodes.start,
        )
        triples = [tuple(row) for row in np.column_stack([column.numpy() for column in columns]).tolist()]
        found.append((subgraphs.entities[nodes].tolist(), subgraphs.distance[nodes].tolist(), triples))
    return found


def same(left, right):
    """Whether two batches of subgraphs have the same bits."""
    pairs = zip(left.tensors(), right.tensors(), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all()) for a, b in pairs)
