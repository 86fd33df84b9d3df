// The service of requests: every ticket ends once, clients take turns, nothing waits beyond the bound.
#include <doctest/doctest.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <thread>

#include "errors.hpp"
#include "sampling/service.hpp"

using namespace gids;

namespace {

// A sample that says which request it answers.
Sampled answer(int64_t number) {
    Sampled sample;
    sample.nodes.emplace_back(1);
    sample.nodes[0][0] = number;
    return sample;
}

}  // namespace

TEST_CASE("every request of every client is answered once, on workers and on callers") {
    SampleService service(3, 1000);
    std::vector<std::thread> clients;
    std::atomic<int> wrong{0};
    for (uint64_t client = 0; client < 4; ++client)
        clients.emplace_back([&, client] {
            for (int64_t i = 0; i < 200; ++i) {
                const auto number = static_cast<int64_t>(client) * 1000 + i;
                const auto ticket = service.submit(client, [number] { return answer(number); });
                wrong += service.run(client, [number] { return answer(-number); }, {}).nodes[0][0] != -number;
                while (!ticket->wait_for(std::chrono::milliseconds(100))) {
                }
                wrong += ticket->take().nodes[0][0] != number;
            }
        });
    for (auto& client : clients) client.join();
    CHECK(wrong == 0);
    for (int i = 0; i < 1000000 && service.stats().served != 1600; ++i) std::this_thread::yield();  // counted after it
    CHECK(service.stats().served == 1600);
    CHECK(service.served_by_client().at(2) == 400);
}

TEST_CASE("what fails throws, what was taken is gone, what is late is told") {
    SampleService service(1, 10);
    const auto bad = service.submit(1, []() -> Sampled { throw ConfigError("no"); });
    while (!bad->wait_for(std::chrono::milliseconds(100))) {
    }
    CHECK_THROWS_AS(bad->take(), ConfigError);
    std::promise<void> gate;
    auto opened = gate.get_future().share();
    const auto ticket = service.submit(1, [opened] {
        opened.wait();
        return answer(5);
    });
    CHECK_FALSE(ticket->wait_for(std::chrono::milliseconds(1)));
    CHECK_THROWS_AS(ticket->take(), ConfigError);
    CHECK(service.watch(*ticket));
    const auto late = service.submit(1, [] { return answer(6); });
    CHECK(service.cancel(late));
    CHECK_FALSE(service.cancel(late));
    CHECK_THROWS_AS(late->take(), CancelledError);
    gate.set_value();
    pollfd ready{service.event_descriptor(), POLLIN, 0};
    CHECK(poll(&ready, 1, 10'000) == 1);
    const auto ended = service.ended();
    REQUIRE(ended.size() == 1);
    CHECK(ended[0] == ticket);
    CHECK(ticket->take().nodes[0][0] == 5);
    CHECK_THROWS_AS(ticket->take(), ConfigError);
    CHECK_FALSE(service.watch(*ticket));
    service.close();
    CHECK_THROWS_AS(service.submit(1, [] { return answer(0); }), CancelledError);
}
