// Drives that are open in this process and the files that are known to be on them: where the engine `nvme` looks.
#pragma once

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

// Whether any file is known to be on an open drive.
bool any_file();

// Throws ConfigError when the path is on no open drive.
MappedFile find_file(const std::string& path);

}  // namespace gids::nvme
