// The process-wide table from paths to drives.
#include "nvme/drive_set.hpp"

namespace gids::nvme {
namespace {

struct Entry {
    DriveSet* owner;
    std::weak_ptr<DriveSet> set;
    std::shared_ptr<const FileMap> map;
};

std::mutex table_mutex;
std::map<std::string, Entry>& table() {  // guarded by table_mutex; never destroyed: sets may outlive main()
    static auto* entries = new std::map<std::string, Entry>;
    return *entries;
}

}  // namespace

void DriveSet::add_file(const std::string& path, FileMap map, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes;) {
        const Place place = map.locate(at);
        if (place.run == 0)
            throw DatasetError("map of " + path + " must cover " + std::to_string(bytes) + " bytes (hole at " +
                               std::to_string(at) + ")");
        if (place.drive >= drives_.size())
            throw ConfigError("map of " + path + " names drive " + std::to_string(place.drive) + " of " +
                              std::to_string(drives_.size()));
        const NamespaceInfo& space = drives_[place.drive]->find_namespace(place.nsid);
        const uint64_t run = std::min(place.run, bytes - at);
        if (place.drive_offset % (uint64_t{1} << space.block_bits) != 0 && at == 0)
            throw ConfigError("map of " + path + " must begin at a block of " + drives_[place.drive]->name());
        if (place.drive_offset + run > space.blocks << space.block_bits)
            throw DatasetError("map of " + path + " must end inside " + drives_[place.drive]->name() + " (" +
                               std::to_string(space.blocks << space.block_bits) + " bytes)");
        at += run;
    }
    const std::lock_guard lock(table_mutex);
    table()[path] = {this, weak_from_this(), std::make_shared<const FileMap>(std::move(map))};
    paths_.push_back(path);
}

void DriveSet::forget() {
    const std::lock_guard lock(table_mutex);
    for (const std::string& path : paths_) {
        const auto entry = table().find(path);
        if (entry != table().end() && entry->second.owner == this) table().erase(entry);
    }
    paths_.clear();
}

bool any_file() {
    const std::lock_guard lock(table_mutex);
    return !table().empty();
}

MappedFile find_file(const std::string& path) {
    const std::lock_guard lock(table_mutex);
    const auto entry = table().find(path);
    if (entry != table().end())
        if (auto set = entry->second.set.lock()) return {std::move(set), entry->second.map};
    throw ConfigError(
        "engine nvme needs the file's place on an open drive: call gids.nvme.open_drives(...).attach(...) "
        "first (got " +
        path + ")");
}

}  // namespace gids::nvme
