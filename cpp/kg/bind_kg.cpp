// Python side of cpp/kg: names, parsers and sorting of triples, extraction of subgraphs, slices.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind.hpp"
#include "errors.hpp"
#include "kg/names.hpp"
#include "kg/parse.hpp"
#include "kg/slicer.hpp"
#include "kg/subgraph.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> hand_over(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return {owned->data(), {owned->size()}, owner};
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> hand_over(Array<T>&& array) {
    auto* owned = new Array<T>(std::move(array));
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Array<T>*>(p); });
    return {owned->data(), {static_cast<size_t>(owned->size())}, owner};
}

nb::tuple hand_over(kg::Subgraphs&& g) {
    return nb::make_tuple(hand_over(std::move(g.node_ptr)), hand_over(std::move(g.edge_ptr)),
                          hand_over(std::move(g.entities)), hand_over(std::move(g.distance)),
                          hand_over(std::move(g.heads)), hand_over(std::move(g.relations)),
                          hand_over(std::move(g.tails)), hand_over(std::move(g.wanted)));
}

template <class T>
std::span<const T> span_of(const ConstVector<T>& array) {
    return {array.data(), array.size()};
}

const kg::Triple* triples_of(const ConstVector<int32_t>& array) {
    return reinterpret_cast<const kg::Triple*>(array.data());
}

// The arguments that every way of extraction shares.
struct Queries {
    ConstVector<int32_t> roots;
    int64_t roots_per_query;
    int hops;
    std::optional<ConstVector<int32_t>> removed;
    int64_t max_triples;
    std::optional<ConstVector<int32_t>> wanted;

    kg::QueryBatch batch() const {
        if (roots_per_query < 1 || static_cast<int64_t>(roots.size()) % roots_per_query != 0)
            throw ConfigError("roots must be " + std::to_string(roots_per_query) + " for every query");
        const auto count = roots.size() / static_cast<size_t>(roots_per_query);
        if (removed && removed->size() != count * 4)
            throw ConfigError("removed must have four numbers for every query");
        if (wanted && wanted->size() != count) throw ConfigError("wanted must have an entity for every query");
        const std::span<const int32_t> none;
        return {span_of(roots), roots_per_query,
                hops,           removed ? span_of(*removed) : none,
                max_triples,    wanted ? span_of(*wanted) : none};
    }
};

template <class Run>
nb::tuple extract(const Run& run) {
    kg::Subgraphs result;
    {
        const nb::gil_scoped_release nogil;
        result = run();
    }
    return hand_over(std::move(result));
}

std::string_view bytes_view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

kg::ParseOptions parse_options(bool n_triples, const std::string& separator, bool numeric, bool skip_header,
                               bool keep_literals, const std::string& columns) {
    if (separator.size() != 1) throw ConfigError("separator must be one character (got '" + separator + "')");
    return {n_triples ? kg::TextFormat::kNTriples : kg::TextFormat::kSeparated,
            separator[0],
            numeric,
            skip_header,
            keep_literals,
            columns};
}

