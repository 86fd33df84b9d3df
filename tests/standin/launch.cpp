// Libraries and launches. A cubin is checked as an ELF file that has the kernel; what then runs is the kernel of the
// same name in the lane-by-lane build (GIDS_STANDIN_KERNELS), because nothing here executes GPU code. What the compiler
// says of a kernel (parameters, threads, registers, shared memory) is read from the cubin and kept to.
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "state.hpp"

struct Kernel {
    std::string name;
    std::vector<std::size_t> argument_bytes, argument_offsets;
    std::vector<char> is_pointer;  // 0, 1, or 2: if its value is an address of the device
    unsigned parameter_bytes = 0, most_threads = 0, registers = 0, shared_bytes = 0;
};
struct Library {
    std::map<std::string, Kernel> in_cubin;  // as the compiler describes them; is_pointer is not known there
    std::map<std::string, std::unique_ptr<Kernel>> kernels;
};

namespace {

struct Lanes {
    int (*launch)(const char*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void**, uint64_t, char*,
                  std::size_t) = nullptr;
    int (*arguments)(const char*, std::size_t*, int) = nullptr;
    int (*pointers)(const char*, char*, int) = nullptr;
    void (*stop)() = nullptr;
    // Only where every access is looked at: who tells what the launches of this thread may touch.
    void (*reach)(int (*)(uint64_t, std::size_t, int, uint64_t*, uint64_t*), int) = nullptr;
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
        found.pointers = reinterpret_cast<decltype(found.pointers)>(dlsym(library, "gids_simt_pointers"));
        found.stop = reinterpret_cast<decltype(found.stop)>(dlsym(library, "gids_simt_stop"));
        found.reach = reinterpret_cast<decltype(found.reach)>(dlsym(library, "gids_ptx_reach"));
        return found;
    }();
    return loaded.launch != nullptr && loaded.arguments != nullptr ? &loaded : nullptr;
}

