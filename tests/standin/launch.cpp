// Libraries and launches. A cubin is checked as an ELF file that has the kernel; what then runs is the kernel of the
// same name in the lane-by-lane build (GIDS_STANDIN_KERNELS), because nothing here executes GPU code.
#include <dlfcn.h>
#include <elf.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "state.hpp"

struct Kernel {
    std::string name;
    std::vector<std::size_t> argument_bytes;
};
struct Library {
    std::vector<std::string> in_cubin;
    std::map<std::string, std::unique_ptr<Kernel>> kernels;
};

namespace {

struct Lanes {
    int (*launch)(const char*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void**, uint64_t, char*,
                  std::size_t) = nullptr;
    int (*arguments)(const char*, std::size_t*, int) = nullptr;
};

const Lanes* lanes() {
    static const Lanes loaded = [] {
        Lanes found;
        const char* path = std::getenv("GIDS_STANDIN_KERNELS");
        void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
        if (library == nullptr) {
            standin::complain(std::string("GIDS_STANDIN_KERNELS must name the lane-by-lane build (") +
                              (path == nullptr ? "not set" : dlerror()) + ")");
            return found;
        }
        found.launch = reinterpret_cast<decltype(found.launch)>(dlsym(library, "gids_simt_launch"));
        found.arguments = reinterpret_cast<decltype(found.arguments)>(dlsym(library, "gids_simt_arguments"));
        return found;
    }();
    return loaded.launch != nullptr && loaded.arguments != nullptr ? &loaded : nullptr;
}

// Names of the entry points of a cubin: its sections .text.NAME.
CUresult entry_points(const char* code, std::vector<std::string>* names) {
    if (std::memcmp(code, ELFMAG, SELFMAG) != 0 || code[EI_CLASS] != ELFCLASS64) return CUDA_ERROR_INVALID_IMAGE;
    Elf64_Ehdr header;
    std::memcpy(&header, code, sizeof header);
    constexpr int kCuda = 190;
    if (header.e_machine != kCuda) return CUDA_ERROR_INVALID_IMAGE;
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(code + header.e_shoff);
    const char* strings = code + sections[header.e_shstrndx].sh_offset;
    for (int i = 0; i < header.e_shnum; ++i) {
        const std::string name = strings + sections[i].sh_name;
        if (name.rfind(".text.", 0) == 0) names->push_back(name.substr(6));
    }
    return names->empty() ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

CUresult load(Library** out, const void* code) {
    auto library = std::make_unique<Library>();
    const CUresult result = entry_points(static_cast<const char*>(code), &library->in_cubin);
    if (result == CUDA_SUCCESS) *out = library.release();
    return result;
}

CUresult find(Kernel** out, Library* library, const char* name) {
    bool in_cubin = false;
    for (const auto& entry : library->in_cubin) in_cubin |= entry == name;
    if (!in_cubin || lanes() == nullptr) return CUDA_ERROR_NOT_FOUND;
    auto& kernel = library->kernels[name];
    if (kernel == nullptr) {
        std::size_t bytes[64];
        const int count = lanes()->arguments(name, bytes, 64);
        if (count < 0) {
            standin::complain(std::string("the lane-by-lane build has no kernel called ") + name);
            return CUDA_ERROR_NOT_FOUND;
        }
        kernel = std::make_unique<Kernel>(Kernel{name, {bytes, bytes + count}});
    }
    *out = kernel.get();
    return CUDA_SUCCESS;
}

CUresult start(Kernel* kernel, const CUlaunchConfig& config, void** parameters) {
    const uint64_t threads = uint64_t{config.block_x} * config.block_y * config.block_z;
    if (threads == 0 || threads > 1024 || config.grid_x == 0 || config.grid_y == 0 || config.grid_z == 0 ||
        config.grid_y > 65535 || config.grid_z > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (config.shared_bytes > (48u << 10)) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (standin::sticky() != CUDA_SUCCESS) return standin::sticky();
    // The driver copies arguments before it returns; so does this.
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (std::size_t i = 0; i < kernel->argument_bytes.size(); ++i) {
        const char* from = static_cast<const char*>(parameters[i]);
        values->emplace_back(from, from + kernel->argument_bytes[i]);
    }
    static std::atomic<uint64_t> launches{standin::setting("GIDS_STANDIN_SEED", 0)};
    const uint64_t seed = launches.fetch_add(1);
    standin::enqueue(config.stream, [=] {
        if (standin::sticky() != CUDA_SUCCESS) return;
        std::vector<void*> pointers;
        for (auto& value : *values) pointers.push_back(value.data());
        char error[1024] = "";
        if (lanes()->launch(kernel->name.c_str(), config.grid_x, config.grid_y, config.grid_z, config.block_x,
                            config.block_y, config.block_z, pointers.data(), seed, error, sizeof error) != 0) {
            standin::complain(kernel->name + ": " + error);
            standin::set_sticky(CUDA_ERROR_LAUNCH_FAILED);
        }
    });
    return CUDA_SUCCESS;
}

}  // namespace

STANDIN_API CUresult cuLibraryLoadData(CUlibrary* out, const void* code, int*, void**, unsigned, int*, void**,
                                       unsigned) {
    ENTER(cuLibraryLoadData);
    return load(out, code);
}
STANDIN_API CUresult cuLibraryUnload(CUlibrary library) {
    ENTER(cuLibraryUnload);
    standin::synchronize_all();
    delete library;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary library, const char* name) {
    ENTER(cuLibraryGetKernel);
    return find(out, library, name);
}
STANDIN_API CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
    *count = static_cast<unsigned>(library->in_cubin.size());
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuKernelGetFunction(CUfunction* out, CUkernel kernel) {
    *out = kernel;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuKernelGetLibrary(CUlibrary*, CUkernel) { return CUDA_ERROR_NOT_SUPPORTED; }
STANDIN_API CUresult cuKernelGetName(const char** name, CUkernel kernel) {
    *name = kernel->name.c_str();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuKernelGetAttribute(int* value, int attribute, CUkernel, CUdevice) {
    *value = attribute == 0 ? 1024 : 0;  // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuKernelGetParamInfo(CUkernel kernel, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    if (index >= kernel->argument_bytes.size()) return CUDA_ERROR_INVALID_VALUE;
    std::size_t at = 0;
    for (std::size_t i = 0; i <= index; ++i) {
        const std::size_t size = kernel->argument_bytes[i];
        const std::size_t alignment = size >= 8 ? 8 : size;
        at = (at + alignment - 1) / alignment * alignment;
        *offset = at;
        at += size;
    }
    if (bytes != nullptr) *bytes = kernel->argument_bytes[index];
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuModuleLoadData(CUmodule* out, const void* code) {
    ENTER(cuModuleLoadData);
    return load(out, code);
}
STANDIN_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
    ENTER(cuModuleGetFunction);
    return find(out, module, name);
}
STANDIN_API CUresult cuModuleUnload(CUmodule module) {
    standin::synchronize_all();
    delete module;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction kernel, void** parameters, void**) {
    ENTER(cuLaunchKernel);
    return start(kernel, *config, parameters);
}
STANDIN_API CUresult cuLaunchKernel(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                    CUstream stream, void** parameters, void**) {
    ENTER(cuLaunchKernel);
    return start(kernel, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, nullptr, 0},
                 parameters);
}

// Finds the calls above by name, as the real library does; what is missing here is reported as missing.
STANDIN_API CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
    Dl_info self;
    dladdr(reinterpret_cast<void*>(&cuGetProcAddress_v2), &self);
    static void* const library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    void* found = nullptr;
    for (const char* suffix : {"_v3", "_v2", ""}) {
        found = dlsym(library, (std::string(symbol) + suffix).c_str());
        if (found != nullptr) break;
    }
    *function = found;
    if (status != nullptr) *status = found != nullptr ? 0 : 1;  // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    if (std::getenv("GIDS_STANDIN_TRACE") != nullptr && found == nullptr)
        standin::complain(std::string("asked for ") + symbol);
    return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
STANDIN_API CUresult cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
