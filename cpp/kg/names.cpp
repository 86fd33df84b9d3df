// Names of entities and relations: open addressing over hashes, text in one run.
#include "kg/names.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "errors.hpp"

namespace gids::kg {

std::string_view NameIndex::name(int64_t id) const {
    const auto i = static_cast<size_t>(id);
    const int64_t begin = i == 0 ? 0 : ends_[i - 1];
    return {text_.data() + begin, static_cast<size_t>(ends_[i] - begin)};
}

size_t NameIndex::slot_of(std::string_view name, size_t hash) const {
    const size_t mask = slots_.size() - 1;
    const auto tag = static_cast<uint32_t>(hash >> 32);
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        const Slot& slot = slots_[i];
        if (slot.id < 0 || (slot.tag == tag && this->name(slot.id) == name)) return i;
    }
}

int32_t NameIndex::find(std::string_view name) const {
    return slots_[slot_of(name, std::hash<std::string_view>{}(name))].id;
}

int32_t NameIndex::find_or_add(std::string_view name) {
    const size_t hash = std::hash<std::string_view>{}(name);
    size_t place = slot_of(name, hash);
    if (slots_[place].id >= 0) return slots_[place].id;
    if (size() >= std::numeric_limits<int32_t>::max())
        throw DatasetError("a knowledge graph must have at most 2^31 - 1 names (got one more)");
    if (ends_.size() * 2 >= slots_.size()) {
        grow();
        place = slot_of(name, hash);
    }
    const auto id = static_cast<int32_t>(ends_.size());
    text_.insert(text_.end(), name.begin(), name.end());
    ends_.push_back(static_cast<int64_t>(text_.size()));
    slots_[place] = {static_cast<uint32_t>(hash >> 32), id};
    return id;
}

void NameIndex::grow() {
    slots_.assign(slots_.size() * 2, Slot{});
    for (int64_t id = 0; id < size(); ++id) {
        const std::string_view text = name(id);
        const size_t hash = std::hash<std::string_view>{}(text);
        slots_[slot_of(text, hash)] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(id)};
    }
}

std::vector<int32_t> NameIndex::order() const {
    std::vector<int32_t> ids(ends_.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(), [this](int32_t a, int32_t b) { return name(a) < name(b); });
    return ids;
}

}  // namespace gids::kg
