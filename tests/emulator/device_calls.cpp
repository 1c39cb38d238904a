// securecoll::cuda::Device for ctypes: one function for each of its calls.
#include "cuda/device.hpp"

using securecoll::cuda::Device;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void device_delete(Device* d) { delete d; }
EXPORT const char* device_name(Device* d) { return d->name(); }
EXPORT uint32_t device_multiprocessors(Device* d) { return d->multiprocessors(); }
EXPORT uint32_t device_capability(Device* d) { return d->capability(); }
EXPORT const char* device_why_not(Device* d) { return d->why_not(); }
EXPORT bool device_bind(Device* d) { return d->bind(); }
EXPORT void device_unbind(Device* d) { d->unbind(); }
EXPORT uint64_t device_allocate(Device* d, size_t bytes) { return d->allocate(bytes); }
EXPORT void device_release(Device* d, uint64_t at) { d->release(at); }
EXPORT void* device_allocate_pinned(Device* d, size_t bytes) { return d->allocate_pinned(bytes); }
EXPORT void device_release_pinned(Device* d, void* at) { d->release_pinned(at); }
EXPORT uint64_t device_map(Device* d, void* host, size_t bytes, bool writable) {
  return d->map(host, bytes, writable);
}
EXPORT void device_unmap(Device* d, void* host) { d->unmap(host); }
EXPORT bool device_copy_in(Device* d, uint64_t to, const void* from, size_t bytes, void* stream) {
  return d->copy_in(to, from, bytes, stream);
}
EXPORT bool device_copy_out(Device* d, void* to, uint64_t from, size_t bytes, void* stream) {
  return d->copy_out(to, from, bytes, stream);
}
EXPORT bool device_copy(Device* d, uint64_t to, uint64_t from, size_t bytes, void* stream) {
  return d->copy(to, from, bytes, stream);
}
EXPORT bool device_fill(Device* d, uint64_t at, uint8_t value, size_t bytes, void* stream) {
  return d->fill(at, value, bytes, stream);
}
EXPORT void* device_function(Device* d, const char* kernel) { return d->function(kernel); }
EXPORT bool device_launch(Device* d, void* function, uint32_t grid, uint32_t block, uint32_t shared, const void* args,
                          size_t bytes, void* stream) {
  return d->launch(function, grid, block, shared, args, bytes, stream);
}
EXPORT void* device_stream(Device* d) { return d->stream(); }
EXPORT void device_release_stream(Device* d, void* stream) { d->release_stream(stream); }
EXPORT void* device_event(Device* d) { return d->event(); }
EXPORT void device_release_event(Device* d, void* event) { d->release_event(event); }
EXPORT bool device_record(Device* d, void* event, void* stream) { return d->record(event, stream); }
EXPORT bool device_wait(Device* d, void* stream, void* event) { return d->wait(stream, event); }
EXPORT int device_query(Device* d, void* event) { return static_cast<int>(d->query(event)); }
EXPORT bool device_synchronize(Device* d, void* stream) { return d->synchronize(stream); }
EXPORT bool device_capturing(Device* d, void* stream) { return d->capturing(stream); }
