// cuFile's batches against a library made of functions here: many jobs at once, and everything that can go wrong.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <vector>

#include "cufile/batches.hpp"
#include "errors.hpp"

using namespace gids;
using namespace gids::cufile;

namespace {

struct FakeBatch {
    std::vector<Request> waiting;
    std::vector<Event> done;
};

struct Fake {
    std::mutex mutex;
    std::mt19937 random{5};
    int fail_at = -1, short_at = -1, stuck_at = -1, refuse_at = -1, refuse_code = 0;
    bool deaf = false;  // to cancel
    int entries = 0, submissions = 0, handles = 0, batches = 0, most_in_batch = 0;
};
Fake* fake = nullptr;

Error register_handle(void** handle, Descriptor*) {
    const std::lock_guard lock(fake->mutex);
    *handle = reinterpret_cast<void*>(static_cast<uintptr_t>(++fake->handles));
    return {};
}
void deregister_handle(void*) {
    const std::lock_guard lock(fake->mutex);
    --fake->handles;
}
Error set_up(void** batch, unsigned) {
    const std::lock_guard lock(fake->mutex);
    ++fake->batches;
    *batch = new FakeBatch;
    return {};
}
Error submit(void* handle, unsigned count, Request* requests, unsigned) {
    const std::lock_guard lock(fake->mutex);
    if (fake->submissions++ == fake->refuse_at) return {fake->refuse_code, 0};
    auto& batch = *static_cast<FakeBatch*>(handle);
    REQUIRE(batch.waiting.empty());
    batch.waiting.assign(requests, requests + count);
    fake->most_in_batch = std::max(fake->most_in_batch, static_cast<int>(count));
    return {};
}
Error get_status(void* handle, unsigned, unsigned* count, Event* events, timespec*) {
    const std::lock_guard lock(fake->mutex);
    auto& batch = *static_cast<FakeBatch*>(handle);
    for (unsigned steps = fake->random() % 4; steps != 0 && !batch.waiting.empty(); --steps) {
        std::swap(batch.waiting[fake->random() % batch.waiting.size()], batch.waiting.back());
        const Request request = batch.waiting.back();
        const int number = fake->entries++;
        if (number == fake->stuck_at) break;
        if (fake->stuck_at >= 0 && number > fake->stuck_at) break;  // the one that hangs keeps the batch
        batch.waiting.pop_back();
        Event event{request.cookie, kComplete, request.size};
        if (number == fake->fail_at) event = {request.cookie, kFailed, static_cast<size_t>(-EIO)};
        if (number == fake->short_at) event.result /= 2;
        if (event.status == kComplete)
            *reinterpret_cast<uint64_t*>(static_cast<std::byte*>(request.base) + request.base_offset) =
                static_cast<uint64_t>(request.file_offset) + 1;
        batch.done.push_back(event);
    }
    const unsigned told = std::min<unsigned>(*count, static_cast<unsigned>(batch.done.size()));
    std::copy_n(batch.done.begin(), told, events);
    batch.done.erase(batch.done.begin(), batch.done.begin() + told);
    *count = told;
    return {};
}
Error cancel(void* handle) {
    const std::lock_guard lock(fake->mutex);
    auto& batch = *static_cast<FakeBatch*>(handle);
    if (fake->deaf) return {};
    for (const Request& request : batch.waiting)
        batch.done.push_back({request.cookie, kCanceled, static_cast<size_t>(-ECANCELED)});
    batch.waiting.clear();
    return {};
}
void destroy(void* handle) {
    const std::lock_guard lock(fake->mutex);
    --fake->batches;
    delete static_cast<FakeBatch*>(handle);
}
int set_context(void*) { return 0; }

const Library kLibrary{register_handle, deregister_handle, nullptr,    set_up, submit, get_status,
                       cancel,          destroy,           set_context};

struct Setup {
    Fake state;
    std::string path =
        std::string(std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp") + "/gids-cufile-XXXXXX";
    std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);

