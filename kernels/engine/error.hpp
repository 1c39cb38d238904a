// Errors as values of one tree: kind, and a sentence that says what, where, what was expected and what to do.
#pragma once
#include <exception>
#include <string>
#include <utility>

#include "engine/codes.hpp"

namespace securecoll {

struct Error {
  ErrorKind kind = ErrorKind::none;
  std::string message;
  explicit operator bool() const { return kind != ErrorKind::none; }
};

// Carries an Error to the bindings. Never crosses a thread.
class EngineError : public std::exception {
 public:
  EngineError(ErrorKind kind, std::string message) : error_{kind, std::move(message)} {}
  explicit EngineError(Error error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

}  // namespace securecoll
