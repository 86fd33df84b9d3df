// The nanobind module gids._native: one bind_* function per subsystem, and the translation of exceptions.
#include "bind.hpp"

#include <nanobind/stl/string.h>

#include "errors.hpp"
#include "signal.hpp"
#include "thread_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void raise(const char* name, const nb::object& args) {
    const nb::object type = nb::module_::import_("gids.errors").attr(name);
    PyErr_SetObject(type.ptr(), type(*args).ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const gids::StorageError& e) {
        raise("StorageError", nb::make_tuple(e.what(), e.path, e.offset, e.length, e.error_number));
    } catch (const gids::DatasetError& e) {
        raise("DatasetError", nb::make_tuple(e.what()));
    } catch (const gids::OverloadError& e) {
        raise("OverloadError", nb::make_tuple(e.what()));
    } catch (const gids::CancelledError& e) {
        raise("CancelledError", nb::make_tuple(e.what()));
    } catch (const gids::ConfigError& e) {
        raise("ConfigError", nb::make_tuple(e.what()));
    }
}

void bind_thread_pool(nb::module_& m) {
    nb::class_<gids::ThreadPool>(m, "ThreadPool", "Threads that share loops; the calling thread is one of them.")
        .def(nb::init<int, std::string>(), "threads"_a, "name"_a = "gids-pool")
        .def_prop_ro("threads", &gids::ThreadPool::threads);
}

void bind_signal(nb::module_& m) {
    nb::class_<gids::Signal>(m, "Signal", "A semaphore that cuLaunchHostFunc can post.")
        .def(nb::init<>())
        .def("wait", &gids::Signal::wait, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Take one post; return False after so many seconds without any.")
        .def_prop_ro("function", &gids::Signal::function, "Address of the function that posts.")
        .def_prop_ro("address", &gids::Signal::address, "What that function is given.");
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native core of gids.";
    // An interpreter may end while threads of ours stand in the middle of something, and hold it; the system takes it
    // back.
    nb::set_leak_warnings(false);
    nb::register_exception_translator(translate);
    bind_thread_pool(m);
    bind_signal(m);
    gids::bind_dataset(m);
    gids::bind_tiers(m);
    gids::bind_partition(m);
    gids::bind_sampling(m);
    gids::bind_storage(m);
    gids::bind_nvme(m);
    gids::bind_cufile(m);
    gids::bind_kg(m);
    gids::bind_pack(m);
    gids::bind_infer(m);
}
