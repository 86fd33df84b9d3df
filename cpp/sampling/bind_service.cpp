// Python sees a service that samples without its lock, tickets, and results that become arrays when somebody looks.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>

#include "errors.hpp"
#include "sampling/bound.hpp"
#include "sampling/service.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

// A sample that Python has not looked at: handing it over takes one object, not an array for each of its parts.
struct SampledBatch {
    SampledBatch(Sampled sampled, bool ids, bool importance)
        : sample(std::move(sampled)), edge_ids(ids), weights(importance) {}
    SampledBatch(SampledBatch&&) = default;
    SampledBatch(const SampledBatch&) = delete;

    Sampled sample;
    bool edge_ids, weights;
    bool taken = false;

    nb::tuple arrays() {
        if (std::exchange(taken, true)) throw ConfigError("arrays of a sample can be taken once");
        return hand_over(std::move(sample), edge_ids, weights);
    }
};

// The way back into the interpreter. Clients that come back at the same time would put each other to sleep over its
// lock, and waking takes longer than all that Python does for a request: who finds another client on its way waits here
// for it to be gone, for as long as that takes at most.
class Doorway {
public:
    // Without the interpreter's lock, right after it was released, and right before it is taken again.
    void leave() { entered_.store(0); }
    void enter() {
        for (;;) {
            const int64_t now = Clock::now().time_since_epoch().count();
            int64_t entered = entered_.load();
            if ((entered == 0 || now - entered > kMost.count()) && entered_.compare_exchange_weak(entered, now)) return;
        }
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr Clock::duration kMost = std::chrono::microseconds(20);  // then it does something else there
    std::atomic<int64_t> entered_{0};  // seq_cst: when somebody did who is not back yet; 0: nobody
};

class BoundService {
public:
    BoundService(BoundTopology& topology, const SampleFunction& function, int workers, int64_t most_waiting)
        : topology_(topology), function_(function), service_(std::make_unique<SampleService>(workers, most_waiting)) {}
    ~BoundService() {
        const nb::gil_scoped_release nogil;  // a request that runs may need the lock to end
        service_.reset();
    }
    BoundService(const BoundService&) = delete;
    BoundService& operator=(const BoundService&) = delete;

    SampleService& operator*() const { return *service_; }

