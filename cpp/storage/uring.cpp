// The uring engine: registered files and buffers, one ring per I/O thread, one system call per batch.
#include "storage/engine.hpp"

#ifdef GIDS_HAVE_URING
#include <liburing.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "errors.hpp"
#include "interrupted.hpp"
#include "storage/files.hpp"

namespace gids::storage {
namespace {

struct SetupChoice {
    unsigned flags;
    const char* words;
};

// From the cheapest completion path to the plain one; the first that the kernel accepts is used.
// R_DISABLED: the ring is made by the thread that opens the reader and enabled by the I/O thread, which thereby
// becomes its single issuer.
constexpr SetupChoice kChoices[] = {
    {IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"},
    {IORING_SETUP_R_DISABLED | IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN"},
    {IORING_SETUP_R_DISABLED, "no task-run flags"},
};
constexpr SetupChoice kPolledChoices[] = {
    {IORING_SETUP_R_DISABLED | IORING_SETUP_SQPOLL, "SQPOLL"},
};

std::string describe(int error) { return std::string(std::strerror(error)) + " (errno " + std::to_string(error) + ")"; }

class UringQueue final : public Queue {
public:
    UringQueue(std::shared_ptr<Files> files, std::span<std::byte> staging, unsigned depth, const EngineOptions& options,
               std::string& notes)
        : files_(std::move(files)), depth_(depth), iopoll_(options.iopoll) {
        int result = -EINVAL;
        const auto attempt = [&](const SetupChoice& choice) {
            if (result == 0) return;
            io_uring_params params{};
            params.flags = choice.flags | IORING_SETUP_CQSIZE | (iopoll_ ? IORING_SETUP_IOPOLL : 0u);
            params.cq_entries = 2 * depth;
            params.sq_thread_idle = 50;  // ms
            result = retry_on_negative_eintr([&] { return io_uring_queue_init_params(depth, &ring_, &params); });
            flags_ = choice.flags;
        };
        if (options.sqpoll) std::for_each(std::begin(kPolledChoices), std::end(kPolledChoices), attempt);
        else std::for_each(std::begin(kChoices), std::end(kChoices), attempt);
        if (result < 0) throw ConfigError("engine uring cannot make a ring here: " + describe(-result));
        const auto& descriptors = files_->descriptors();
        fixed_files_ =
            retry_on_negative_eintr([&] {
                return io_uring_register_files(&ring_, descriptors.data(), static_cast<unsigned>(descriptors.size()));
            }) == 0;
        if (!fixed_files_) notes = "files are not registered";
        iovec region{staging.data(), staging.size()};
        const int registered = retry_on_negative_eintr([&] { return io_uring_register_buffers(&ring_, &region, 1); });
        fixed_buffers_ = registered == 0;
        if (!fixed_buffers_)
            notes = "staging is not registered: " + describe(-registered) + "; raise the memlock limit (ulimit -l)";
    }

    // Closing a ring cancels or waits out its requests inside the kernel, which holds the pinned pages meanwhile.
    ~UringQueue() override { io_uring_queue_exit(&ring_); }

    unsigned depth() const override { return depth_; }

    void submit(std::span<const IoRequest> requests) override {
        for (const IoRequest& request : requests) {
            io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
            while (sqe == nullptr) {  // only when the kernel did not take earlier ones (EBUSY, EAGAIN)
                enter(0, Microseconds(1000));
                sqe = io_uring_get_sqe(&ring_);
            }
            const int descriptor = fixed_files_ ? static_cast<int>(request.file) : files_->descriptors()[request.file];
            if (fixed_buffers_ && request.staged)
                io_uring_prep_read_fixed(sqe, descriptor, request.buffer, request.length, request.offset, 0);
            else io_uring_prep_read(sqe, descriptor, request.buffer, request.length, request.offset);
            if (fixed_files_) sqe->flags |= IOSQE_FIXED_FILE;
            sqe->user_data = request.tag;
        }
        if (flags_ & IORING_SETUP_SQPOLL) enter(0, Microseconds(0));
    }

    size_t reap(std::span<IoCompletion> completions, size_t at_least, Microseconds timeout) override {
        size_t count = collect(completions, 0);
        if (count < at_least || io_uring_sq_ready(&ring_) > 0) {
            enter(static_cast<unsigned>(at_least > count ? at_least - count : 0), timeout);
            count = collect(completions, count);
        }
        return count;
    }

    std::string explain(uint64_t) const override {
        return not_polled_ ? "read failed: iopoll needs a device and a driver that poll, with poll queues set up" : "";
    }

    void cancel() override {
        // Every request of the ring; IORING_ASYNC_CANCEL_ANY is there since 5.19, and older kernels answer EINVAL,
        // which leaves the requests to end by themselves.
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
        if (sqe == nullptr) return;
        io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
        sqe->user_data = kCancelTag;
        enter(0, Microseconds(0));
    }

private:
    static constexpr uint64_t kCancelTag = ~uint64_t{0};

    void enter(unsigned at_least, Microseconds timeout) {
        if (!enabled_) {
            // liburing 2.3 declares io_uring_enable_rings but does not export it.
            retry_on_eintr([&] {
                return syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
            });
            enabled_ = true;
        }
        // A polled ring ignores time-outs while it waits, so it never waits here.
        if (iopoll_) at_least = 0;
        if (at_least == 0) {
            io_uring_submit_and_get_events(&ring_);
            return;
        }
        __kernel_timespec limit{timeout.count() / 1'000'000, timeout.count() % 1'000'000 * 1000};
        io_uring_cqe* ignored = nullptr;
        // Interrupted, out of time or busy: the caller looks at what arrived and comes back.
        io_uring_submit_and_wait_timeout(&ring_, &ignored, at_least, &limit, nullptr);
    }

    size_t collect(std::span<IoCompletion> completions, size_t count) {
        unsigned head = 0, seen = 0;
        io_uring_cqe* cqe = nullptr;
        io_uring_for_each_cqe(&ring_, head, cqe) {
            if (count == completions.size()) break;
            ++seen;
            if (cqe->user_data == kCancelTag || cqe->user_data == LIBURING_UDATA_TIMEOUT) continue;
            not_polled_ |= iopoll_ && cqe->res == -EOPNOTSUPP;
            completions[count++] = {cqe->user_data, cqe->res, nullptr};
        }
        io_uring_cq_advance(&ring_, seen);
        return count;
    }

    std::shared_ptr<Files> files_;
    const unsigned depth_;
    const bool iopoll_;
    unsigned flags_ = 0;
    bool enabled_ = false, not_polled_ = false;
    bool fixed_files_ = false, fixed_buffers_ = false;
    io_uring ring_{};
};

class UringEngine final : public Engine {
public:
    UringEngine(const TableLayout& layout, EngineOptions options)
        : files_(std::make_shared<Files>(layout, /*direct=*/true)),
          home_cpu_(files_->interrupt_cpu()),
          options_(std::move(options)),
          notes_(files_->notes()) {}
    std::string name() const override { return "uring"; }
    std::string notes() const override { return notes_; }
    uint64_t block_bytes() const override { return files_->block_bytes(); }
    bool reads_anywhere() const override { return true; }
    int home_cpu() const override { return home_cpu_; }
    std::unique_ptr<Queue> make_queue(std::span<std::byte> staging, unsigned depth) override {
        std::string lacks;
        auto queue = std::make_unique<UringQueue>(files_, staging, depth, options_, lacks);
        if (!lacks.empty() && notes_.find(lacks) == std::string::npos) notes_ += (notes_.empty() ? "" : "; ") + lacks;
        return queue;
    }

private:
    std::shared_ptr<Files> files_;
    const int home_cpu_;
    EngineOptions options_;
    std::string notes_;
};

}  // namespace

std::string uring_refusal() {
    io_uring ring;
    const int result = retry_on_negative_eintr([&] { return io_uring_queue_init(2, &ring, 0); });
    if (result < 0) return "the kernel refuses io_uring: " + describe(-result);
    io_uring_queue_exit(&ring);
    return {};
}

std::unique_ptr<Engine> open_uring(const TableLayout& layout, const EngineOptions& options) {
    return std::make_unique<UringEngine>(layout, options);
}

}  // namespace gids::storage

#else

#include "errors.hpp"

namespace gids::storage {

std::string uring_refusal() { return "gids was built without liburing"; }

std::unique_ptr<Engine> open_uring(const TableLayout&, const EngineOptions&) {
    throw ConfigError("engine uring cannot be used: " + uring_refusal());
}

}  // namespace gids::storage
#endif
