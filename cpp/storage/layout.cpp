// TableLayout: checks that the stripes really hold the rows that the round-robin rule puts there.
#include "storage/layout.hpp"

#include <algorithm>

#include "errors.hpp"

namespace gids::storage {

TableLayout::TableLayout(std::vector<StripeFile> files, uint64_t num_rows, uint64_t row_bytes, uint64_t row_stride,
                         uint64_t stripe_rows)
    : files_(std::move(files)),
      num_rows_(num_rows),
      row_bytes_(row_bytes),
      row_stride_(row_stride),
      stripe_rows_(stripe_rows) {
    if (files_.empty()) throw ConfigError("files must not be empty");
    if (row_bytes_ < 1 || row_stride_ < row_bytes_)
        throw ConfigError("row_stride must be at least row_bytes = " + std::to_string(row_bytes_) + " (got " +
                          std::to_string(row_stride_) + ")");
    if (row_bytes_ > (uint64_t{1} << 31))
        throw ConfigError("row_bytes must be at most 2 GiB (got " + std::to_string(row_bytes_) + ")");
    if (stripe_rows_ < 1) throw ConfigError("stripe_rows must be at least 1 (got 0)");
    const uint64_t units = num_rows_ / stripe_rows_, rest = num_rows_ % stripe_rows_, count = files_.size();
    first_key_.push_back(0);
    for (uint64_t f = 0; f < count; ++f) {
        uint64_t rows = num_rows_;
        if (count > 1) rows = (units / count + (f < units % count)) * stripe_rows_ + (f == units % count ? rest : 0);
        if (files_[f].num_rows != rows)
            throw ConfigError("stripe " + std::to_string(f) + " must hold " + std::to_string(rows) + " rows (got " +
                              std::to_string(files_[f].num_rows) + ")");
        first_key_.push_back(first_key_.back() + rows);
    }
}

uint64_t TableLayout::row_of(uint64_t key) const {
    if (!striped()) return key;
    const auto next = std::upper_bound(first_key_.begin(), first_key_.end() - 1, key);
    const uint64_t file = static_cast<uint64_t>(next - first_key_.begin()) - 1;
    const uint64_t local = key - first_key_[file];
    return (local / stripe_rows_ * files_.size() + file) * stripe_rows_ + local % stripe_rows_;
}

uint64_t TableLayout::end_of_rows(size_t file) const {
    const uint64_t rows = files_[file].num_rows;
    return rows == 0 ? 0 : files_[file].data_offset + (rows - 1) * row_stride_ + row_bytes_;
}

}  // namespace gids::storage
