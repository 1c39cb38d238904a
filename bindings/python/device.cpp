// Devices for Python: a CUDA device, or one that a library stands in for.
#include "device.hpp"

#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "cuda/cuda_device.hpp"
#include "engine/error.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace securecoll;

namespace {

// One call for a test's or a user's own thread.
class Bound {
 public:
  explicit Bound(const PyDevice& d) : device(*d.device) {
    if (!device.bind()) refuse();
  }
  ~Bound() { device.unbind(); }
  void must(bool accepted) const {
    if (!accepted) refuse();
  }
  [[noreturn]] void refuse() const { throw std::runtime_error(std::string(device.name()) + ": " + device.why_not()); }
  cuda::Device& device;
};

void* pointer(uint64_t at) { return reinterpret_cast<void*>(at); }

PyDevice emulated(const std::string& library, const std::string& options) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw EngineError(ErrorKind::config, "no emulated device: " + std::string(dlerror()));
  using Make = cuda::Device* (*)(const char*);
  const auto make = reinterpret_cast<Make>(dlsym(handle, "sc_emulated_device"));
  cuda::Device* device = make ? make(options.c_str()) : nullptr;
  if (!device) {
    const auto why = reinterpret_cast<const char* (*)()>(dlsym(handle, "sc_emulated_device_why_not"));
    throw EngineError(ErrorKind::config, library + " makes no device of the options '" + options + "'" +
                                             (why ? std::string(": ") + why() : ""));
  }
  return {std::shared_ptr<cuda::Device>(device)};
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<PyDevice>(m, "Device", "An accelerator that a communicator can work on; see securecoll.cuda.")
      .def_static(
          "cuda",
          [](uint32_t ordinal, std::map<std::string, uint64_t> functions) {
            return PyDevice{cuda::cuda_device(ordinal, std::move(functions))};
          },
          nb::arg("ordinal"), nb::arg("functions"),
          "A CUDA device, with its kernels' function handles by name, loaded in its primary context.")
      .def_static("emulated", &emulated, nb::arg("library"), nb::arg("options"),
                  "What the library's sc_emulated_device makes: the CPU, playing a device.")
      .def_prop_ro("name", [](const PyDevice& d) { return std::string(d.device->name()); })
      .def_prop_ro("multiprocessors", [](const PyDevice& d) { return d.device->multiprocessors(); })
      .def_prop_ro("capability", [](const PyDevice& d) { return d.device->capability(); })
      .def(
          "allocate",
          [](const PyDevice& d, size_t bytes) {
            const Bound b(d);
            const uint64_t at = b.device.allocate(bytes);
            b.must(at != 0);
            return at;
          },
          nb::arg("bytes"), "The address of new memory.")
      .def(
          "release", [](const PyDevice& d, uint64_t at) { Bound(d).device.release(at); }, nb::arg("at"))
      .def(
          "write",
          [](const PyDevice& d, uint64_t at, const nb::bytes& data, uint64_t stream) {
            const Bound b(d);
            nb::gil_scoped_release free;
            b.must(b.device.copy_in(at, data.c_str(), data.size(), pointer(stream)));
            b.must(b.device.synchronize(pointer(stream)));
          },
          nb::arg("at"), nb::arg("data"), nb::arg("stream") = 0)
      .def(
          "copy",
          [](const PyDevice& d, uint64_t to, uint64_t from, size_t bytes, uint64_t stream) {
            const Bound b(d);
            b.must(b.device.copy(to, from, bytes, pointer(stream)));
          },
          nb::arg("to"), nb::arg("from_"), nb::arg("bytes"), nb::arg("stream") = 0,
          "Gives the stream a copy to do; does not wait for it.")
      .def(
          "read",
          [](const PyDevice& d, uint64_t at, size_t bytes, uint64_t stream) {
            const Bound b(d);
            std::string out(bytes, '\0');
            {
              nb::gil_scoped_release free;
              b.must(b.device.copy_out(out.data(), at, bytes, pointer(stream)));
              b.must(b.device.synchronize(pointer(stream)));
            }
            return nb::bytes(out.data(), out.size());
          },
          nb::arg("at"), nb::arg("bytes"), nb::arg("stream") = 0, "What is there once the stream's work is done.")
      .def(
          "stream",
          [](const PyDevice& d) {
            const Bound b(d);
            void* s = b.device.stream();
            b.must(s != nullptr);
            return reinterpret_cast<uint64_t>(s);
          },
          "The handle of a new stream.")
      .def(
          "synchronize",
          [](const PyDevice& d, uint64_t stream) {
            const Bound b(d);
            nb::gil_scoped_release free;
            b.must(b.device.synchronize(pointer(stream)));
          },
          nb::arg("stream") = 0)
      .def("__repr__", [](const PyDevice& d) { return "<Device " + std::string(d.device->name()) + ">"; });
}
