// Memory for sampled arrays: big pieces are recycled with their pages, because faulting and zeroing them again would
// cost about as much as filling them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gids {

// Zeroed bytes of their own on huge pages, for what lives long, e.g. the edges of a graph; given back when destroyed.
class HugeBytes {
public:
    explicit HugeBytes(size_t bytes);
    ~HugeBytes();
    HugeBytes(const HugeBytes&) = delete;
    HugeBytes& operator=(const HugeBytes&) = delete;

    uint8_t* data() const { return static_cast<uint8_t*>(data_); }

private:
    void* data_ = nullptr;
    size_t bytes_;
};

// Uninitialised bytes from the process-wide recycler. Sizes of kHugeBytes and more are backed by huge pages.
class Buffer {
public:
    static constexpr size_t kHugeBytes = size_t{1} << 20;

    // Whose a piece is: the thread's that makes it, or of no thread where another one may be the last to hold it.
    enum class Of { kThread, kProcess };

    Buffer() = default;
    explicit Buffer(size_t bytes, Of of = Of::kThread);
    ~Buffer();
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    bool zeroed() const { return zeroed_; }  // true when the kernel just mapped it

    // Of all Buffers of the process, as pieces; retained_bytes wait for the next ones.
    // held_bytes + retained_bytes <= the most that was ever held at once: recycling adds nothing to the peak.
    struct Usage {
        size_t held_bytes;
        size_t peak_bytes;  // most that was held since mark_peak
        size_t retained_bytes;
    };
    static Usage usage();
    static void mark_peak();

    // Of the Buffers that the calling thread made as its own, less those of any thread that it destroyed; the most
    // since its last mark.
    struct ThreadUsage {
        int64_t held_bytes;  // negative where it destroyed more than it made
        int64_t peak_bytes;
    };
    static ThreadUsage thread_usage();
    static void mark_thread_peak();

    // Frees every piece that no Buffer holds.
    static void trim();

    // The size of the piece that holds so many bytes.
    static size_t piece_bytes(size_t bytes);

private:
    void swap(Buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(zeroed_, other.zeroed_);
        std::swap(of_, other.of_);
    }

    void* data_ = nullptr;
    size_t bytes_ = 0;
    bool zeroed_ = false;
    Of of_ = Of::kThread;
};

// A Buffer seen as elements of T, with a logical size within its capacity.
template <class T>
class Array {
public:
    Array() = default;
    explicit Array(int64_t size, Buffer::Of of = Buffer::Of::kThread)
        : buffer_(static_cast<size_t>(size) * sizeof(T), of), size_(size) {}
    Array(Array&& other) noexcept : buffer_(std::move(other.buffer_)), size_(std::exchange(other.size_, 0)) {}
    Array& operator=(Array&& other) noexcept {
        buffer_ = std::move(other.buffer_);
        size_ = std::exchange(other.size_, 0);
        return *this;
    }

    T* data() const { return static_cast<T*>(buffer_.data()); }
    int64_t size() const { return size_; }
    int64_t capacity() const { return static_cast<int64_t>(buffer_.bytes() / sizeof(T)); }
    size_t capacity_bytes() const { return buffer_.bytes(); }
    T& operator[](int64_t i) const { return data()[i]; }
    T* begin() const { return data(); }
    T* end() const { return data() + size_; }
    bool zeroed() const { return buffer_.zeroed(); }

    // size must not exceed the capacity.
    void set_size(int64_t size) { size_ = size; }

    // Moves to the smallest piece that holds the elements: an array that many wait with must not keep its working room.
    void fit() {
        if (Buffer::piece_bytes(static_cast<size_t>(size_) * sizeof(T)) >= buffer_.bytes()) return;
        Array smaller(size_);
        for (int64_t i = 0; i < size_; ++i) smaller.data()[i] = data()[i];
        *this = std::move(smaller);
    }

    // Keeps the first size() elements.
    void reserve(int64_t capacity) {
        if (capacity <= this->capacity()) return;
        Array bigger(capacity);
        for (int64_t i = 0; i < size_; ++i) bigger.data()[i] = data()[i];
        bigger.set_size(size_);
        *this = std::move(bigger);
    }

private:
    Buffer buffer_;
    int64_t size_ = 0;
};

}  // namespace gids
