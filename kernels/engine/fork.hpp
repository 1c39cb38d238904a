// What a forked child must not inherit: descriptors, and the use of a communicator.
#pragma once
#include <cstdint>

namespace securecoll {

// Grows by one in every child made by fork. An object that remembers another value belongs to an ancestor.
uint64_t fork_generation() noexcept;

// Descriptors that a child closes at once: a child that kept a segment's descriptor would keep the segment alive
// after its parent died.
void close_in_children(int fd);
void forget_in_children(int fd) noexcept;

// Called in the child, in the order of registration. For process-wide state whose threads did not survive.
void call_in_children(void (*reset)());

}  // namespace securecoll
