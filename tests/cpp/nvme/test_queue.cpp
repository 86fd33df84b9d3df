// The queue pair against a drive made of memory: PRP shapes, wraps, full rings, reordering, slow and confused answers.
#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <thread>

#include "nvme/stub_controller.hpp"
#include "nvme_read.cuh"

using namespace gids;
using namespace gids::nvme;

namespace {

struct Answer {
    uint32_t id;
    uint64_t user;
    uint32_t status;
};

std::vector<Answer> drain_all(const QueueRef& q) {
    std::vector<Answer> answers;
    drain(kSerial, q, q.depth, [&](uint32_t id, uint64_t user, uint32_t status) {
        answers.push_back({id, user, status});
        return true;
    });
    return answers;
}

bool matches(StubController& stub, const Read& read, uint32_t block_bits) {
    for (uint64_t k = 0; k < read.bytes; ++k)
        if (static_cast<uint8_t>(stub.data()[read.offset + k]) != stub_byte((read.lba << block_bits) + k)) return false;
    return true;
}

Read read_of(uint64_t lba, uint64_t offset, uint32_t blocks, uint32_t block_bits = 9) {
    return {lba, offset, blocks, blocks << block_bits, 1, 0};
}

}  // namespace

TEST_CASE("an entry has the fields of the specification") {
    StubController stub({});
    const QueueRef& q = stub.queue();
    CHECK(enqueue(kSerial, q, true, Read{0x123456789aull, 0x2200, 3, 1536, 7, 0}, 42, 0) == Enqueue::kDone);
    const Command& entry = q.sq[0];
    CHECK(entry.dw[0] == 0x02);
    CHECK(entry.dw[1] == 7);
    CHECK(entry.dw[6] == static_cast<uint32_t>(q.data.iova(0x2200)));
    CHECK(entry.dw[8] == 0);
    CHECK(entry.dw[10] == 0x3456789a);
    CHECK(entry.dw[11] == 0x12);
    CHECK(entry.dw[12] == 2);
    CHECK(*q.sq_doorbell == 0);
    ring(kSerial, q, 1);
    CHECK(*q.sq_doorbell == 1);
}

TEST_CASE("doorbells follow the stride") {
    CHECK(submission_doorbell(0, 0) == 0x1000);
    CHECK(completion_doorbell(0, 0) == 0x1004);
    CHECK(submission_doorbell(3, 0) == 0x1018);
    CHECK(completion_doorbell(3, 2) == 0x1000 + 7 * 16);
}

TEST_CASE("PRPs: one page, two pages, a list, with and without an offset, contiguous and scattered") {
    for (bool paged : {false, true}) {
        StubOptions options{.shape = {8, 7, 12}, .data_bytes = 4 << 20, .max_bytes = 2 << 20};
        options.paged = paged;
        StubController stub(options);
        const QueueRef& q = stub.queue();
        CHECK(q.max_bytes == 2 << 20);
        for (uint32_t blocks : {1u, 8u, 9u, 16u, 17u, 24u, 256u, 4096u}) {
            for (uint64_t offset : {0ull, 4ull, 512ull, 4092ull, 4096ull, 5120ull}) {
                if (blocks > 256 && offset % 4096 != 4092) continue;  // the longest: 513 pages, a full list
                const Read read = read_of(blocks * 31 + offset, offset, blocks);
                REQUIRE(enqueue(kSerial, q, true, read, 1, 0) == Enqueue::kDone);
                ring(kSerial, q, 1);
                REQUIRE(stub.step() == 1);
                const auto answers = drain_all(q);
                REQUIRE(answers.size() == 1);
                CHECK(answers[0].status == 0);
                CHECK_MESSAGE(matches(stub, read, 9), "blocks ", blocks, " offset ", offset, " paged ", paged);
            }
        }
        CHECK(stub.violations.empty());
    }
}

TEST_CASE("reads that break the queue's rules never reach the ring") {
    StubController stub({});
    const QueueRef& q = stub.queue();
    const auto outcome = [&](const Read& read) { return enqueue(kSerial, q, true, read, 0, 0); };
    CHECK(outcome(read_of(0, 0, 0)) == Enqueue::kInvalid);
    CHECK(outcome(read_of(0, 2, 1)) == Enqueue::kInvalid);              // not a double word
    CHECK(outcome(read_of(0, 0, 257)) == Enqueue::kInvalid);            // more than MDTS
    CHECK(outcome(read_of(0, (1 << 20) - 4, 1)) == Enqueue::kInvalid);  // past the region
    CHECK(outcome(read_of(0, ~uint64_t{3}, 1)) == Enqueue::kInvalid);   // wraps around
    CHECK(enqueue(kSerial, q, false, read_of(0, 0, 1), 0, 0) == Enqueue::kIdle);
    q.shared->closed = 1;
    CHECK(outcome(read_of(0, 0, 1)) == Enqueue::kClosed);
    CHECK(q.control->next_ticket == 0);
}

