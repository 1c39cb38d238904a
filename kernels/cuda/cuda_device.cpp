// Nothing here can run where there is no GPU. So it decides nothing: each call is one call of the driver, and what has
// to be right about their order stands in device_memory.cpp, which runs on the emulated device too.
#include "cuda/cuda_device.hpp"

#include <dlfcn.h>

#include <utility>

#include "engine/error.hpp"

namespace securecoll::cuda {
namespace {

// The driver's ABI, as cuda.h declares it.
using CUresult = int;
using CUdevice = int;
using CUcontext = void*;
using CUdeviceptr = unsigned long long;
constexpr CUresult kSuccess = 0, kNotReady = 600;
constexpr int kAttributeMultiprocessors = 16, kAttributeMajor = 75, kAttributeMinor = 76;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2, kHostPortable = 1;
constexpr unsigned kRegisterPortable = 1, kRegisterMapped = 2, kRegisterReadOnly = 8;

struct Driver {
  CUresult (*init)(unsigned);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*device_name)(char*, int, CUdevice);
  CUresult (*attribute)(int*, int, CUdevice);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*release)(CUdevice);
  CUresult (*push)(CUcontext);
  CUresult (*pop)(CUcontext*);
  CUresult (*error)(CUresult, const char**);
  CUresult (*allocate)(CUdeviceptr*, size_t);
  CUresult (*free)(CUdeviceptr);
  CUresult (*host_allocate)(void**, size_t, unsigned);
  CUresult (*host_free)(void*);
  CUresult (*host_register)(void*, size_t, unsigned);
  CUresult (*host_unregister)(void*);
  CUresult (*host_address)(CUdeviceptr*, void*, unsigned);
  CUresult (*in)(CUdeviceptr, const void*, size_t, void*);
  CUresult (*out)(void*, CUdeviceptr, size_t, void*);
  CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, void*);
  CUresult (*fill)(CUdeviceptr, unsigned char, size_t, void*);
  CUresult (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                     void**);
  CUresult (*function_attribute)(void*, int, int);
  CUresult (*stream_create)(void**, unsigned);
  CUresult (*stream_destroy)(void*);
  CUresult (*stream_synchronize)(void*);
  CUresult (*stream_wait)(void*, void*, unsigned);
  CUresult (*stream_capturing)(void*, int*);
  CUresult (*event_create)(void**, unsigned);
  CUresult (*event_destroy)(void*);
  CUresult (*event_record)(void*, void*);
  CUresult (*event_query)(void*);
};

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function) throw EngineError(ErrorKind::config, std::string("the CUDA driver is too old: it has no ") + name);
}

Driver load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw EngineError(ErrorKind::config, "no CUDA driver: libcuda.so.1 cannot be opened; CPU arrays work without one");
  Driver d{};
  find(library, "cuInit", d.init);
  find(library, "cuDeviceGet", d.device_get);
  find(library, "cuDeviceGetName", d.device_name);
  find(library, "cuDeviceGetAttribute", d.attribute);
  find(library, "cuDevicePrimaryCtxRetain", d.retain);
  find(library, "cuDevicePrimaryCtxRelease_v2", d.release);
  find(library, "cuCtxPushCurrent_v2", d.push);
  find(library, "cuCtxPopCurrent_v2", d.pop);
  find(library, "cuGetErrorString", d.error);
  find(library, "cuMemAlloc_v2", d.allocate);
  find(library, "cuMemFree_v2", d.free);
  find(library, "cuMemHostAlloc", d.host_allocate);
  find(library, "cuMemFreeHost", d.host_free);
  find(library, "cuMemHostRegister_v2", d.host_register);
  find(library, "cuMemHostUnregister", d.host_unregister);
  find(library, "cuMemHostGetDevicePointer_v2", d.host_address);
  find(library, "cuMemcpyHtoDAsync_v2", d.in);
  find(library, "cuMemcpyDtoHAsync_v2", d.out);
  find(library, "cuMemcpyDtoDAsync_v2", d.copy);
  find(library, "cuMemsetD8Async", d.fill);
  find(library, "cuLaunchKernel", d.launch);
  find(library, "cuFuncSetAttribute", d.function_attribute);
  find(library, "cuStreamCreate", d.stream_create);
  find(library, "cuStreamDestroy_v2", d.stream_destroy);
  find(library, "cuStreamSynchronize", d.stream_synchronize);
  find(library, "cuStreamWaitEvent", d.stream_wait);
  find(library, "cuStreamIsCapturing", d.stream_capturing);
  find(library, "cuEventCreate", d.event_create);
  find(library, "cuEventDestroy_v2", d.event_destroy);
  find(library, "cuEventRecord", d.event_record);
  find(library, "cuEventQuery", d.event_query);
  return d;
}

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

// The last refusal, for the thread that met it.
thread_local std::string why;

