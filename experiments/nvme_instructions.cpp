// Instructions per NVMe command, counted by callgrind in the queue code alone. From the top of the repository:
//   g++ -std=c++20 -O3 -g -Icpp -Ikernels experiments/nvme_instructions.cpp -o build/nvme_instructions
//   valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='submit_batch*' \
//            --toggle-collect='drain_batch*' build/nvme_instructions 64
// and divide the "Collected" figure by the commands that the program prints.
#include <cstdio>
#include <cstdlib>

#include "nvme/stub_controller.hpp"

using namespace gids;
using namespace gids::nvme;

constexpr uint32_t kRounds = 2000;

[[gnu::noinline]] uint32_t submit_batch(const QueueRef& q, uint32_t batch, uint64_t first) {
    uint32_t posted = 0;
    for (; posted < batch; ++posted) {
        const Read read{(first + posted) * 8, uint64_t{posted} * 4096, 8, 4096, 1, 0};
        if (enqueue(Serial{}, q, true, read, posted, 0) != Enqueue::kDone) break;
    }
    ring(Serial{}, q, posted);
    return posted;
}

[[gnu::noinline]] uint32_t drain_batch(const QueueRef& q) {
    return drain(Serial{}, q, q.depth, [](uint32_t, uint64_t, uint32_t) { return true; });
}

int main(int, char** arguments) {
    const auto batch = static_cast<uint32_t>(std::atoi(arguments[1]));
    StubOptions options;
    const uint32_t depth = std::bit_ceil(2 * batch);
    options.shape = {depth, depth - 1, 12};
    options.data_bytes = uint64_t{batch} * 4096;
    options.check = options.move_data = false;
    StubController stub(options);
    uint64_t sent = 0, received = 0;
    for (uint32_t round = 0; round < kRounds; ++round) {
        sent += submit_batch(stub.queue(), batch, sent);
        stub.step();
        received += drain_batch(stub.queue());
    }
    std::printf("%lu commands, %lu answered\n", static_cast<unsigned long>(sent), static_cast<unsigned long>(received));
    return sent == received ? 0 : 1;
}