TEST_CASE("a queue takes exactly `ids` commands, for every depth, and wraps many times") {
    for (uint32_t depth : {2u, 4u, 8u, 32u, 64u, 1024u}) {
        for (uint32_t ids : {1u, depth / 2, depth - 1}) {
            if (ids == 0) continue;
            StubOptions options{.shape = {depth, ids, 12}, .data_bytes = 4096};
            options.ack_batch = depth;  // clamped to depth - 1: the laziest acknowledgement that can work
            StubController stub(options);
            const QueueRef& q = stub.queue();
            uint64_t next = 0, answered = 0;
            for (int lap = 0; lap < 9; ++lap) {
                uint32_t posted = 0;
                while (enqueue(kSerial, q, true, read_of(next, 0, 1), next, 0) == Enqueue::kDone) {
                    ++posted;
                    ++next;
                }
                CHECK(posted == ids);
                ring(kSerial, q, posted);
                std::set<uint64_t> users;
                while (users.size() < posted) {
                    stub.step();
                    for (const Answer& answer : drain_all(q)) CHECK(users.insert(answer.user).second);
                }
                answered += users.size();
            }
            CHECK(answered == next);
            CHECK(stub.commands == next);
            CHECK(stub.violations.empty());
            CHECK(q.shared->spurious == 0);
        }
    }
}

TEST_CASE("counters may wrap around 2^32") {
    StubOptions options{.shape = {8, 7, 12}, .data_bytes = 4096};
    StubController stub(options);
    const QueueRef& q = stub.queue();
    // A multiple of 2 * depth keeps the rings' position and phase where a fresh queue has them.
    q.control->next_ticket = q.control->tail = q.control->head = q.control->acknowledged = 0u - 16u;
    for (uint64_t i = 0; i < 50; ++i) {
        REQUIRE(enqueue(kSerial, q, true, read_of(i, 0, 1), i, 0) == Enqueue::kDone);
        ring(kSerial, q, 1);
        REQUIRE(stub.step() == 1);
        const auto answers = drain_all(q);
        REQUIRE(answers.size() == 1);
        CHECK(answers[0].user == i);
    }
    CHECK(stub.violations.empty());
}

TEST_CASE("answers in any order find their command by its id") {
    StubOptions options{.shape = {64, 63, 12}, .data_bytes = 63 * 512};
    options.reorder = true;
    StubController stub(options);
    stub.status_of = [](const Command& command) { return command.dw[10] % 5 == 0 ? 0x281u : 0u; };
    const QueueRef& q = stub.queue();
    for (int round = 0; round < 40; ++round) {
        for (uint32_t i = 0; i < 63; ++i)
            REQUIRE(enqueue(kSerial, q, true, read_of(round * 63 + i, i * 512, 1), i, 0) == Enqueue::kDone);
        ring(kSerial, q, 63);
        size_t seen = 0;
        while (seen < 63) {
            stub.step(7);
            for (const Answer& answer : drain_all(q)) {
                const uint64_t lba = round * 63 + answer.user;
                CHECK(answer.status == (lba % 5 == 0 ? 0x281 : 0));
                if (answer.status == 0) CHECK(matches(stub, read_of(lba, answer.user * 512, 1), 9));
                ++seen;
            }
        }
    }
    CHECK(stub.violations.empty());
}

TEST_CASE("one slow command holds back neither the ring nor the others") {
    StubOptions options{.shape = {8, 7, 12}, .data_bytes = 4096};
    StubController stub(options);
    const QueueRef& q = stub.queue();
    REQUIRE(enqueue(kSerial, q, true, read_of(0, 0, 1), 1000, 0) == Enqueue::kDone);
    ring(kSerial, q, 1);
    // Command 0 is fetched and never answered; 200 fast ones go round the ring 25 times past it.
    uint64_t fast = 0;
    CHECK(stub.step(0) == 0);
    for (uint64_t i = 1; i <= 200; ++i) {
        REQUIRE(enqueue(kSerial, q, true, read_of(i, 0, 1), i, 0) == Enqueue::kDone);
        ring(kSerial, q, 1);
        REQUIRE(stub.step(1) == 1);  // the newest is answered first
        for (const Answer& answer : drain_all(q)) {
            CHECK(answer.user == i);
            ++fast;
        }
    }
    CHECK(fast == 200);
    stub.step();
    const auto last = drain_all(q);
    REQUIRE(last.size() == 1);
    CHECK(last[0].user == 1000);
}

