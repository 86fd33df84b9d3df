// What Python and the stand-in for the driver call: the functions of the lane-by-lane build, so that either library
// serves either caller, and the PTX machine's own. The PTX is entry.ptx and probe.ptx beside this library, or what
// gids_ptx_load was given.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <shared_mutex>
#include <sstream>

#include "machine.hpp"

namespace {

using namespace ptx;

std::shared_mutex state_mutex;  // launches read the module and the regions
Module module_of_texts;
Regions regions;
bool is_counting = false, checks_races = false;

thread_local Reach reach_of_thread;

std::mutex totals_mutex;
std::map<std::string, Totals> totals;

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error("no PTX can be read from " + path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void parse_default() {
    Dl_info self;
    dladdr(reinterpret_cast<void*>(&parse_default), &self);
    const std::string library = self.dli_fname;
    const std::string folder = library.substr(0, library.rfind('/') + 1);
    for (const char* name : {"entry.ptx", "probe.ptx"}) parse(read_file(folder + name), module_of_texts);
}

const Module& loaded_module() {
    {
        const std::shared_lock lock(state_mutex);
        if (!module_of_texts.entries.empty()) return module_of_texts;
    }
    const std::unique_lock lock(state_mutex);
    if (module_of_texts.entries.empty()) parse_default();
    return module_of_texts;
}

template <class F>
int guarded(char* error, std::size_t error_bytes, F work) {
    try {
        work();
        return 0;
    } catch (const std::exception& e) {
        std::snprintf(error, error_bytes, "%s", e.what());
        return 1;
    }
}

}  // namespace

extern "C" {

int gids_simt_launch(const char* name, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                     unsigned block_y, unsigned block_z, void** arguments, uint64_t seed, char* error,
                     std::size_t error_bytes) {
    return guarded(error, error_bytes, [&] {
        const Module& module = loaded_module();
        const std::shared_lock lock(state_mutex);
        const auto found = module.entries.find(name);
        if (found == module.entries.end()) throw Error(std::string("no kernel is called ") + name);
        Machine machine(found->second, regions, {seed, is_counting, checks_races, reach_of_thread});
        if (is_counting) machine.count();
        machine.launch({grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, arguments);
        if (!is_counting) return;
        const std::lock_guard totals_lock(totals_mutex);
        totals[name].add(machine.counters().totals);
    });
}

int gids_simt_arguments(const char* name, std::size_t* sizes, int capacity) {
    char error[512];
    int count = -1;
    const int failed = guarded(error, sizeof error, [&] {
        const auto& entries = loaded_module().entries;
        const auto found = entries.find(name);
        if (found == entries.end()) return;
        count = static_cast<int>(found->second.parameters.size());
        for (int i = 0; i < count && i < capacity; ++i) sizes[i] = found->second.parameters[i].bytes;
    });
    if (failed != 0) std::fprintf(stderr, "PTX machine: %s\n", error);
    return count;
}

// Which arguments of a kernel are pointers: pointers[i] becomes 1 or 0.
int gids_simt_pointers(const char* name, char* pointers, int capacity) {
    const int count = gids_simt_arguments(name, nullptr, 0);
    for (int i = 0; i < count && i < capacity; ++i)
        pointers[i] = loaded_module().entries.at(name).parameters[i].is_pointer ? 1 : 0;
    return count;
}

// Ends every kernel that runs now: their launches return 1. Called by another thread.
void gids_simt_stop() { ++Machine::stops; }

const char* gids_simt_names() {
    static std::string names;
    char error[512];
    names.clear();
    const int failed = guarded(error, sizeof error, [&] {
        for (const auto& [name, entry] : loaded_module().entries) names += name + "\n";
    });
    if (failed != 0) std::fprintf(stderr, "PTX machine: %s\n", error);
    return names.c_str();
}

// Replaces what was loaded by this text, or, when it is null, by the texts beside the library.
int gids_ptx_load(const char* text, char* error, std::size_t error_bytes) {
    return guarded(error, error_bytes, [&] {
        const std::unique_lock lock(state_mutex);
        module_of_texts = Module{};
        if (text == nullptr) parse_default();
        else parse(text, module_of_texts);
    });
}

// Says who else uses a range of memory (regions.hpp); "" forgets all ranges.
int gids_ptx_region(const char* kind, uint64_t address, uint64_t bytes, char* error, std::size_t error_bytes) {
    return guarded(error, error_bytes, [&] {
        const std::unique_lock lock(state_mutex);
        if (*kind == '\0') regions.clear();
        else regions.add(kind, address, bytes);
    });
}

// From now on launches of the calling thread may touch only what `find` allows to kernels of a device; null: anything.
void gids_ptx_reach(int (*find)(uint64_t, std::size_t, int, uint64_t*, uint64_t*), int device) {
    reach_of_thread = {find, device};
}

// From now on: count (which runs warps in lockstep), and look for races.
void gids_ptx_options(int counting, int races) {
    const std::unique_lock lock(state_mutex);
    is_counting = counting != 0;
    checks_races = races != 0;
}

// Writes the counts since the last call as JSON; returns the bytes needed.
std::size_t gids_ptx_take_counts(char* to, std::size_t capacity) {
    const std::lock_guard lock(totals_mutex);
    const std::string text = to_json(totals);
    if (text.size() + 1 > capacity) return text.size() + 1;
    std::snprintf(to, capacity, "%s", text.c_str());
    totals.clear();
    return text.size() + 1;
}
}
