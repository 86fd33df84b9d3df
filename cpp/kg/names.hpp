// Names of entities and relations, numbered by first occurrence: one hash table and one run of text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace gids::kg {

// 8 to 16 bytes a name beside its text. Not safe for several threads.
class NameIndex {
public:
    NameIndex() : slots_(kFirstSlots) {}

    // The number of a name; a new one gets the next number. Throws DatasetError past 2^31 - 1 names.
    int32_t find_or_add(std::string_view name);
    // -1 where the name is not known.
    int32_t find(std::string_view name) const;

    int64_t size() const { return static_cast<int64_t>(ends_.size()); }
    std::string_view name(int64_t id) const;
    const std::vector<char>& text() const { return text_; }
    const std::vector<int64_t>& ends() const { return ends_; }  // ends()[i] is where name i ends in text()

    // Ids in the order of their names' bytes, for binary search.
    std::vector<int32_t> order() const;

private:
    static constexpr size_t kFirstSlots = 1024;
    struct Slot {
        uint32_t tag = 0;  // upper half of the hash: most strangers are told apart without a look at the text
        int32_t id = -1;
    };
    // The slot that holds the name, or the free one where it belongs.
    size_t slot_of(std::string_view name, size_t hash) const;
    void grow();

    std::vector<Slot> slots_;  // size is a power of two, at least twice the names
    std::vector<char> text_;
    std::vector<int64_t> ends_;
};

}  // namespace gids::kg
