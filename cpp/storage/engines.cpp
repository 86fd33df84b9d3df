// Engines by name, and the choice that "auto" makes.
#include "errors.hpp"
#include "nvme/engine.hpp"
#include "storage/engine.hpp"

namespace gids::storage {

std::vector<std::pair<std::string, std::string>> engine_availability() {
    return {{"uring", uring_refusal()},
            {"pread", ""},
            {"memory", ""},
            {"nvme", nvme::any_file() ? "" : "no drive is open (gids.nvme.open_drives)"}};
}

std::unique_ptr<Engine> open_engine(const TableLayout& layout, const EngineOptions& options) {
    if (options.engine == "uring") {
        if (const std::string reason = uring_refusal(); !reason.empty())
            throw ConfigError("engine uring cannot be used: " + reason);
        return open_uring(layout, options);
    }
    if (options.engine == "pread") return open_pread(layout);
    if (options.engine == "memory") return open_memory(layout);
    if (options.engine == "nvme") return nvme::open_engine(layout);
    std::string names;
    for (const auto& [name, reason] : engine_availability()) names += ", " + name;
    throw ConfigError("engine must be one of auto" + names + " (got " + options.engine + ")");
}

}  // namespace gids::storage
