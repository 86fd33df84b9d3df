// Where the bytes of a file are on drives, for the host and for kernels: a list of extents, or stripes over columns.
#pragma once

#include "exec.cuh"

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

// A view of a map, trivially copyable into a kernel's memory; FileMap owns what it points to on the host.
struct FileView {
    const Extent* extents;  // ascending, without overlap
    uint64_t num_extents;
    const Column* columns;  // where there are some, there are no extents
    uint64_t num_columns, unit_bytes, bytes;

    GIDS_DEVICE Place locate(uint64_t offset) const {
        if (num_columns != 0) {
            if (offset >= bytes) return {0, 0, 0, 0};
            const uint64_t unit = offset / unit_bytes, within = offset % unit_bytes;
            const Column& column = columns[unit % num_columns];
            const uint64_t left = bytes - offset, in_unit = unit_bytes - within;
            // With one column the whole file lies together.
            const uint64_t run = num_columns == 1 || left < in_unit ? left : in_unit;
            return {column.drive_offset + unit / num_columns * unit_bytes + within, run, column.drive, column.nsid};
        }
        uint64_t first = 0;  // extents before it begin at or before the offset
        for (uint64_t last = num_extents; first < last;) {
            const uint64_t middle = first + (last - first) / 2;
            if (extents[middle].file_offset <= offset) first = middle + 1;
            else last = middle;
        }
        if (first == 0) return {0, 0, 0, 0};
        const Extent& extent = extents[first - 1];
        const uint64_t within = offset - extent.file_offset;
        if (within >= extent.length) return {0, 0, 0, 0};
        return {extent.drive_offset + within, extent.length - within, extent.drive, extent.nsid};
    }
};

}  // namespace gids::nvme
