// Exceptions that cross into Python as gids.errors.*; the binding translates them by type.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gids {

// An argument breaks a rule. The message gives name, rule and value.
struct ConfigError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// Data on disk contradicts itself or its manifest.
struct DatasetError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A read failed. Every field reaches the Python exception.
struct StorageError : std::runtime_error {
    StorageError(const std::string& what, std::string path_, uint64_t offset_, uint64_t length_, int error_number_)
        : std::runtime_error(what),
          path(std::move(path_)),
          offset(offset_),
          length(length_),
          error_number(error_number_) {}
    std::string path;
    uint64_t offset;
    uint64_t length;
    int error_number;  // errno, or 0 where the kernel reported none (a short read, a time-out)
};

// Too many requests wait: this one was refused, or had to make room for a client with fewer.
struct OverloadError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A request was cancelled, or came after the end.
struct CancelledError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace gids
