// securecoll._torch: makes c10d backends of communicators. Import it after torch.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include "backend.hpp"
#include "engine.hpp"
#include "error.hpp"
#include "group.hpp"

namespace securecoll::binding {
namespace {

c10::intrusive_ptr<c10d::Backend> create(const py::capsule& communicator, int rank, int size,
                                         std::chrono::milliseconds timeout, py::object owner) {
  return c10::make_intrusive<Backend>(Group::open(communicator, std::move(owner)), rank, size, timeout);
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  m.doc() = "The c10d backend on the engine's function table.";
  load_engine();
  load_error_classes();
  m.attr("TORCH_VERSION") = TORCH_VERSION;
  m.def("create", &create, py::arg("communicator"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("owner") = py::none(),
        "A torch.distributed backend over a communicator's capsule. `timeout`, a timedelta, becomes the default of "
        "every "
        "call; `owner` lives at least as long as the backend.");
  py::module_::import("atexit").attr("register")(py::cpp_function(&Group::close_all));
}

}  // namespace securecoll::binding
