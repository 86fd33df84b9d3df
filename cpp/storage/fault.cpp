// The fault engine: wraps any other and makes chosen requests fail, fall short, wait, come out of order or vanish.
#include <algorithm>
#include <cstring>
#include <thread>

#include "storage/engine.hpp"

namespace gids::storage {
namespace {

using Clock = std::chrono::steady_clock;

class FaultQueue final : public Queue {
public:
    FaultQueue(std::unique_ptr<Queue> inner, const FaultOptions& options)
        : inner_(std::move(inner)), options_(options), fresh_(inner_->depth()) {}

    unsigned depth() const override { return inner_->depth(); }

    void submit(std::span<const IoRequest> requests) override {
        for (const IoRequest& request : requests) {
            const int64_t number = count_++;
            if (number == options_.block_at) std::this_thread::sleep_for(Microseconds(options_.block_us));
            if (number == options_.stuck_at) continue;
            if (number == options_.fail_at) {
                hold({request.tag, -options_.error_number, nullptr});
                continue;
            }
            if (number == options_.short_at) shortened_ = request;
            inner_->submit({&request, 1});
            ++inside_;
        }
    }

    size_t reap(std::span<IoCompletion> completions, size_t at_least, Microseconds timeout) override {
        const auto deadline = Clock::now() + timeout;
        size_t given = 0;
        for (;;) {
            // In short slices, because held completions become due while the inner queue has nothing to say.
            const size_t wanted = inside_ > 0 && given < at_least ? 1 : 0;
            const size_t count = inside_ > 0 ? inner_->reap(fresh_, wanted, Microseconds(1000)) : 0;
            inside_ -= count;
            if (options_.reorder) std::reverse(fresh_.begin(), fresh_.begin() + static_cast<std::ptrdiff_t>(count));
            for (size_t i = 0; i < count; ++i) hold(fresh_[i]);
            const auto now = Clock::now();
            while (given < completions.size() && !held_.empty() && held_.front().due <= now) {
                completions[given++] = held_.front().completion;
                held_.erase(held_.begin());
            }
            if (given >= at_least || now >= deadline) return given;
            if (inside_ == 0) std::this_thread::sleep_for(Microseconds(200));
        }
    }

    void cancel() override { inner_->cancel(); }

private:
    struct Held {
        Clock::time_point due;
        IoCompletion completion;
    };

    void hold(IoCompletion completion) {
        if (shortened_ && completion.tag == shortened_->tag) {
            // What a device did not deliver is not there: whoever uses it reads this.
            if (completion.result > options_.short_bytes) {
                if (shortened_->buffer)
                    std::memset(shortened_->buffer + options_.short_bytes, 0xbd,
                                static_cast<size_t>(completion.result - options_.short_bytes));
                completion.result = options_.short_bytes;
            }
            // Also where it was as short as that by itself: tags are used again, and its buffer is another read's then.
            shortened_.reset();
        }
        const Held item{Clock::now() + Microseconds(options_.delay_us), completion};
        if (options_.reorder) held_.insert(held_.begin(), item);
        else held_.push_back(item);
    }

    const std::unique_ptr<Queue> inner_;
    const FaultOptions options_;
    std::vector<IoCompletion> fresh_;
    std::vector<Held> held_;
    std::optional<IoRequest> shortened_;
    int64_t count_ = 0;
    size_t inside_ = 0;  // requests that the inner queue has
};

class FaultEngine final : public Engine {
public:
    FaultEngine(std::unique_ptr<Engine> inner, const FaultOptions& options)
        : inner_(std::move(inner)), options_(options) {}
    std::string name() const override { return inner_->name(); }
    std::string notes() const override {
        const std::string inner = inner_->notes();
        return inner.empty() ? "faults are injected" : inner + "; faults are injected";
    }
    uint64_t block_bytes() const override { return inner_->block_bytes(); }
    bool needs_staging() const override { return inner_->needs_staging(); }
    bool reads_anywhere() const override { return inner_->reads_anywhere(); }
    bool guarded() const override { return inner_->guarded(); }
    uint64_t file_bytes(size_t file) const override { return inner_->file_bytes(file); }
    std::unique_ptr<Queue> make_queue(std::span<std::byte> staging, unsigned depth) override {
        return std::make_unique<FaultQueue>(inner_->make_queue(staging, depth), options_);
    }

private:
    const std::unique_ptr<Engine> inner_;
    const FaultOptions options_;
};

}  // namespace

std::unique_ptr<Engine> wrap_in_faults(std::unique_ptr<Engine> inner, const FaultOptions& options) {
    return std::make_unique<FaultEngine>(std::move(inner), options);
}

}  // namespace gids::storage