TEST_CASE("a poisoned id is not used again, and its late answer is only counted") {
    StubOptions options{.shape = {4, 3, 12}, .data_bytes = 4096};
    StubController stub(options);
    const QueueRef& q = stub.queue();
    for (uint64_t i = 0; i < 3; ++i) REQUIRE(enqueue(kSerial, q, true, read_of(i, 0, 1), i, 5) == Enqueue::kDone);
    ring(kSerial, q, 3);
    const uint32_t word = q.slots[1].word;
    CHECK(poison(q, 1, word));
    CHECK_FALSE(poison(q, 1, word));
    stub.step();
    CHECK(drain_all(q).size() == 2);
    CHECK(q.shared->late == 1);
    for (int lap = 0; lap < 5; ++lap) {
        CHECK(enqueue(kSerial, q, true, read_of(0, 0, 1), 0, 0) == Enqueue::kDone);
        CHECK(enqueue(kSerial, q, true, read_of(0, 0, 1), 0, 0) == Enqueue::kDone);
        CHECK(enqueue(kSerial, q, true, read_of(0, 0, 1), 0, 0) == Enqueue::kFull);
        ring(kSerial, q, 2);
        for (int seen = 0; seen < 2;) {  // the completion ring is small enough to stall the drive in between
            stub.step();
            for (const Answer& answer : drain_all(q)) {
                CHECK(answer.id != 1);
                ++seen;
            }
        }
    }
    CHECK(stub.violations.empty());
}

TEST_CASE("an old look at a slot cannot poison the command that uses it now") {
    StubController stub({});
    const QueueRef& q = stub.queue();
    REQUIRE(enqueue(kSerial, q, true, read_of(0, 0, 1), 1, 0) == Enqueue::kDone);
    const uint32_t old_word = q.slots[0].word;
    ring(kSerial, q, 1);
    stub.step();
    REQUIRE(drain_all(q).size() == 1);
    REQUIRE(enqueue(kSerial, q, true, read_of(1, 0, 1), 2, 0) == Enqueue::kDone);
    CHECK_FALSE(poison(q, 0, old_word));
    ring(kSerial, q, 1);
    stub.step();
    CHECK(drain_all(q).size() == 1);
}

TEST_CASE("answers nobody asked for are counted and followed nowhere") {
    StubController stub({});
    const QueueRef& q = stub.queue();
    stub.post(5, 0);            // not in flight
    stub.post(0xffff, 0x3fff);  // all ones: no such id
    CHECK(drain_all(q).empty());
    CHECK(q.shared->spurious == 2);
    REQUIRE(enqueue(kSerial, q, true, read_of(9, 0, 1), 77, 0) == Enqueue::kDone);
    ring(kSerial, q, 1);
    stub.step();
    const auto answers = drain_all(q);
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].user == 77);
}

TEST_CASE("with buffers that belong to ids, data lands in the id's own piece") {
    StubOptions options{.shape = {8, 7, 12}, .data_bytes = 7 * 8192};
    StubController stub(options);
    const QueueRef& q = stub.queue();
    CHECK(enqueue(kSerial, q, true, read_of(0, 0, 17), 0, 0, 8192) == Enqueue::kInvalid);
    for (uint64_t i = 0; i < 7; ++i)
        REQUIRE(enqueue(kSerial, q, true, read_of(i * 100, 0, 16), i, 0, 8192) == Enqueue::kDone);
    ring(kSerial, q, 7);
    stub.step();
    for (const Answer& answer : drain_all(q)) CHECK(matches(stub, read_of(answer.user * 100, answer.id * 8192, 16), 9));
    CHECK(stub.violations.empty());
}