void bind_names(nb::module_& m) {
    nb::class_<kg::NameIndex>(m, "NameIndex", "Names numbered by first occurrence.")
        .def(nb::init<>())
        .def(
            "add", [](kg::NameIndex& self, const nb::bytes& name) { return self.find_or_add(bytes_view(name)); },
            "name"_a, "Return the number of a name; a new one gets the next.")
        .def(
            "find", [](const kg::NameIndex& self, const nb::bytes& name) { return self.find(bytes_view(name)); },
            "name"_a, "Return the number of a name, or -1.")
        .def("__len__", &kg::NameIndex::size)
        .def("text",
             [](const kg::NameIndex& self) {
                 return hand_over(std::vector<uint8_t>(self.text().begin(), self.text().end()));
             })
        .def("ends", [](const kg::NameIndex& self) { return hand_over(std::vector<int64_t>(self.ends())); })
        .def(
            "order", [](const kg::NameIndex& self) { return hand_over(self.order()); },
            "Return the ids in the order of their names' bytes.");
    nb::class_<kg::TripleParser>(m, "TripleParser", "Triples of one text file, block by block.")
        .def(
            "__init__",
            [](kg::TripleParser* self, std::string path, kg::NameIndex& entities, kg::NameIndex& relations,
               bool n_triples, const std::string& separator, bool numeric, bool skip_header, bool keep_literals,
               const std::string& columns) {
                new (self) kg::TripleParser(
                    std::move(path), parse_options(n_triples, separator, numeric, skip_header, keep_literals, columns),
                    entities, relations);
            },
            "path"_a, "entities"_a, "relations"_a, "n_triples"_a, "separator"_a, "numeric"_a, "skip_header"_a,
            "keep_literals"_a, "columns"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def(
            "feed",
            [](kg::TripleParser& self, const nb::bytes& text) {
                std::vector<int32_t> out;
                const std::string_view view = bytes_view(text);
                {
                    const nb::gil_scoped_release nogil;
                    self.feed(view, out);
                }
                return hand_over(std::move(out));
            },
            "text"_a, "Return (head, relation, tail) of every whole line so far, flat.")
        .def("finish",
             [](kg::TripleParser& self) {
                 std::vector<int32_t> out;
                 self.finish(out);
                 return hand_over(std::move(out));
             })
        .def_prop_ro("skipped_literals", &kg::TripleParser::skipped_literals);
}

#define GIDS_I32 "NDArray[numpy.int32]"
#define GIDS_I64 "NDArray[numpy.int64]"
#define GIDS_QUERY "queries: KgQueries, pool: ThreadPool | None"
#define GIDS_SUBGRAPHS                                                                                            \
    "tuple[" GIDS_I64 ", " GIDS_I64 ", " GIDS_I32 ", NDArray[numpy.uint8], " GIDS_I32 ", " GIDS_I32 ", " GIDS_I32 \
    ", " GIDS_I64 "]"

void bind_extraction(nb::module_& m) {
    nb::class_<kg::AtomCache>(m, "AtomCache", "Atoms that stay in memory.")
        .def(
            "__init__",
            [](kg::AtomCache* self, int64_t num_entities, ConstVector<int32_t> entities, ConstVector<int64_t> indptr,
               ConstVector<int32_t> triples) {
                new (self) kg::AtomCache(num_entities, span_of(entities), indptr.data(), triples_of(triples));
            },
            "num_entities"_a, "entities"_a, "indptr"_a, "triples"_a, nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>());
    nb::class_<kg::AtomGather>(m, "AtomGather", "Atoms that are read hop by hop.")
        .def(
            "__init__",
            [](kg::AtomGather* self, ConstVector<int64_t> indptr, const kg::AtomCache* cache) {
                new (self) kg::AtomGather(static_cast<int64_t>(indptr.size()) - 1, indptr.data(), cache);
            },
            "indptr"_a, "cache"_a.none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def(
            "start", [](kg::AtomGather& self, ConstVector<int32_t> roots) { self.start(span_of(roots)); }, "roots"_a,
            "Forget everything and begin with these entities.")
        .def(
            "want", [](kg::AtomGather& self, ConstVector<int32_t> entities) { self.want(span_of(entities)); },
            "entities"_a, "Make those of the entities the frontier that are not known yet.")
        .def("blocks", [](const kg::AtomGather& self) { return hand_over(std::vector<int64_t>(self.blocks())); })
        .def("frontier", [](const kg::AtomGather& self) { return hand_over(std::vector<int32_t>(self.frontier())); })
        .def(
            "take",
            [](kg::AtomGather& self, ConstVector<int32_t> data) {
                if (data.size() != self.blocks().size() * 2 * kg::kBlockTriples)
                    throw ConfigError("data must hold the blocks asked for");
                self.take(triples_of(data));
            },
            "data"_a, "Take in the blocks; data must live until the next start() or clear().")
        .def("advance", &kg::AtomGather::advance, nb::call_guard<nb::gil_scoped_release>())
        .def("clear", &kg::AtomGather::clear);
    nb::class_<Queries>(m, "KgQueries", "Roots of queries, hops, and triples that queries must not see.")
        .def(
            "__init__",
            [](Queries* self, ConstVector<int32_t> roots, int64_t roots_per_query, int hops,
               std::optional<ConstVector<int32_t>> removed, int64_t max_triples,
               std::optional<ConstVector<int32_t>> wanted) {
                new (self) Queries{std::move(roots),   roots_per_query, hops,
                                   std::move(removed), max_triples,     std::move(wanted)};
            },
            "roots"_a, "roots_per_query"_a, "hops"_a, "removed"_a.none(), "max_triples"_a, "wanted"_a = nb::none());
    nb::class_<kg::Extractor>(m, "KgExtractor", "Complete subgraphs of queries.")
        .def(nb::init<int64_t, int>(), "num_entities"_a, "workers"_a)
        .def(
            "from_memory",
            [](kg::Extractor& self, const Queries& queries, ConstVector<int64_t> indptr, ConstVector<int32_t> triples,
               ThreadPool* pool) {
                const auto batch = queries.batch();
                return extract([&] { return self.from_memory(batch, indptr.data(), triples_of(triples), pool); });
            },
            "queries"_a, "indptr"_a, "triples"_a, "pool"_a.none(),
            nb::sig("def from_memory(self, queries: KgQueries, indptr: " GIDS_I64 ", triples: " GIDS_I32
                    ", pool: ThreadPool | None) -> " GIDS_SUBGRAPHS))
        .def(
            "from_gather",
            [](kg::Extractor& self, const Queries& queries, const kg::AtomGather& gather, ThreadPool* pool) {
                const auto batch = queries.batch();
                return extract([&] { return self.from_gather(batch, gather, pool); });
            },
            "queries"_a, "gather"_a, "pool"_a.none(),
            nb::sig("def from_gather(self, queries: KgQueries, gather: AtomGather, pool: ThreadPool | None) "
                    "-> " GIDS_SUBGRAPHS))
        .def(
            "from_slices",
            [](kg::Extractor& self, const Queries& queries, ConstVector<int32_t> rows, int64_t slice_words,
               ConstVector<int64_t> ptr, ConstVector<int32_t> slices, ConstVector<int64_t> triples, ThreadPool* pool) {
                const auto batch = queries.batch();
                if (ptr.size() != batch.roots.size() + 1 || triples.size() != batch.roots.size())
                    throw ConfigError("ptr and triples must have one entry for every root");
                const kg::SliceBatch parts{span_of(rows), slice_words, span_of(ptr), span_of(slices), span_of(triples)};
                return extract([&] { return self.from_slices(batch, parts, pool); });
            },
            "queries"_a, "rows"_a, "slice_words"_a, "ptr"_a, "slices"_a, "triples"_a, "pool"_a.none(),
            nb::sig("def from_slices(self, queries: KgQueries, rows: " GIDS_I32 ", slice_words: int, ptr: " GIDS_I64
                    ", slices: " GIDS_I32 ", triples: " GIDS_I64 ", pool: ThreadPool | None) -> " GIDS_SUBGRAPHS))
        .def(
            "from_triples",
            [](kg::Extractor& self, const Queries& queries, ConstVector<int32_t> triples, ConstVector<int64_t> ranges,
               ThreadPool* pool) {
                const auto batch = queries.batch();
                if (static_cast<int64_t>(ranges.size()) != 2 * batch.size())
                    throw ConfigError("ranges must have a begin and an end for every query");
                return extract([&] { return self.from_triples(batch, span_of(triples), span_of(ranges), pool); });
            },
            "queries"_a, "triples"_a, "ranges"_a, "pool"_a.none(),
            nb::sig("def from_triples(self, queries: KgQueries, triples: " GIDS_I32 ", ranges: " GIDS_I64
                    ", pool: ThreadPool | None) -> " GIDS_SUBGRAPHS));
}

void bind_slicer(nb::module_& m) {
    nb::class_<kg::Slicer>(m, "Slicer", "Divides subgraphs into slices that others can use again.")
        .def(
            "__init__",
            [](kg::Slicer* self, ConstVector<int64_t> indptr, int64_t slice_words, double alpha, int near_hops,
               bool reuse) {
                new (self) kg::Slicer(static_cast<int64_t>(indptr.size()) - 1, indptr.data(),
                                      {slice_words, alpha, near_hops, reuse});
            },
            "indptr"_a, "slice_words"_a, "alpha"_a, "near_hops"_a, "reuse"_a, nb::keep_alive<1, 2>())
        .def(
            "slice",
            [](kg::Slicer& self, kg::Extractor& extractor, const Queries& queries, const kg::AtomGather& gather,
               ThreadPool* pool) {
                std::vector<int64_t> ptr, triples;
                std::vector<int32_t> slices;
                const auto batch = queries.batch();
                {
                    const nb::gil_scoped_release nogil;
                    self.slice_all(extractor.from_gather(batch, gather, pool), ptr, slices, triples);
                }
                return nb::make_tuple(hand_over(std::move(ptr)), hand_over(std::move(slices)),
                                      hand_over(std::move(triples)));
            },
            "extractor"_a, "queries"_a, "gather"_a, "pool"_a.none(),
            nb::sig("def slice(self, extractor: KgExtractor, queries: KgQueries, gather: AtomGather, "
                    "pool: ThreadPool | None) -> tuple[" GIDS_I64 ", " GIDS_I32 ", " GIDS_I64 "]"),
            "Return (ptr, slices, triples) of the queries; gather must hold all atoms of one hop less.")
        .def(
            "atoms",
            [](const kg::Slicer& self, int64_t begin, int64_t end) {
                std::vector<int64_t> ptr(1, 0);
                std::vector<int32_t> atoms, parts;
                for (int64_t s = begin; s < end; ++s) {
                    const auto members = self.atoms(s);
                    atoms.insert(atoms.end(), members.begin(), members.end());
                    ptr.push_back(static_cast<int64_t>(atoms.size()));
                    parts.push_back(self.part(s));
                }
                return nb::make_tuple(hand_over(std::move(ptr)), hand_over(std::move(atoms)),
                                      hand_over(std::move(parts)));
            },
            "begin"_a, "end"_a,
            nb::sig("def atoms(self, begin: int, end: int) -> tuple[" GIDS_I64 ", " GIDS_I32 ", " GIDS_I32 "]"),
            "Return (ptr, atoms, parts) of slices begin..end.")
        .def(
            "render",
            [](const kg::Slicer& self, int64_t begin, int64_t end, int64_t slice_words, const kg::AtomGather& gather,
               Vector<int32_t> out) {
                if (static_cast<int64_t>(out.size()) != (end - begin) * slice_words)
                    throw ConfigError("out must hold the rows");
                const nb::gil_scoped_release nogil;
                for (int64_t s = begin; s < end; ++s) self.render(s, gather, out.data() + (s - begin) * slice_words);
            },
            "begin"_a, "end"_a, "slice_words"_a, "gather"_a, "out"_a, "Write the rows of slices begin..end.")
        .def(
            "restore",
            [](kg::Slicer& self, ConstVector<int64_t> ptr, ConstVector<int32_t> atoms, ConstVector<int32_t> parts) {
                self.restore(span_of(ptr), span_of(atoms), span_of(parts));
            },
            "ptr"_a, "atoms"_a, "parts"_a)
        .def(
            "restore_uses",
            [](kg::Slicer& self, ConstVector<int64_t> ptr, ConstVector<int32_t> slices, ConstVector<int64_t> triples) {
                for (size_t i = 0; i + 1 < ptr.size(); ++i)
                    self.restore_use(span_of(slices).subspan(static_cast<size_t>(ptr.data()[i]),
                                                             static_cast<size_t>(ptr.data()[i + 1] - ptr.data()[i])),
                                     triples.data()[i]);
            },
            "ptr"_a, "slices"_a, "triples"_a)
        .def("__len__", &kg::Slicer::num_slices)
        .def(
            "figures",
            [](const kg::Slicer& self) {
                const auto& f = self.figures();
                nb::dict d;
                d["subgraphs"] = f.subgraphs;
                d["triples"] = f.triples;
                d["slices"] = f.slices;
                d["used"] = f.used;
                d["needed"] = f.needed;
                d["atom_triples"] = f.atom_triples;
                d["matched"] = f.matched;
                return d;
            },
            nb::sig("def figures(self) -> dict[str, int]"))
        .def_prop_ro("memory_bytes", &kg::Slicer::memory_bytes);
}

}  // namespace

void bind_kg(nb::module_& m) {
    bind_names(m);
    bind_extraction(m);
    bind_slicer(m);
    m.def(
        "sort_triples",
        [](Vector<int32_t> records) {
            const nb::gil_scoped_release nogil;
            return kg::sort_triples(records.data(), static_cast<int64_t>(records.size()) / 3);
        },
        "records"_a, "Sort (head, relation, tail) records in place; return how many differ, which are at the front.");
}

}  // namespace gids