template <class T>
T read_at(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// One section .nv.info.NAME: attributes of a format, a number, and two bytes or as many as these say.
void read_info(const char* from, const char* end, Kernel* kernel) {
    constexpr char kSized = 4, kParameter = 0x17, kParameterBytes = 0x19, kMostThreads = 0x05;
    std::map<unsigned, std::pair<unsigned, unsigned>> parameters;  // ordinal -> offset, bytes
    while (from + 4 <= end) {
        const char format = from[0], attribute = from[1];
        const auto value = read_at<uint16_t>(from + 2);
        from += 4;
        if (attribute == kParameterBytes) kernel->parameter_bytes = value;
        if (format != kSized) continue;
        if (attribute == kParameter)  // index, ordinal, offset, and the size above 18 bits of something else
            parameters[read_at<uint16_t>(from + 4)] = {read_at<uint16_t>(from + 6), read_at<uint32_t>(from + 8) >> 18};
        if (attribute == kMostThreads)
            kernel->most_threads = read_at<uint32_t>(from) * read_at<uint32_t>(from + 4) * read_at<uint32_t>(from + 8);
        from += value;
    }
    for (const auto& [ordinal, place] : parameters) {
        kernel->argument_offsets.push_back(place.first);
        kernel->argument_bytes.push_back(place.second);
    }
}

// The entry points of a cubin: its sections .text.NAME, and what stands beside them.
CUresult entry_points(const char* code, std::map<std::string, Kernel>* kernels) {
    if (std::memcmp(code, ELFMAG, SELFMAG) != 0 || code[EI_CLASS] != ELFCLASS64) return CUDA_ERROR_INVALID_IMAGE;
    const auto header = read_at<Elf64_Ehdr>(code);
    constexpr int kCuda = 190;
    if (header.e_machine != kCuda) return CUDA_ERROR_INVALID_IMAGE;
    std::vector<Elf64_Shdr> sections;
    for (int i = 0; i < header.e_shnum; ++i)
        sections.push_back(read_at<Elf64_Shdr>(code + header.e_shoff + sizeof(Elf64_Shdr) * static_cast<unsigned>(i)));
    const char* strings = code + sections[header.e_shstrndx].sh_offset;
    for (const auto& section : sections) {
        const std::string name = strings + section.sh_name;
        if (name.rfind(".text.", 0) == 0) {
            Kernel& kernel = (*kernels)[name.substr(6)];
            kernel.name = name.substr(6);
            kernel.registers = section.sh_info >> 24;
        }
    }
    for (const auto& section : sections) {
        const std::string name = strings + section.sh_name;
        const auto of = [&](const char* prefix) -> Kernel* {
            if (name.rfind(prefix, 0) != 0) return nullptr;
            const auto found = kernels->find(name.substr(std::strlen(prefix)));
            return found == kernels->end() ? nullptr : &found->second;
        };
        const char* begin = code + section.sh_offset;
        if (Kernel* kernel = of(".nv.info.")) read_info(begin, begin + section.sh_size, kernel);
        if (Kernel* kernel = of(".nv.shared.")) kernel->shared_bytes = static_cast<unsigned>(section.sh_size);
    }
    return kernels->empty() ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

CUresult load(Library** out, const void* code) {
    auto library = std::make_unique<Library>();
    const CUresult result = entry_points(static_cast<const char*>(code), &library->in_cubin);
    if (result == CUDA_SUCCESS) *out = library.release();
    return result;
}

std::mutex libraries_mutex;

CUresult find(Kernel** out, Library* library, const char* name) {
    const auto described = library->in_cubin.find(name);
    if (described == library->in_cubin.end() || lanes() == nullptr) return CUDA_ERROR_NOT_FOUND;
    const std::lock_guard<std::mutex> lock(libraries_mutex);
    auto& kernel = library->kernels[name];
    if (kernel == nullptr) {
        std::size_t bytes[64];
        char pointers[64];
        std::fill(std::begin(pointers), std::end(pointers), char{2});  // 2: PTX does not tell; the value decides
        const int count = lanes()->arguments(name, bytes, 64);
        if (count < 0 || (lanes()->pointers != nullptr && lanes()->pointers(name, pointers, 64) != count)) {
            standin::complain(std::string("the lane-by-lane build has no kernel called ") + name);
            return CUDA_ERROR_NOT_FOUND;
        }
        auto made = std::make_unique<Kernel>(described->second);
        if (made->argument_bytes != std::vector<std::size_t>(bytes, bytes + count)) {
            standin::complain(std::string("the cubin's parameters of ") + name +
                              " are not those of the lane-by-lane build");
            return CUDA_ERROR_INVALID_IMAGE;
        }
        made->is_pointer.assign(pointers, pointers + count);
        kernel = std::move(made);
    }
    *out = kernel.get();
    return CUDA_SUCCESS;
}

CUresult refuse(const Kernel& kernel, const std::string& rule, CUresult result) {
    standin::complain(kernel.name + ": " + rule);
    return result;
}

CUresult check_limits(const Kernel& kernel, const CUlaunchConfig& config) {
    const uint64_t threads = uint64_t{config.block_x} * config.block_y * config.block_z;
    if (threads == 0 || config.grid_x == 0 || config.grid_y == 0 || config.grid_z == 0)
        return refuse(kernel, "a grid and a block must not be empty", CUDA_ERROR_INVALID_VALUE);
    if (config.grid_x > kMaxGridX || config.grid_y > kMaxGridY || config.grid_z > kMaxGridZ)
        return refuse(kernel, "the grid is larger than the device's", CUDA_ERROR_INVALID_VALUE);
    if (threads > kMaxThreads || config.block_x > kMaxBlockX || config.block_y > kMaxBlockY ||
        config.block_z > kMaxBlockZ)
        return refuse(kernel, "a block has more threads than the device's (" + std::to_string(threads) + ")",
                      CUDA_ERROR_INVALID_VALUE);
    if (kernel.most_threads != 0 && threads > kernel.most_threads)
        return refuse(kernel,
                      "a block has " + std::to_string(threads) + " threads, and the kernel is compiled for " +
                          std::to_string(kernel.most_threads),
                      CUDA_ERROR_INVALID_VALUE);
    if (kernel.shared_bytes + config.shared_bytes > kSharedBytes)
        return refuse(kernel,
                      "a block needs " + std::to_string(kernel.shared_bytes + config.shared_bytes) +
                          " bytes of shared memory, of " + std::to_string(kSharedBytes),
                      CUDA_ERROR_INVALID_VALUE);
    const uint64_t registers = (uint64_t{kernel.registers} + 7) / 8 * 8 * ((threads + 31) / 32 * 32);
    if (registers > kRegistersPerBlock)
        return refuse(kernel, "a block needs " + std::to_string(registers) + " registers",
                      CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    if (kernel.parameter_bytes > kParameterBytes)
        return refuse(kernel, "parameters take " + std::to_string(kernel.parameter_bytes) + " bytes",
                      CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

bool is_pointer(const Kernel& kernel, std::size_t i, const std::vector<char>& value) {
    if (kernel.is_pointer[i] != 2) return kernel.is_pointer[i] == 1;
    return value.size() == sizeof(CUdeviceptr) && standin::in_device_view(read_at<CUdeviceptr>(value.data()));
}

// What is wrong with a pointer as an argument, when the kernel begins; empty if nothing is.
std::string why_bad(CUdeviceptr pointer, const Context* context) {
    if (pointer == 0) return "";
    standin::Range range{};
    if (standin::find_running(pointer, &range)) {
        if (range.device == context->device) return "";
        return "is memory of device " + std::to_string(range.device) + ", and the kernel runs on device " +
               std::to_string(context->device);
    }
    if (standin::in_device_view(pointer)) return "is device memory that in stream order is not allocated, or freed";
    if (standin::forgiven("unregistered")) return "";
    return standin::why_unreachable(pointer, context);
}

// An access of a kernel: all of it in memory that lives now in stream order, or that is pinned.
int allows(uint64_t address, std::size_t bytes, int device, uint64_t* begin, uint64_t* end) {
    CUdeviceptr first = 0, last = 0;
    const bool allowed = standin::may_touch(address, bytes, device, &first, &last);
    *begin = first, *end = last;
    if (!allowed) {
        standin::complain(standin::hexadecimal(standin::pointer_of(address)) + ", " + std::to_string(bytes) +
                          " bytes that a kernel touches, are not all in live or pinned memory");
        standin::set_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    return allowed ? 1 : 0;
}

// Kernels that hand addresses of theirs to the host keep the addresses that the host knows.
bool keeps_addresses(const std::string& name) { return name.rfind("nvme_", 0) == 0; }

void run(const Kernel& kernel, const CUlaunchConfig& config, std::vector<std::vector<char>>& values,
         const Context* context, uint64_t seed) {
    std::vector<void*> pointers;
    for (std::size_t i = 0; i < values.size(); ++i) {
        pointers.push_back(values[i].data());
        if (!is_pointer(kernel, i, values[i])) continue;
        const auto pointer = read_at<CUdeviceptr>(values[i].data());
        if (const std::string wrong = why_bad(pointer, context); !wrong.empty()) {
            standin::complain(kernel.name + ": argument " + std::to_string(i) + ", " + standin::hexadecimal(pointer) +
                              ", " + wrong);
            standin::set_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
            return;
        }
        if (keeps_addresses(kernel.name)) continue;
        const char* real = standin::bytes_at(pointer);
        std::memcpy(values[i].data(), &real, sizeof real);
    }
    char error[1024] = "";
    if (lanes()->reach != nullptr) lanes()->reach(allows, context->device);
    if (lanes()->launch(kernel.name.c_str(), config.grid_x, config.grid_y, config.grid_z, config.block_x,
                        config.block_y, config.block_z, pointers.data(), seed, error, sizeof error) != 0) {
        standin::complain(kernel.name + ": " + error);
        if (standin::sticky() == CUDA_SUCCESS) standin::set_sticky(CUDA_ERROR_LAUNCH_FAILED);
    }
}

// Bytes that a launch could touch at most, as far as seen from outside: 16 for every lane in each array given.
std::string bytes_within_reach(const Kernel& kernel, const CUlaunchConfig& config,
                               const std::vector<std::vector<char>>& values) {
    const uint64_t reach =
        uint64_t{config.grid_x} * config.grid_y * config.grid_z * config.block_x * config.block_y * config.block_z * 16;
    uint64_t device = 0, host = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!is_pointer(kernel, i, values[i])) continue;
        const auto pointer = read_at<CUdeviceptr>(values[i].data());
        standin::Range range{};
        if (standin::find_running(pointer, &range))
            device += std::min<uint64_t>(reach, range.begin + range.bytes - pointer);
        else if (standin::find_pinned(pointer, &range))
            host += std::min<uint64_t>(reach, range.begin + range.bytes - pointer);
    }
    return "device=" + std::to_string(device) + ",host=" + std::to_string(host);
}

CUresult start(Kernel* kernel, const CUlaunchConfig& config, void** parameters) {
    if (const CUresult wrong = check_limits(*kernel, config); wrong != CUDA_SUCCESS) return wrong;
    const Context* context = standin::context(nullptr);
    if (!standin::is_live(config.stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (standin::device_of(config.stream) != context->device)
        return refuse(*kernel, "the stream is of another device than the current context", CUDA_ERROR_INVALID_HANDLE);
    if (standin::sticky() != CUDA_SUCCESS) return standin::sticky();
    // The driver copies arguments before it returns; so does this.
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (std::size_t i = 0; i < kernel->argument_bytes.size(); ++i) {
        const char* from = static_cast<const char*>(parameters[i]);
        values->emplace_back(from, from + kernel->argument_bytes[i]);
    }
    static std::atomic<uint64_t> launches{standin::setting("GIDS_STANDIN_SEED", 0)};
    const uint64_t seed = launches.fetch_add(1);
    const uint64_t grid = uint64_t{config.grid_x} * config.grid_y * config.grid_z;
    const uint64_t record =
        standin::trace("launch", config.stream, kernel->name, standin::take_items(),
                       std::to_string(grid) + "x" + std::to_string(config.block_x * config.block_y * config.block_z));
    standin::enqueue(
        config.stream,
        [=] {
            if (standin::sticky() != CUDA_SUCCESS) return;
            if (record != 0) standin::trace_work(record, bytes_within_reach(*kernel, config, *values));
            run(*kernel, config, *values, context, seed);
        },
        kernel->name);
    return CUDA_SUCCESS;
}

}  // namespace

namespace standin {

void stop_kernel() {
    if (lanes() != nullptr && lanes()->stop != nullptr) lanes()->stop();
}

}  // namespace standin

STANDIN_API CUresult cuLibraryLoadData(CUlibrary* out, const void* code, int*, void**, unsigned, int*, void**,
                                       unsigned) {
    ENTER(cuLibraryLoadData);
    return load(out, code);
}
STANDIN_API CUresult cuLibraryUnload(CUlibrary library) {
    ENTER(cuLibraryUnload);
    standin::synchronize_all("cuLibraryUnload");
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
    ENTER_IN_CONTEXT(cuKernelGetFunction);
    *out = kernel;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuKernelGetLibrary(CUlibrary*, CUkernel) { return CUDA_ERROR_NOT_SUPPORTED; }
STANDIN_API CUresult cuKernelGetName(const char** name, CUkernel kernel) {
    *name = kernel->name.c_str();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuKernelGetAttribute(int* value, int attribute, CUkernel kernel, CUdevice) {
    constexpr int kMostThreads = 0, kShared = 1, kRegisters = 4;  // CU_FUNC_ATTRIBUTE_*
    const unsigned most = kernel->most_threads != 0 ? kernel->most_threads : kMaxThreads;
    *value = static_cast<int>(attribute == kMostThreads ? most
                              : attribute == kShared    ? kernel->shared_bytes
                              : attribute == kRegisters ? kernel->registers
                                                        : 0);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuKernelGetParamInfo(CUkernel kernel, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    if (index >= kernel->argument_bytes.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = kernel->argument_offsets[index];
    if (bytes != nullptr) *bytes = kernel->argument_bytes[index];
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuModuleLoadData(CUmodule* out, const void* code) {
    ENTER_IN_CONTEXT(cuModuleLoadData);
    return load(out, code);
}
STANDIN_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
    ENTER_IN_CONTEXT(cuModuleGetFunction);
    return find(out, module, name);
}
STANDIN_API CUresult cuModuleUnload(CUmodule module) {
    ENTER_TO_END(cuModuleUnload);
    standin::synchronize_all("cuModuleUnload");
    delete module;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction kernel, void** parameters, void**) {
    ENTER_IN_CONTEXT(cuLaunchKernel);
    return start(kernel, *config, parameters);
}
STANDIN_API CUresult cuLaunchKernel(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                    CUstream stream, void** parameters, void**) {
    ENTER_IN_CONTEXT(cuLaunchKernel);
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