    std::function<Sampled()> work(const nb::list& excluded, ConstVector<int64_t> times, uint64_t seed, uint32_t epoch,
                                  uint64_t batch, const std::vector<ConstVector<int64_t>>& seeds) const {
        auto request = std::make_shared<OwnedRequest>();
        request->key = {seed, epoch, batch};
        for (const auto& nodes : seeds) request->seeds.emplace_back(nodes.data(), nodes.data() + nodes.size());
        request->excluded = sort_excluded(excluded);
        request->times.assign(times.data(), times.data() + times.size());
        return [this, request = std::move(request)] {
            return function_.sample(topology_.topology, request->view(), nullptr);
        };
    }
    Sampled run(uint64_t client, std::function<Sampled()> work) {
        const nb::gil_scoped_release nogil;
        doorway_.leave();
        Sampled sample = service_->run(client, std::move(work), check_signals);
        doorway_.enter();
        return sample;
    }
    SampledBatch batch(Sampled sample) const { return {std::move(sample), function_.edge_ids, function_.weights}; }

private:
    BoundTopology& topology_;
    const SampleFunction function_;
    std::unique_ptr<SampleService> service_;
    Doorway doorway_;
};

double seconds(Ticket::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void bind_service(nb::module_& m) {
    nb::class_<SampledBatch>(m, "SampledBatch", "A sample whose arrays nobody has taken yet.")
        .def("arrays", &SampledBatch::arrays, nb::sig("def arrays(self) -> " GIDS_SAMPLED));
    nb::class_<Ticket>(m, "SampleTicket", "One request of a service.")
        .def_prop_ro("ended", &Ticket::ended)
        .def_prop_ro("cancelled", [](const Ticket& t) { return t.state() == Ticket::State::kCancelled; })
        .def_prop_ro("number", [](const Ticket& t) { return reinterpret_cast<uintptr_t>(&t); })
        .def_prop_ro("latency_s", [](const Ticket& t) { return t.ended() ? seconds(t.latency()) : 0.0; })
        .def_prop_ro("waited_s", [](const Ticket& t) { return t.ended() ? seconds(t.waited()) : 0.0; })
        .def(
            "wait_ms",
            [](Ticket& t, int64_t limit_ms) {
                const nb::gil_scoped_release nogil;
                return t.wait_for(std::chrono::milliseconds(limit_ms));
            },
            "limit_ms"_a, "Whether the request has ended within the limit.");
    nb::class_<BoundService>(m, "SampleService", "Samples for many clients at once.")
        .def(nb::init<BoundTopology&, const SampleFunction&, int, int64_t>(), "topology"_a, "function"_a, "workers"_a,
             "max_waiting"_a, nb::keep_alive<1, 2>())
        .def(
            "sample",
            [](BoundService& self, uint64_t client, const nb::list& excluded, ConstVector<int64_t> times, uint64_t seed,
               uint32_t epoch, uint64_t batch, const std::vector<ConstVector<int64_t>>& seeds) {
                auto work = self.work(excluded, times, seed, epoch, batch, seeds);
                return self.batch(self.run(client, std::move(work)));
            },
            "client"_a, "excluded"_a, "times"_a, "seed"_a, "epoch"_a, "batch"_a, "seeds"_a,
            nb::sig("def sample(self, client: int, " GIDS_REQUEST ") -> SampledBatch"))
        .def(
            "submit",
            [](BoundService& self, uint64_t client, const nb::list& excluded, ConstVector<int64_t> times, uint64_t seed,
               uint32_t epoch, uint64_t batch, const std::vector<ConstVector<int64_t>>& seeds) {
                return (*self).submit(client, self.work(excluded, times, seed, epoch, batch, seeds));
            },
            "client"_a, "excluded"_a, "times"_a, "seed"_a, "epoch"_a, "batch"_a, "seeds"_a,
            nb::sig("def submit(self, client: int, " GIDS_REQUEST ") -> SampleTicket"))
        .def(
            "take", [](BoundService& self, Ticket& ticket) { return self.batch(ticket.take()); }, "ticket"_a)
        .def(
            "cancel", [](BoundService& self, const std::shared_ptr<Ticket>& ticket) { return (*self).cancel(ticket); },
            "ticket"_a)
        .def(
            "watch", [](BoundService& self, Ticket& ticket) { return (*self).watch(ticket); }, "ticket"_a)
        .def_prop_ro("event_descriptor", [](const BoundService& self) { return (*self).event_descriptor(); })
        .def("ended", [](BoundService& self) { return (*self).ended(); })
        .def("close",
             [](BoundService& self) {
                 const nb::gil_scoped_release nogil;
                 (*self).close();
             })
        .def("served_by_client", [](const BoundService& self) { return (*self).served_by_client(); })
        .def("stats", [](const BoundService& self) {
            const SampleService::Stats s = (*self).stats();
            return std::map<std::string, double>{{"served", static_cast<double>(s.served)},
                                                 {"failed", static_cast<double>(s.failed)},
                                                 {"cancelled", static_cast<double>(s.cancelled)},
                                                 {"refused", static_cast<double>(s.refused)},
                                                 {"displaced", static_cast<double>(s.displaced)},
                                                 {"waiting", static_cast<double>(s.waiting)},
                                                 {"running", static_cast<double>(s.running)},
                                                 {"most_waited", static_cast<double>(s.most_waited)},
                                                 {"p50_us", s.p50_us},
                                                 {"p99_us", s.p99_us},
                                                 {"per_second", static_cast<double>(s.served) / s.seconds}};
        });
}

}  // namespace gids
