// The device seam: the dozen things the engine asks of an accelerator.
//
// Two implementations: libcuda, opened at run time and small enough to review by eye, and the emulated device of
// kernels/emulator, whose streams run as late and in as unhelpful an order as events and stream order allow. No call
// waits for the device but synchronize(), and no call throws: it says whether it was accepted, and why_not() says why
// not. Work that was accepted can still fail later; query() then says so, and so does every later call.
//
// Order: work on one stream runs in its order. Between streams there is none but what record() and wait() make.
#pragma once
#include <cstddef>
#include <cstdint>

namespace securecoll::cuda {

class Device {
 public:
  using Address = uint64_t;
  using Stream = void*;  // a CUstream: null is the device's default stream
  using Event = void*;
  using Function = void*;
  enum class State : uint8_t { pending, done, failed };

  virtual ~Device() = default;

  // What is said of it in logs and reports: "NVIDIA H200, compute capability 9.0", "emulated device, seed 7".
  virtual const char* name() const = 0;
  virtual uint32_t multiprocessors() const = 0;
  // 10 * major + minor
  virtual uint32_t capability() const = 0;
  virtual const char* why_not() const = 0;
  // Makes the device current in the calling thread, until unbind() brings back what was: every call below comes
  // between the two. They nest.
  virtual bool bind() = 0;
  virtual void unbind() {}

  virtual Address allocate(size_t bytes) = 0;  // 256-byte aligned; 0: no room
  virtual void release(Address at) = 0;        // after all work that uses it
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void release_pinned(void* at) = 0;
  // Makes host memory a kernel can reach, and copies from and to it asynchronous; 0: not possible here (confidential
  // mode, or no such memory).
  virtual Address map(void* host, size_t bytes, bool writable) = 0;
  virtual void unmap(void* host) = 0;

  virtual bool copy_in(Address to, const void* from, size_t bytes, Stream stream) = 0;
  virtual bool copy_out(void* to, Address from, size_t bytes, Stream stream) = 0;
  virtual bool copy(Address to, Address from, size_t bytes, Stream stream) = 0;
  virtual bool fill(Address at, uint8_t value, size_t bytes, Stream stream) = 0;

  virtual Function function(const char* kernel) = 0;
  // `args` is the kernel's one parameter, copied before the call returns.
  virtual bool launch(Function f, uint32_t grid, uint32_t block, uint32_t shared, const void* args, size_t bytes,
                      Stream stream) = 0;

  virtual Stream stream() = 0;
  virtual void release_stream(Stream stream) = 0;
  virtual Event event() = 0;
  virtual void release_event(Event event) = 0;
  virtual bool record(Event event, Stream stream) = 0;
  virtual bool wait(Stream stream, Event event) = 0;
  virtual State query(Event event) = 0;
  virtual bool synchronize(Stream stream) = 0;
  // Whether the stream is being captured into a graph.
  virtual bool capturing(Stream stream) = 0;
};

}  // namespace securecoll::cuda
