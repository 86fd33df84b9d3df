// Where the rows of a table lie in its files: the C++ side of gids.table.RowTable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gids::storage {

struct StripeFile {
    std::string path;
    uint64_t data_offset;
    uint64_t num_rows;
};

// Row r belongs to unit u = r / stripe_rows, which lies in file u % files as that file's unit number u / files.
// A *key* numbers rows in the order of (file, offset), so that sorting keys sorts byte ranges; with one file it is
// the row number itself.
class TableLayout {
public:
    TableLayout(std::vector<StripeFile> files, uint64_t num_rows, uint64_t row_bytes, uint64_t row_stride,
                uint64_t stripe_rows);

    const std::vector<StripeFile>& files() const { return files_; }
    uint64_t num_rows() const { return num_rows_; }
    uint64_t row_bytes() const { return row_bytes_; }
    uint64_t row_stride() const { return row_stride_; }
    bool striped() const { return files_.size() > 1; }

    uint64_t key_of(uint64_t row) const {
        if (!striped()) return row;
        const uint64_t unit = row / stripe_rows_;
        const uint64_t file = unit % files_.size();
        return first_key_[file] + unit / files_.size() * stripe_rows_ + row % stripe_rows_;
    }
    uint64_t row_of(uint64_t key) const;
    // Keys of file f are [first_key(f), first_key(f + 1)).
    uint64_t first_key(size_t file) const { return first_key_[file]; }
    // Byte offset, in its file, of the row with this key.
    uint64_t offset_of(uint64_t key, size_t file) const {
        return files_[file].data_offset + (key - first_key_[file]) * row_stride_;
    }
    // Bytes the file must have for its rows to be complete.
    uint64_t end_of_rows(size_t file) const;

private:
    std::vector<StripeFile> files_;
    uint64_t num_rows_, row_bytes_, row_stride_, stripe_rows_;
    std::vector<uint64_t> first_key_;  // files + 1 entries
};

}  // namespace gids::storage
