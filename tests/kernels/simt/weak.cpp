// Histories of locations and views of lanes.
#include "weak.hpp"

#include <algorithm>

namespace simt {

void WeakMemory::start(int lanes) {
    locations_.clear();
    released_.clear();
    views_.assign(lanes, {});
}

void WeakMemory::join(View& to, const View& from) {
    for (const auto& [at, number] : from) {
        uint64_t& mine = to[at];
        mine = std::max(mine, number);
    }
}

void WeakMemory::push(Location& location, uint64_t value, std::shared_ptr<const View> view) {
    location.messages.push_back({value, std::move(view)});
    if (location.messages.size() > kHistory) {
        location.messages.pop_front();
        ++location.first;
    }
}

WeakMemory::Location& WeakMemory::location(uintptr_t at, uint64_t newest) {
    Location& found = locations_[at];
    // Not our store, or our first look: somebody outside of the kernel may have written it, after what he could have
    // seen.
    if (found.messages.empty() || found.messages.back().value != newest)
        push(found, newest, std::make_shared<View>(released_));
    return found;
}

uint64_t WeakMemory::load(int lane, uintptr_t at, uint64_t newest, bool acquire, uint64_t choice) {
    Location& from = location(at, newest);
    uint64_t& oldest = views_[lane][at];
    const uint64_t lowest = std::max(oldest, from.first);
    // Half of the loads see the latest, so that a loop that waits for it ends.
    const uint64_t number = (choice & 1) != 0 ? from.last() : lowest + (choice >> 1) % (from.last() - lowest + 1);
    oldest = number;
    const Message& message = from.messages[number - from.first];
    const uint64_t value = message.value;
    if (acquire && message.view) join(views_[lane], *message.view);
    return value;
}

void WeakMemory::store(int lane, uintptr_t at, uint64_t old, uint64_t value, bool release) {
    Location& to = location(at, old);
    push(to, value, nullptr);
    views_[lane][at] = to.last();
    if (!release) return;
    to.messages.back().view = std::make_shared<View>(views_[lane]);
    join(released_, views_[lane]);
}

void WeakMemory::update(int lane, uintptr_t at, uint64_t old, uint64_t value, bool acquire, bool release) {
    Location& to = location(at, old);
    const std::shared_ptr<const View> before = to.messages.back().view;
    if (acquire && before) join(views_[lane], *before);
    push(to, value, before);  // what was released with the value that was read goes on with the new one
    views_[lane][at] = to.last();
    if (!release) return;
    auto view = std::make_shared<View>(views_[lane]);
    if (before) join(*view, *before);
    join(released_, *view);
    to.messages.back().view = std::move(view);
}

void WeakMemory::meet(const std::vector<int>& lanes) {
    View all;
    for (const int lane : lanes) join(all, views_[lane]);
    for (const int lane : lanes) views_[lane] = all;
}

}  // namespace simt
