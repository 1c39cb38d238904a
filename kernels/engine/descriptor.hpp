// A file descriptor that is closed with its owner, and that a forked child does not keep.
#pragma once
#include <unistd.h>

#include <utility>

#include "engine/fork.hpp"

namespace securecoll {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd), generation_(fork_generation()) {
    if (fd_ >= 0) close_in_children(fd_);
  }
  Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)), generation_(o.generation_) {}
  Descriptor& operator=(Descriptor&& o) noexcept {
    std::swap(fd_, o.fd_);
    std::swap(generation_, o.generation_);
    return *this;
  }
  ~Descriptor() { reset(); }

  void reset() noexcept {
    const int fd = std::exchange(fd_, -1);
    // In a child the number may be another file's by now.
    if (fd < 0 || generation_ != fork_generation()) return;
    forget_in_children(fd);
    ::close(fd);
  }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace securecoll
