// Sweeps: threads lead passes in turn, each for all that wait.
#include "sampling/sweeps.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace gids {
namespace {

constexpr auto kDiskSlice = std::chrono::milliseconds(100);

}  // namespace

bool Sweeps::fits(const Request& request, int64_t beside) const {
    return beside == 0 || beside + static_cast<int64_t>(request.rows.size()) <= options_.most_rows;
}

Sweeps::Rows Sweeps::read(Array<int64_t> rows, const std::function<void()>& check_interrupt) {
    if (rows.size() == 0) return {};
    requests_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count
    const auto mine = std::make_shared<Request>();
    mine->owner = std::make_shared<Array<int64_t>>(std::move(rows));
    mine->rows = {mine->owner->data(), static_cast<size_t>(mine->owner->size())};
    std::unique_lock lock(mutex_);
    waiting_.push_back(mine);
    const auto may_lead = [&] {
        return !mine->taken && running_ < options_.at_once && fits(*waiting_.front(), under_way_);
    };
    while (!mine->done) {
        if (may_lead()) {
            lead(lock, mine, check_interrupt);
        } else if (!changed_.wait_for(lock, kDiskSlice, [&] { return mine->done || may_lead(); })) {
            if (!check_interrupt) continue;
            lock.unlock();
            try {
                check_interrupt();
            } catch (...) {
                lock.lock();
                std::erase(waiting_, mine);
                throw;
            }
            lock.lock();
        }
    }
    if (mine->failed)
        throw StorageError(mine->failure.what, mine->failure.path, mine->failure.offset, mine->failure.length,
                           mine->failure.error_number);
    return mine->result;
}

// Takes all that wait, as far as there is memory, and serves them.
void Sweeps::lead(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Request>& mine,
                  const std::function<void()>& check_interrupt) {
    std::vector<std::shared_ptr<Request>> taken;
    int64_t rows = 0;
    while (!waiting_.empty() && fits(*waiting_.front(), under_way_ + rows)) {
        taken.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
        taken.back()->taken = true;
        rows += static_cast<int64_t>(taken.back()->rows.size());
    }
    ++running_;
    under_way_ += rows;
    lock.unlock();
    std::exception_ptr interrupt;
    try {
        pass_or_fail(taken, check_interrupt);
    } catch (...) {  // an interrupt of this thread: the others' requests are left to somebody else
        interrupt = std::current_exception();
    }
    lock.lock();
    --running_;
    under_way_ -= rows;
    for (auto& request : taken) {
        if (!interrupt) request->done = true;
        else if (request != mine) {
            request->taken = false;
            waiting_.push_back(request);
        }
    }
    changed_.notify_all();
    if (interrupt) {
        std::erase(waiting_, mine);
        std::rethrow_exception(interrupt);
    }
}

// A read that fails in a pass for several fails only those that asked for it.
void Sweeps::pass_or_fail(Requests requests, const std::function<void()>& check_interrupt) {
    try {
        pass(requests, check_interrupt);
        return;
    } catch (const StorageError& error) {
        if (requests.size() == 1) {
            requests[0]->failed = true;
            requests[0]->failure = {error.what(), error.path, error.offset, error.length, error.error_number};
            return;
        }
    }
    for (const auto& request : requests) pass_or_fail({&request, 1}, check_interrupt);
}

void Sweeps::pass(Requests requests, const std::function<void()>& check_interrupt) {
    passes_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count
    std::span<const int64_t> all = requests[0]->rows;
    if (requests.size() > 1) {
        int64_t total = 0;
        for (const auto& request : requests) total += static_cast<int64_t>(request->rows.size());
        const auto joined = std::make_shared<Array<int64_t>>(total, Buffer::Of::kProcess);
        int64_t* next = joined->data();
        for (const auto& request : requests) {
            std::copy(request->rows.begin(), request->rows.end(), next);
            request->rows = {next, request->rows.size()};
            request->owner = joined;  // gives its own copy back
            next += request->rows.size();
        }
        all = {joined->data(), static_cast<size_t>(total)};
    }
    const auto frames =
        std::make_shared<Array<std::byte>>(static_cast<int64_t>(all.size()) * options_.row_bytes, Buffer::Of::kProcess);
    for (const auto& request : requests) {
        request->result.frames_ = frames;
        request->result.offset_ = (request->rows.data() - all.data()) * options_.row_bytes;
    }
    const auto job = reader_.submit(all, frames->data());
    while (!job->wait_for(kDiskSlice)) {
        if (!check_interrupt) continue;
        try {
            check_interrupt();
        } catch (...) {
            job->cancel();
            throw;
        }
    }
}

}  // namespace gids
