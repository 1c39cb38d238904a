#include "error.hpp"

#include <array>

namespace securecoll::binding {
namespace {

constexpr size_t kKinds = static_cast<size_t>(ErrorKind::closed) + 1;
std::array<PyObject*, kKinds> g_classes{};  // never released: errors may outlive the interpreter's modules

}  // namespace

void load_error_classes() {
  const py::object from_kind = py::module_::import("securecoll.errors").attr("from_kind");
  for (size_t kind = 1; kind < kKinds; ++kind) {
    g_classes[kind] = py::type::of(from_kind(kind, "")).release().ptr();
  }
}

PyObject* Error::python_type() {
  const auto kind = static_cast<size_t>(kind_);
  return kind < kKinds && g_classes[kind] != nullptr ? g_classes[kind] : PyExc_RuntimeError;
}

}  // namespace securecoll::binding
