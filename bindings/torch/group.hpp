// A communicator of the engine, shared by the backend and the works that it started.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "completion.hpp"
#include "engine.hpp"

namespace securecoll::binding {

class Group {
 public:
  // Retains the communicator of a "securecoll.engine.communicator" capsule, and `owner`, the Python object that must
  // not be collected before it. With the GIL held.
  static std::shared_ptr<Group> open(const pybind11::capsule& communicator, pybind11::object owner);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  sc_communicator* communicator() const noexcept { return communicator_; }
  Completions& completions() noexcept { return completions_; }
  // True in a child made by fork after this group was opened.
  bool inherited() const noexcept { return generation_ != fork_generation(); }
  // Throws in such a child.
  void check_process() const;

  // Waits for what is in flight, erases the keys and ends the completion thread. Idempotent. Without the GIL.
  void close();
  // Fails what is in flight and every later call, here and on the peers. Returns at once.
  void abort(const std::string& reason);

  // At interpreter exit, while callbacks can still have the GIL: closes every group of this process. An operation that
  // is still in flight after a grace of 2 s will not be waited for: its group is aborted, so that the peers know.
  static void close_all();

 private:
  Group(sc_communicator* communicator, pybind11::object owner);

  sc_communicator* communicator_;
  PyObject* owner_;
  uint64_t generation_;
  Completions completions_;
};

}  // namespace securecoll::binding
