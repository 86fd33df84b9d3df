// What the binding files of sampling share: a topology that keeps Python objects, samplers as values, and arrays that
// Python takes over.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "bind.hpp"
#include "sampling/neighbor.hpp"

namespace gids {

// A topology and the Python objects whose memory it reads.
struct BoundTopology {
    Topology topology;
    std::vector<nanobind::object> owners;
};

// A sampler with its options: what samples a batch of any seeds.
struct SampleFunction {
    std::function<Sampled(Topology&, const SampleRequest&, ThreadPool*)> sample;
    bool edge_ids = false;
    bool weights = false;  // blocks carry importance weights
};

// A request that owns its arrays, so that it may wait.
struct OwnedRequest {
    SampleKey key{};
    std::vector<std::vector<int64_t>> seeds;
    std::vector<ExcludedEdges> excluded;
    std::vector<int64_t> times;

    SampleRequest view() const {
        SampleRequest request{key, {}, excluded, times};
        for (const auto& nodes : seeds) request.seeds.emplace_back(nodes);
        return request;
    }
};

// One (sources, destinations) pair of arrays per relation.
std::vector<ExcludedEdges> sort_excluded(const nanobind::list& arrays);

// ([nodes], [seed rows], [(num_dst, num_src, [(indptr, src, edge_ids or None, weights or None)])], [trees] or None)
nanobind::tuple hand_over(Sampled&& sample, bool edge_ids, bool weights);

// Called while a thread waits with Python's lock released: lets Ctrl-C through.
void check_signals();

// A Python object owns it, and whoever uses it keeps that object.
template <class T>
std::shared_ptr<const T> not_owned(const T* object) {
    return {object, [](const T*) {}};
}

void bind_disk(nanobind::module_& m);
void bind_service(nanobind::module_& m);

#define GIDS_IDS "NDArray[numpy.int64]"
#define GIDS_SAMPLED                                                                                      \
    "tuple[list[" GIDS_IDS "], list[" GIDS_IDS "], list[tuple[list[int], list[int], list[tuple[" GIDS_IDS \
    ", " GIDS_IDS ", " GIDS_IDS " | None, NDArray[numpy.float32] | None]]]], list[" GIDS_IDS "] | None]"
#define GIDS_REQUEST                                                      \
    "excluded: list[tuple[" GIDS_IDS ", " GIDS_IDS "]], times: " GIDS_IDS \
    ", seed: int, epoch: int, batch: int, seeds: "                        \
    "Sequence[" GIDS_IDS "]"

}  // namespace gids
