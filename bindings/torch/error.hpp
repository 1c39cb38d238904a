// Errors of the tree as C++ exceptions that torch turns into the classes of securecoll.errors.
#pragma once
#include <torch/csrc/Exceptions.h>

#include <string>

#include "engine/codes.hpp"
#include "engine/table.h"

namespace securecoll::binding {

// Derives from torch's own base for exceptions that know their Python class, so every way out of torch translates it:
// pybind11 functions, operators, futures, and the autograd engine.
class Error final : public torch::PyTorchError {
 public:
  Error(ErrorKind kind, std::string message) : torch::PyTorchError(std::move(message)), kind_(kind) {}
  explicit Error(const sc_error& error) : Error(static_cast<ErrorKind>(error.kind), error.message) {}

  ErrorKind kind() const noexcept { return kind_; }
  PyObject* python_type() override;

 private:
  ErrorKind kind_;
};

// Looks up the Python classes, once, with the GIL held.
void load_error_classes();

}  // namespace securecoll::binding
