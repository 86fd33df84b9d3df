// Engines by name, and the choice that "auto" makes.
#include "errors.hpp"
#include "storage/engine.hpp"

namespace gids::storage {

std::vector<std::pair<std::string, std::string>> engine_availability() {
    return {{"uring", uring_refusal()}, {"pread", ""}, {"memory", ""}};
}

std::unique_ptr<Engine> open_engine(const TableLayout& layout, const EngineOptions& options) {
    if (options.engine == "uring") {
        if (const std::string reason = uring_refusal(); !reason.empty())
            throw ConfigError("engine uring cannot be used: " + reason);
        return open_uring(layout, options);
    }
    if (options.engine == "pread") return open_pread(layout);
    if (options.engine == "memory") return open_memory(layout);
    std::string names;
    for (const auto& [name, reason] : engine_availability()) names += ", " + name;
    throw ConfigError("engine must be one of auto" + names + " (got " + options.engine + ")");
}

}  // namespace gids::storage