class CudaDevice final : public Device {
 public:
  CudaDevice(uint32_t ordinal, std::map<std::string, uint64_t> functions)
      : d_(driver()), functions_(std::move(functions)) {
    const auto must = [&](CUresult r, const char* what) {
      if (!ok(r)) throw EngineError(ErrorKind::config, std::string(what) + ": " + why);
    };
    must(d_.init(0), "the CUDA driver does not start");
    must(d_.device_get(&device_, static_cast<int>(ordinal)), "no such CUDA device");
    char name[128] = {};
    int major = 0, minor = 0, multiprocessors = 0;
    must(d_.device_name(name, sizeof name - 1, device_), "the CUDA device has no name");
    must(d_.attribute(&major, kAttributeMajor, device_), "the CUDA device has no compute capability");
    must(d_.attribute(&minor, kAttributeMinor, device_), "the CUDA device has no compute capability");
    must(d_.attribute(&multiprocessors, kAttributeMultiprocessors, device_), "the CUDA device has no multiprocessors");
    capability_ = static_cast<uint32_t>(10 * major + minor);
    multiprocessors_ = static_cast<uint32_t>(multiprocessors);
    name_ = std::string(name) + ", compute capability " + std::to_string(major) + "." + std::to_string(minor);
    must(d_.retain(&context_, device_), "the CUDA device gives no context");
  }
  ~CudaDevice() override { d_.release(device_); }

  const char* name() const override { return name_.c_str(); }
  uint32_t multiprocessors() const override { return multiprocessors_; }
  uint32_t capability() const override { return capability_; }
  const char* why_not() const override { return why.c_str(); }
  bool bind() override { return ok(d_.push(context_)); }
  void unbind() override {
    CUcontext was;
    d_.pop(&was);
  }

  Address allocate(size_t bytes) override {
    CUdeviceptr at = 0;
    return ok(d_.allocate(&at, bytes)) ? at : 0;
  }
  void release(Address at) override { d_.free(at); }
  void* allocate_pinned(size_t bytes) override {
    void* at = nullptr;
    return ok(d_.host_allocate(&at, bytes, kHostPortable)) ? at : nullptr;
  }
  void release_pinned(void* at) override { d_.host_free(at); }
  Address map(void* host, size_t bytes, bool writable) override {
    const unsigned flags = kRegisterPortable | kRegisterMapped | (writable ? 0 : kRegisterReadOnly);
    CUdeviceptr at = 0;
    if (!ok(d_.host_register(host, bytes, flags))) return 0;
    if (ok(d_.host_address(&at, host, 0))) return at;
    d_.host_unregister(host);
    return 0;
  }
  void unmap(void* host) override { d_.host_unregister(host); }

  bool copy_in(Address to, const void* from, size_t bytes, Stream s) override { return ok(d_.in(to, from, bytes, s)); }
  bool copy_out(void* to, Address from, size_t bytes, Stream s) override { return ok(d_.out(to, from, bytes, s)); }
  bool copy(Address to, Address from, size_t bytes, Stream s) override { return ok(d_.copy(to, from, bytes, s)); }
  bool fill(Address at, uint8_t value, size_t bytes, Stream s) override { return ok(d_.fill(at, value, bytes, s)); }

  Function function(const char* kernel) override {
    const auto found = functions_.find(kernel);
    if (found == functions_.end()) {
      why = std::string("no module has ") + kernel;
      return nullptr;
    }
    return reinterpret_cast<Function>(found->second);
  }
  bool launch(Function f, uint32_t grid, uint32_t block, uint32_t shared, const void* args, size_t,
              Stream s) override {
    if (shared && !ok(d_.function_attribute(f, kFunctionMaxDynamicShared, static_cast<int>(shared)))) return false;
    void* parameters[] = {const_cast<void*>(args)};
    return ok(d_.launch(f, grid, 1, 1, block, 1, 1, shared, s, parameters, nullptr));
  }

  Stream stream() override {
    void* s = nullptr;
    return ok(d_.stream_create(&s, kStreamNonBlocking)) ? s : nullptr;
  }
  void release_stream(Stream s) override { d_.stream_destroy(s); }
  Event event() override {
    void* e = nullptr;
    return ok(d_.event_create(&e, kEventDisableTiming)) ? e : nullptr;
  }
  void release_event(Event e) override { d_.event_destroy(e); }
  bool record(Event e, Stream s) override { return ok(d_.event_record(e, s)); }
  bool wait(Stream s, Event e) override { return ok(d_.stream_wait(s, e, 0)); }
  State query(Event e) override {
    const CUresult r = d_.event_query(e);
    if (r == kNotReady) return State::pending;
    return ok(r) ? State::done : State::failed;
  }
  bool synchronize(Stream s) override { return ok(d_.stream_synchronize(s)); }
  bool capturing(Stream s) override {
    int status = 0;
    // A stream that cannot say is taken for one that is.
    return !ok(d_.stream_capturing(s, &status)) || status != 0;
  }

 private:
  bool ok(CUresult r) const {
    if (r == kSuccess) return true;
    const char* text = nullptr;
    d_.error(r, &text);
    why = text ? text : "CUDA error " + std::to_string(r);
    return false;
  }

  const Driver& d_;
  const std::map<std::string, uint64_t> functions_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  uint32_t multiprocessors_ = 0, capability_ = 0;
};

}  // namespace

std::shared_ptr<Device> cuda_device(uint32_t ordinal, std::map<std::string, uint64_t> functions) {
  return std::make_shared<CudaDevice>(ordinal, std::move(functions));
}

}  // namespace securecoll::cuda
