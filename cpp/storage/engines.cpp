// Engines by name: the one table that open_engine and engine_availability share.
#include "errors.hpp"
#include "nvme/engine.hpp"
#include "storage/engine.hpp"
#include "storage/kernel_copy.hpp"

namespace gids::storage {
namespace {

struct Entry {
    const char* name;
    std::string (*refusal)();
    std::unique_ptr<Engine> (*open)(const TableLayout&, const EngineOptions&);
};

std::string always() { return {}; }
std::string mmap_refusal() {
    return kernel_copies() ? "" : "the kernel refuses process_vm_readv, without which a truncated file would kill us";
}
std::string nvme_refusal() { return nvme::any_file() ? "" : "no drive is open (gids.nvme.open_drives)"; }

// In the order in which "auto" prefers them; those after pread have to be asked for.
constexpr Entry kEngines[] = {
    {"uring", uring_refusal, open_uring},
    {"pread", always, [](const TableLayout& layout, const EngineOptions&) { return open_pread(layout); }},
    {"mmap", mmap_refusal, [](const TableLayout& layout, const EngineOptions&) { return open_mmap(layout); }},
    {"memory", always, [](const TableLayout& layout, const EngineOptions&) { return open_memory(layout); }},
    {"nvme", nvme_refusal, [](const TableLayout& layout, const EngineOptions&) { return nvme::open_engine(layout); }},
};

}  // namespace

std::vector<std::pair<std::string, std::string>> engine_availability() {
    std::vector<std::pair<std::string, std::string>> found;
    for (const Entry& entry : kEngines) found.emplace_back(entry.name, entry.refusal());
    return found;
}

std::unique_ptr<Engine> open_engine(const TableLayout& layout, const EngineOptions& options) {
    std::string names;
    for (const Entry& entry : kEngines) {
        names += std::string(names.empty() ? "" : ", ") + entry.name;
        if (options.engine != entry.name) continue;
        if (const std::string reason = entry.refusal(); !reason.empty())
            throw ConfigError("engine " + options.engine + " cannot be used: " + reason);
        auto engine = entry.open(layout, options);
        return options.fault ? wrap_in_faults(std::move(engine), *options.fault) : std::move(engine);
    }
    throw ConfigError("engine must be one of " + names + " (got " + options.engine + ")");
}

}  // namespace gids::storage
