// Drives that are open in this process and the files that are known to be on them: where the engine `nvme` looks.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nvme/drive.hpp"
#include "nvme/file_map.hpp"

namespace gids::nvme {

class DriveSet : public std::enable_shared_from_this<DriveSet> {
public:
    explicit DriveSet(std::vector<std::shared_ptr<Drive>> drives) : drives_(std::move(drives)) {}
    ~DriveSet() { forget(); }
    DriveSet(const DriveSet&) = delete;
    DriveSet& operator=(const DriveSet&) = delete;

    const std::vector<std::shared_ptr<Drive>>& drives() const { return drives_; }
    // From now on engine `nvme` reads `path` from these drives. Checks that the map stays inside the namespaces'
    // blocks.
    void add_file(const std::string& path, FileMap map, uint64_t bytes);
    // Takes all files back; readers that are open keep the drives until they close.
    void forget();

private:
    const std::vector<std::shared_ptr<Drive>> drives_;
    std::vector<std::string> paths_;
};

struct MappedFile {
    std::shared_ptr<DriveSet> set;
    std::shared_ptr<const FileMap> map;
};

// One command's part of a range of a file: `done` bytes of the range come before it.
struct Cut {
    uint64_t lba;
    uint32_t drive, nsid, blocks, bytes, done;
    bool aligned;  // false: the file's place is not aligned to the drive's blocks, and nothing can be read there
};

// Cuts bytes [offset, offset + length) of a file into commands of at most limit(drive) bytes and calls emit(cut) for
// each until it returns false. Returns the bytes emitted: fewer than `length` where the file's map ends.
template <class Limit, class Emit>
uint32_t cut_range(const DriveSet& set, const FileMap& map, uint64_t offset, uint32_t length, const Limit& limit,
                   const Emit& emit) {
    uint32_t done = 0;
    while (done < length) {
        const Place place = map.locate(offset + done);
        if (place.run == 0) break;
        const uint32_t bits = set.drives()[place.drive]->find_namespace(place.nsid).block_bits;
        const uint64_t block = uint64_t{1} << bits;
        const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(
            {length - done, (place.run + block - 1) / block * block, limit(place.drive) / block * block}));
        const bool aligned = place.drive_offset % block == 0 && bytes % block == 0;
        if (!emit(Cut{place.drive_offset >> bits, place.drive, place.nsid, bytes >> bits, bytes, done, aligned})) break;
        done += bytes;
    }
    return done;
}

// Whether any file is known to be on an open drive.
bool any_file();

// Throws ConfigError when the path is on no open drive.
MappedFile find_file(const std::string& path);

}  // namespace gids::nvme