    Setup() {
        fake = &state;
        const int descriptor = mkstemp(path.data());
        REQUIRE(descriptor >= 0);
        close(descriptor);
    }
    ~Setup() {
        std::remove(path.c_str());
        CHECK(state.handles == 0);
        CHECK(state.batches == 0);
    }
    Batches open(int timeout_ms = 5000) {
        return Batches(kLibrary, {path}, nullptr, {3, 8, std::chrono::milliseconds(timeout_ms)});
    }
    static std::vector<Range> ranges(size_t count, uint64_t first = 0) {
        std::vector<Range> found;
        for (uint64_t i = first; i < first + count; ++i) found.push_back({0, i * 4096, 4096, i * 512});
        return found;
    }
    void check(size_t count) const {
        for (uint64_t i = 0; i < count; ++i)
            CHECK(*reinterpret_cast<const uint64_t*>(memory.data() + i * 512) == i * 4096 + 1);
    }
};

constexpr auto kLong = std::chrono::milliseconds(60'000);

}  // namespace

TEST_CASE("cuFile: several jobs share batches, and every range arrives") {
    Setup setup;
    auto batches = setup.open();
    std::vector<std::shared_ptr<Job>> jobs;
    for (uint64_t j = 0; j < 10; ++j) jobs.push_back(batches.submit(setup.memory.data(), Setup::ranges(50, 50 * j)));
    for (const auto& job : jobs) CHECK(job->wait_for(kLong));
    setup.check(500);
    CHECK(batches.submitted_ranges() == 500);
    CHECK(setup.state.most_in_batch == 8);
    CHECK(batches.submit(setup.memory.data(), {})->ended());
}

TEST_CASE("cuFile: the first failure is told with its range, when nothing is in flight any more") {
    Setup setup;
    auto batches = setup.open();
    SUBCASE("a failed read") { setup.state.fail_at = 20; }
    SUBCASE("a short read") { setup.state.short_at = 20; }
    SUBCASE("a refused batch") {
        setup.state.refuse_at = 2;
        setup.state.refuse_code = 5012;
    }
    const auto job = batches.submit(setup.memory.data(), Setup::ranges(100));
    CHECK_THROWS_AS(job->wait_for(kLong), StorageError);
    CHECK(job->ended());
    CHECK_FALSE(job->abandoned());
    CHECK(batches.submit(setup.memory.data(), Setup::ranges(100))->wait_for(kLong));
    setup.check(100);
}

TEST_CASE("cuFile: what is to be tried later is") {
    Setup setup;
    auto batches = setup.open();
    setup.state.refuse_at = 1;
    setup.state.refuse_code = kNoMemory;
    CHECK(batches.submit(setup.memory.data(), Setup::ranges(60))->wait_for(kLong));
    setup.check(60);
}

TEST_CASE("cuFile: a read without an answer is cancelled, or ends the reader") {
    Setup setup;
    setup.state.stuck_at = 12;
    auto batches = setup.open(50);
    SUBCASE("cancelled") {
        const auto job = batches.submit(setup.memory.data(), Setup::ranges(40));
        CHECK_THROWS_WITH_AS(job->wait_for(kLong), doctest::Contains("was cancelled"), StorageError);
        CHECK_FALSE(job->abandoned());
    }
    SUBCASE("deaf") {
        setup.state.deaf = true;
        const auto job = batches.submit(setup.memory.data(), Setup::ranges(40));
        CHECK_THROWS_WITH_AS(job->wait_for(kLong), doctest::Contains("does not let go"), StorageError);
        CHECK(job->abandoned());
        CHECK_FALSE(batches.broken().empty());
        CHECK_THROWS_AS(batches.submit(setup.memory.data(), Setup::ranges(1)), StorageError);
    }
}

TEST_CASE("cuFile: a cancelled job ends, and closing ends the rest") {
    Setup setup;
    std::shared_ptr<Job> last;
    {
        auto batches = setup.open();
        const auto job = batches.submit(setup.memory.data(), Setup::ranges(1000));
        job->cancel();
        CHECK_THROWS_WITH_AS(job->wait_for(kLong), doctest::Contains("cancelled"), StorageError);
        last = batches.submit(setup.memory.data(), Setup::ranges(1000));
    }
    CHECK(last->ended());
}
