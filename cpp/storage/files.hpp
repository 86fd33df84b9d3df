// The open files of a table: direct where the filesystem allows it, with the alignment that it asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/layout.hpp"

namespace gids::storage {

class Files {
public:
    // Checks that every file is long enough for its rows. With `direct`, asks for O_DIRECT and falls back to buffered
    // reads for all files if any of them refuses.
    Files(const TableLayout& layout, bool direct);
    ~Files();
    Files(const Files&) = delete;
    Files& operator=(const Files&) = delete;

    const std::vector<int>& descriptors() const { return descriptors_; }
    uint64_t size_bytes(size_t file) const { return sizes_[file]; }
    bool direct() const { return direct_; }
    uint64_t block_bytes() const { return block_bytes_; }
    // The processor that all disks of the files interrupt; -1 where there is no such one.
    int interrupt_cpu() const;
    const std::string& notes() const { return notes_; }

private:
    void close_all();

    std::vector<int> descriptors_;
    std::vector<uint64_t> sizes_;
    bool direct_ = false;
    uint64_t block_bytes_ = 1;
    std::string notes_;
};

}  // namespace gids::storage