namespace {

struct HostClock {
    uint64_t now_ns() const {
        return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    }
    void pause() const { std::this_thread::yield(); }
};

// `workers` threads submit and poll `count` reads over `queues` queue pairs of one drive that answers on its own
// thread.
void run_threads(uint32_t workers, uint32_t queues, uint32_t count, const StubOptions& options) {
    std::vector<std::unique_ptr<StubController>> stubs;
    std::vector<QueueRef> refs;
    for (uint32_t i = 0; i < queues; ++i) {
        stubs.push_back(std::make_unique<StubController>(options));
        refs.push_back(stubs.back()->queue());
    }
    const DriveRef drive{refs.data(), queues};
    std::vector<Read> reads(count);
    std::vector<uint32_t> results(count, 0);
    for (uint32_t i = 0; i < count; ++i) reads[i] = read_of(i * 3, (i % 64) * 512, 1);
    const ReadSet set{reads.data(), results.data(), count};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (auto& stub : stubs)
        threads.emplace_back([&stub, &stop] {
            while (!stop.load(std::memory_order_acquire))
                if (stub->step(5) == 0) std::this_thread::yield();
        });
    std::atomic<uint32_t> complete{0};
    std::vector<std::thread> submitters;
    Outcome outcome{};
    for (uint32_t w = 0; w < workers + queues; ++w)  // a worker for each queue, and those that wait
        submitters.emplace_back([&, w] {
            if (w < workers) submit_reads(kSerial, &drive, set, w, workers, HostClock{}, 60'000'000'000ull);
            if (poll_reads(kSerial, &drive, 1, set, outcome, w, workers + queues, HostClock{}, 60'000'000'000ull))
                ++complete;
        });
    for (auto& thread : submitters) thread.join();
    stop.store(true, std::memory_order_release);
    for (auto& thread : threads) thread.join();
    CHECK(complete == workers + queues);
    CHECK(outcome.finished == workers);
    CHECK(outcome.failed == 0);
    uint64_t commands = 0;
    for (auto& stub : stubs) {
        CHECK(stub->violations.empty());
        CHECK(stub->queue().shared->spurious == 0);
        commands += stub->commands;
    }
    CHECK(commands == count);
    CHECK(std::all_of(results.begin(), results.end(), [](uint32_t result) { return result == kSettled; }));
}

}  // namespace

TEST_CASE("many threads share a queue pair: every read is answered once, whatever the order") {
    for (uint32_t depth : {4u, 64u}) {
        StubOptions options{.shape = {depth, depth - 1, 12}, .data_bytes = 64 * 512};
        options.reorder = true;
        options.hold_every = 5;
        run_threads(/*workers=*/4, /*queues=*/1, /*count=*/4000, options);
        run_threads(/*workers=*/3, /*queues=*/2, /*count=*/4000, options);
    }
}

TEST_CASE("submitting to a drive that never answers ends at the deadline and says so") {
    StubOptions options{.shape = {4, 3, 12}, .data_bytes = 4096};
    StubController stub(options);
    const QueueRef q = stub.queue();
    const DriveRef drive{&q, 1};
    std::vector<Read> reads(5, read_of(0, 0, 1));
    std::vector<uint32_t> results(5, 0);
    const ReadSet set{reads.data(), results.data(), 5};
    submit_reads(kSerial, &drive, set, 0, 1, HostClock{}, 1'000'000);
    Outcome outcome{};
    CHECK_FALSE(poll_reads(kSerial, &drive, 1, set, outcome, 1, 2, HostClock{}, 1'000'000));
    CHECK(poll_reads(kSerial, &drive, 1, set, outcome, 0, 2, HostClock{}, 1'000'000));  // leaves: nobody waits any more
    CHECK(outcome.unsettled == 1);
    CHECK(results == std::vector<uint32_t>{0, 0, 0, kSettled | kLocalDeadline, kSettled | kLocalDeadline});
}

TEST_CASE("a read that can never succeed is settled without being sent") {
    StubController stub({});
    const QueueRef q = stub.queue();
    const DriveRef drive{&q, 1};
    std::vector<Read> reads{read_of(0, 2, 1)};
    std::vector<uint32_t> results(1, 0);
    submit_reads(kSerial, &drive, ReadSet{reads.data(), results.data(), 1}, 0, 1, HostClock{}, 1'000'000);
    CHECK(results[0] == (kSettled | kLocalInvalid));
}

TEST_CASE("queue shapes are checked") {
    CHECK_THROWS_AS((QueueShape{3, 2, 12}.check()), ConfigError);
    CHECK_THROWS_AS((QueueShape{8, 8, 12}.check()), ConfigError);
    CHECK_THROWS_AS((QueueShape{1, 1, 12}.check()), ConfigError);
}
