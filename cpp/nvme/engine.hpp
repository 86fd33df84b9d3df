// The engine `nvme` behind the storage interface.
#pragma once

#include <memory>

#include "nvme/drive_set.hpp"
#include "storage/engine.hpp"

namespace gids::nvme {

// Every file of the layout must be known to a DriveSet (see DriveSet::add_file).
std::unique_ptr<storage::Engine> open_engine(const storage::TableLayout& layout);

}  // namespace gids::nvme
