// The C++ side against QEMU's controller, so that it runs under the sanitizers: status words, depths, PRPs, the
// watchdog.
#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "nvme/drive.hpp"
#include "nvme/qtest.hpp"

using namespace gids;
using namespace gids::nvme;

extern char** environ;

namespace {

constexpr uint64_t kImageBytes = 4 << 20;
constexpr int kSlot = 4;

// QEMU with one drive: namespace 1 is an image of random bytes, namespace 2 (if asked for) answers late.
class Qemu {
public:
    explicit Qemu(int mdts, int latency_ms = 0) {
        char pattern[] = "/tmp/gids-qemu-XXXXXX";
        directory_ = mkdtemp(pattern);
        std::ofstream firmware(directory_ / "firmware", std::ios::binary);
        std::string halt(65536, '\xf4');
        halt.replace(65536 - 16, 4, "\xfa\xf4\xeb\xfd", 4);
        firmware << halt;
        firmware.close();
        std::mt19937_64 random(1);
        image.resize(kImageBytes);
        for (uint64_t at = 0; at < kImageBytes; at += 8) {
            const uint64_t word = random();
            std::memcpy(image.data() + at, &word, 8);
        }
        std::ofstream(directory_ / "image", std::ios::binary)
            .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
        std::ofstream(directory_ / "ram", std::ios::binary);
        std::filesystem::resize_file(directory_ / "ram", 128 << 20);
        const std::string here = directory_.string();
        std::vector<std::string> words = {"qemu-system-x86_64",
                                          "-qtest",
                                          "unix:" + here + "/qtest,server=on,wait=off",
                                          "-qtest-log",
                                          "/dev/null",
                                          "-display",
                                          "none",
                                          "-nodefaults",
                                          "-bios",
                                          here + "/firmware",
                                          "-m",
                                          "128",
                                          "-machine",
                                          "pc,accel=tcg,memory-backend=ram",
                                          "-object",
                                          "memory-backend-file,id=ram,size=128M,share=on,mem-path=" + here + "/ram",
                                          "-device",
                                          "nvme,id=n,serial=cpp,addr=4,mdts=" + std::to_string(mdts),
                                          "-blockdev",
                                          "driver=file,node-name=d1,filename=" + here + "/image",
                                          "-device",
                                          "nvme-ns,drive=d1,bus=n,nsid=1"};
        if (latency_ms != 0)
            words.insert(
                words.end(),
                {"-blockdev",
                 "driver=null-co,node-name=d2,size=1048576,latency-ns=" + std::to_string(latency_ms) + "000000",
                 "-device", "nvme-ns,drive=d2,bus=n,nsid=2"});
        std::vector<char*> arguments;
        for (std::string& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        if (posix_spawnp(&process_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) return;
        for (int i = 0; i < 2000 && !machine; ++i) {
            try {
                machine = std::make_shared<QtestMachine>(here + "/qtest", here + "/ram");
            } catch (const StorageError&) {
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            }
        }
    }
    ~Qemu() {
        machine = nullptr;
        if (process_ > 0) {
            kill(process_, SIGKILL);
            waitpid(process_, nullptr, 0);
        }
        std::filesystem::remove_all(directory_);
    }

    std::shared_ptr<QtestMachine> machine;
    std::vector<std::byte> image;

private:
    std::filesystem::path directory_;
    pid_t process_ = -1;
};

bool no_qemu() {
    if (std::system("command -v qemu-system-x86_64 >/dev/null 2>&1") == 0) return false;
    MESSAGE("qemu-system-x86 is not installed: the controller code is NOT TESTED under the sanitizers");
    return true;
}

// Submits one read and waits for its status word.
uint32_t status_of(Drive& drive, QueuePair& pair, const Read& read) {
    const std::lock_guard lock(pair.mutex);
    REQUIRE(enqueue(kSerial, pair.ref, true, read, 0, now_ns(), 0) == Enqueue::kDone);
    ring(kSerial, pair.ref, 1);
    uint32_t status = ~0u;
    for (int i = 0; i < 500'000 && status == ~0u; ++i) {
        drive.device().pump();
        drain(kSerial, pair.ref, 1, [&](uint32_t, uint64_t, uint32_t answer) {
            status = answer;
            return true;
        });
        if (status == ~0u) std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
    return status;
}

}  // namespace

TEST_CASE("QEMU: status words of reads that the drive refuses") {
    if (no_qemu()) return;
    Qemu qemu(/*mdts=*/1);
    REQUIRE(qemu.machine);
    const auto drive = std::make_shared<Drive>(open_qtest(qemu.machine, kSlot), DriveOptions{});
    CHECK(drive->info().max_transfer_bytes == 8192);
    const auto data = drive->device().allocate(1 << 20);
    const auto pair = drive->open_pair(4, data->bytes());
    CHECK(pair->bytes_per_id == 0);
    CHECK(pair->ref.max_bytes == 8192);
    CHECK(enqueue(kSerial, pair->ref, true, Read{0, 0, 17, 17 * 512, 1, 0}, 0, 0) == Enqueue::kInvalid);
    pair->ref.max_bytes = 1 << 20;  // behind its back, to see what the drive says
    CHECK(status_of(*drive, *pair, {0, 0, 17, 17 * 512, 1, 0}) == 0x4002);            // over MDTS
    CHECK(status_of(*drive, *pair, {kImageBytes / 512, 0, 1, 512, 1, 0}) == 0x4080);  // behind the last block
    CHECK(status_of(*drive, *pair, {0, 0, 1, 512, 9, 0}) == 0x4002);                  // an inactive namespace
    CHECK(status_of(*drive, *pair, {3, 512, 16, 8192, 1, 0}) == 0);
    CHECK(std::memcmp(data->bytes().data() + 512, qemu.image.data() + 3 * 512, 8192) == 0);
    drive->release_pair(pair);
}

TEST_CASE("QEMU: every depth, with wraps, and PRPs of every shape") {
    if (no_qemu()) return;
    Qemu qemu(/*mdts=*/7);
    REQUIRE(qemu.machine);
    for (uint32_t depth : {2u, 4u, 16u, 64u, 256u, 1024u, 2048u}) {
        DriveOptions options;
        options.depth = depth;
        options.max_io_bytes = 512 << 10;
        const auto drive = std::make_shared<Drive>(open_qtest(qemu.machine, kSlot), options);
        const auto data = drive->device().allocate(8 << 20);
        const auto pair = drive->open_pair(depth, data->bytes());
        CHECK(pair->ref.depth == depth);
        CHECK(pair->ref.ids == depth - 1);
        const std::lock_guard lock(pair->mutex);
        std::mt19937 random(depth);
        const uint32_t total = std::min(3 * depth + 20, 2500u);
        const uint64_t stride = (8 << 20) / total / 4 * 4;
        std::vector<Read> reads;
        for (uint32_t i = 0; i < total; ++i) {
            const uint32_t most = static_cast<uint32_t>(std::min<uint64_t>(stride / 512, 1024));
            const uint32_t blocks = 1 + random() % most;
            reads.push_back({random() % (kImageBytes / 512 - blocks), i * stride, blocks, blocks * 512, 1, 0});
        }
        uint32_t sent = 0, answered = 0, bad = 0;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (answered < total && std::chrono::steady_clock::now() < deadline) {
            uint32_t posted = 0;
            while (sent < total && enqueue(kSerial, pair->ref, true, reads[sent], sent, now_ns()) == Enqueue::kDone) {
                ++sent;
                ++posted;
            }
            ring(kSerial, pair->ref, posted);
            drive->device().pump();
            answered += drain(kSerial, pair->ref, depth, [&](uint32_t, uint64_t user, uint32_t status) {
                const Read& read = reads[user];
                bad += status != 0 || std::memcmp(data->bytes().data() + read.offset,
                                                  qemu.image.data() + read.lba * 512, read.bytes) != 0;
                return true;
            });
        }
        CHECK(answered == total);
        CHECK(bad == 0);
        CHECK(pair->ref.shared->spurious == 0);
    }
}

TEST_CASE("QEMU: a time-out poisons its id for good and the queue works without it") {
    if (no_qemu()) return;
    Qemu qemu(/*mdts=*/7, /*latency_ms=*/400);
    REQUIRE(qemu.machine);
    DriveOptions options;
    options.timeout = std::chrono::milliseconds(100);
    const auto drive = std::make_shared<Drive>(open_qtest(qemu.machine, kSlot), options);
    const auto pair = drive->open_pair(3, {});
    CHECK(pair->bytes_per_id != 0);
    {
        const std::lock_guard lock(pair->mutex);
        REQUIRE(enqueue(kSerial, pair->ref, true, Read{0, 0, 1, 512, 2, 0}, 77, now_ns(), pair->bytes_per_id) ==
                Enqueue::kDone);
        ring(kSerial, pair->ref, 1);
        drive->device().pump();
    }
    std::vector<QueuePair::Failure> failures;
    for (int i = 0; i < 2000 && failures.empty(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const std::lock_guard lock(pair->mutex);
        failures.swap(pair->failures);
    }
    REQUIRE(failures.size() == 1);
    CHECK(failures[0].user == 77);
    CHECK(failures[0].error_number == ETIMEDOUT);
    for (int i = 0; i < 2000 && drive->stats().resets == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(drive->stats().resets == 1);
    CHECK(drive->stats().timeouts == 1);
    CHECK(drive->closed_reason().empty());
    const std::lock_guard lock(pair->mutex);
    uint32_t poisoned = 0;
    for (uint32_t id = 0; id < pair->ref.ids; ++id) poisoned += slot_state(pair->ref.slots[id].word) == kPoisoned;
    CHECK(poisoned == 1);
    for (int round = 0; round < 5; ++round) {
        uint32_t posted = 0, answered = 0;
        while (enqueue(kSerial, pair->ref, true, Read{posted, 0, 1, 512, 1, 0}, posted, now_ns(), pair->bytes_per_id) ==
               Enqueue::kDone)
            ++posted;
        CHECK(posted == 2);
        ring(kSerial, pair->ref, posted);
        for (int i = 0; i < 100'000 && answered < posted; ++i) {
            drive->device().pump();
            answered += drain(kSerial, pair->ref, 8, [&](uint32_t id, uint64_t user, uint32_t status) {
                CHECK(status == 0);
                CHECK(std::memcmp(pair->data->bytes().data() + id * pair->bytes_per_id, qemu.image.data() + user * 512,
                                  512) == 0);
                return true;
            });
            if (answered < posted) std::this_thread::sleep_for(std::chrono::microseconds(10));
        }
        CHECK(answered == posted);
    }
}
