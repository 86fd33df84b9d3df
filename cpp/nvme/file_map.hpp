// Where the bytes of a file are on drives: a list of extents (FIEMAP), or stripes over several drives (gids nvme load).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "errors.hpp"
#include "file_map.cuh"

namespace gids::nvme {

class FileMap {
public:
    FileMap() = default;
    // Extents may come in any order; they must not overlap.
    explicit FileMap(std::vector<Extent> extents) : extents_(std::move(extents)) {
        std::sort(extents_.begin(), extents_.end(),
                  [](const Extent& a, const Extent& b) { return a.file_offset < b.file_offset; });
        for (size_t i = 1; i < extents_.size(); ++i)
            if (extents_[i - 1].file_offset + extents_[i - 1].length > extents_[i].file_offset)
                throw DatasetError("extents of a file must not overlap (at byte " +
                                   std::to_string(extents_[i].file_offset) + ")");
    }
    FileMap(std::vector<Column> columns, uint64_t unit_bytes, uint64_t bytes)
        : columns_(std::move(columns)), unit_bytes_(unit_bytes), bytes_(bytes) {
        if (columns_.empty() || unit_bytes_ == 0) throw ConfigError("a striped file needs columns and a unit");
    }

    FileView view() const {
        return {extents_.data(), extents_.size(), columns_.data(), columns_.size(), unit_bytes_, bytes_};
    }
    Place locate(uint64_t offset) const { return view().locate(offset); }

private:
    std::vector<Extent> extents_;
    std::vector<Column> columns_;
    uint64_t unit_bytes_ = 0, bytes_ = 0;
};

}  // namespace gids::nvme
