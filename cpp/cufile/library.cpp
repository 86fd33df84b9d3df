// Finds cuFile's functions by name. What is loaded stays loaded: its threads may outlive whoever asked for it.
#include "cufile/library.hpp"

#include <dlfcn.h>

#include "errors.hpp"

namespace gids::cufile {
namespace {

void* open(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) throw ConfigError(path + " must be loadable (" + dlerror() + ")");
    return library;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw ConfigError(std::string("cuFile must have ") + name + ": it is older than 1.6");
}

}  // namespace

Library load_library(const std::string& path) {
    Library found;
    void* cufile = open(path);
    find(cufile, "cuFileHandleRegister", found.handle_register);
    find(cufile, "cuFileHandleDeregister", found.handle_deregister);
    find(cufile, "cuFileDriverGetProperties", found.properties);
    find(cufile, "cuFileBatchIOSetUp", found.set_up);
    find(cufile, "cuFileBatchIOSubmit", found.submit);
    find(cufile, "cuFileBatchIOGetStatus", found.get_status);
    find(cufile, "cuFileBatchIOCancel", found.cancel);
    find(cufile, "cuFileBatchIODestroy", found.destroy);
    find(open("libcuda.so.1"), "cuCtxSetCurrent", found.set_context);
    return found;
}

std::string describe(const Error& error) {
    std::string text = "cuFile error " + std::to_string(error.code);
    if (error.cuda != 0) text += ", CUDA error " + std::to_string(error.cuda);
    return text;
}

}  // namespace gids::cufile
