// Where the bytes of a file are on drives: a list of extents (FIEMAP), or stripes over several drives (gids nvme load).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "errors.hpp"

namespace gids::nvme {

// Bytes [file_offset, file_offset + length) of the file are at drive_offset of a namespace.
struct Extent {
    uint64_t file_offset, length, drive_offset;
    uint32_t drive, nsid;
};

struct Place {
    uint64_t drive_offset;
    uint64_t run;  // bytes from here on that lie together; 0 past the end
    uint32_t drive, nsid;
};

// Unit u of a striped file is on column u % columns, as that column's unit number u / columns.
struct Column {
    uint64_t drive_offset;
    uint32_t drive, nsid;
};

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

    Place locate(uint64_t offset) const {
        if (!columns_.empty()) {
            if (offset >= bytes_) return {0, 0, 0, 0};
            const uint64_t unit = offset / unit_bytes_, within = offset % unit_bytes_;
            const Column& column = columns_[unit % columns_.size()];
            // With one column the whole file lies together.
            const uint64_t run =
                columns_.size() == 1 ? bytes_ - offset : std::min(unit_bytes_ - within, bytes_ - offset);
            return {column.drive_offset + unit / columns_.size() * unit_bytes_ + within, run, column.drive,
                    column.nsid};
        }
        const auto after = std::upper_bound(extents_.begin(), extents_.end(), offset,
                                            [](uint64_t at, const Extent& e) { return at < e.file_offset; });
        if (after == extents_.begin()) return {0, 0, 0, 0};
        const Extent& extent = *(after - 1);
        const uint64_t within = offset - extent.file_offset;
        if (within >= extent.length) return {0, 0, 0, 0};
        return {extent.drive_offset + within, extent.length - within, extent.drive, extent.nsid};
    }

private:
    std::vector<Extent> extents_;
    std::vector<Column> columns_;
    uint64_t unit_bytes_ = 0, bytes_ = 0;
};

}  // namespace gids::nvme
