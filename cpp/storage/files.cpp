// Files: open, check the length, find the alignment of direct reads.
#include "storage/files.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "errors.hpp"
#include "interrupted.hpp"
#include "storage/interrupts.hpp"

namespace gids::storage {
namespace {

constexpr uint64_t kSafeBlock = 4096;

// Block that direct reads of this descriptor must be aligned to; 0 where direct reads do not work.
uint64_t direct_block(int descriptor) {
    struct stat info;
    if (retry_on_eintr([&] { return fstat(descriptor, &info); }) == 0 && S_ISBLK(info.st_mode)) {
        int sector = 0;
        return retry_on_eintr([&] { return ioctl(descriptor, BLKSSZGET, &sector); }) == 0 && sector > 0
                   ? static_cast<uint64_t>(sector)
                   : kSafeBlock;
    }
#ifdef STATX_DIOALIGN
    struct statx extended;
    if (retry_on_eintr([&] { return statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &extended); }) == 0 &&
        extended.stx_mask & STATX_DIOALIGN)
        return extended.stx_dio_offset_align;
#endif
    // Older kernels do not tell; try. A filesystem may accept O_DIRECT at open and refuse the read.
    void* probe = nullptr;
    if (posix_memalign(&probe, kSafeBlock, kSafeBlock) != 0) return 0;
    uint64_t found = 0;
    for (const uint64_t block : {uint64_t{512}, kSafeBlock})
        if (found == 0 &&
            retry_on_eintr([&] { return pread(descriptor, probe, block, static_cast<off_t>(block)); }) >= 0)
            found = block;
    std::free(probe);
    return found;
}

int open_file(const std::string& path, int flags) {
    return retry_on_eintr([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | flags); });
}

uint64_t length_of(int descriptor, const std::string& path) {
    // Works for files and for block devices.
    const off_t end = retry_on_eintr([&] { return lseek(descriptor, 0, SEEK_END); });
    if (end < 0) throw StorageError("cannot find the length of the file", path, 0, 0, errno);
    return static_cast<uint64_t>(end);
}

}  // namespace

Files::Files(const TableLayout& layout, bool direct) : direct_(direct) {
    try {
        for (size_t f = 0; f < layout.files().size(); ++f) {
            const std::string& path = layout.files()[f].path;
            int descriptor = direct_ ? open_file(path, O_DIRECT) : -1;
            const bool refused = direct_ && descriptor < 0 && errno == EINVAL;
            if (!direct_ || refused) descriptor = open_file(path, 0);
            if (descriptor < 0) throw StorageError("cannot open the file", path, 0, 0, errno);
            descriptors_.push_back(descriptor);
            sizes_.push_back(length_of(descriptor, path));
            if (sizes_.back() < layout.end_of_rows(f))
                throw StorageError("file is shorter than its table: " + std::to_string(sizes_.back()) +
                                       " bytes where the rows end at " + std::to_string(layout.end_of_rows(f)),
                                   path, sizes_.back(), layout.end_of_rows(f) - sizes_.back(), 0);
            if (!direct_) continue;
            const uint64_t block = refused ? 0 : direct_block(descriptor);
            if (block == 0) {
                notes_ = "buffered reads: the filesystem of " + path + " refuses O_DIRECT";
                direct_ = false;
            }
            block_bytes_ = std::max(block_bytes_, block);
        }
    } catch (...) {
        close_all();
        throw;
    }
    if (direct_) return;
    // One file that refuses makes all of them buffered: one block size for the whole table keeps the plan simple.
    block_bytes_ = 1;
    for (const int descriptor : descriptors_) {
        const int flags = fcntl(descriptor, F_GETFL);
        if (flags >= 0 && flags & O_DIRECT) fcntl(descriptor, F_SETFL, flags & ~O_DIRECT);
    }
}

int Files::interrupt_cpu() const {
    int found = -1;
    for (size_t f = 0; f < descriptors_.size(); ++f) {
        struct stat info;
        if (retry_on_eintr([&] { return fstat(descriptors_[f], &info); }) != 0) return -1;
        const int cpu = storage::interrupt_cpu(S_ISBLK(info.st_mode) ? info.st_rdev : info.st_dev);
        if (cpu < 0 || (f > 0 && cpu != found)) return -1;
        found = cpu;
    }
    return found;
}

Files::~Files() { close_all(); }

void Files::close_all() {
    for (const int descriptor : descriptors_) close(descriptor);
    descriptors_.clear();
}

}  // namespace gids::storage
