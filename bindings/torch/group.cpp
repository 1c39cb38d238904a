#include "group.hpp"

#include <pthread.h>

#include <chrono>
#include <mutex>
#include <vector>

#include "error.hpp"

namespace securecoll::binding {
namespace {

constexpr std::chrono::milliseconds kExitGrace{2000};

// Every group, for close_all. The lock is held over a fork, so a child never inherits it taken.
std::mutex g_mutex;
std::vector<std::weak_ptr<Group>> g_groups;

void guard_registry() {
  static const int once = pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); }, [] { g_mutex.unlock(); });
  static_cast<void>(once);
}

}  // namespace

std::shared_ptr<Group> Group::open(const pybind11::capsule& communicator, pybind11::object owner) {
  if (!PyCapsule_IsValid(communicator.ptr(), SC_COMMUNICATOR_CAPSULE)) {
    throw Error(ErrorKind::config, "create() takes a \"" SC_COMMUNICATOR_CAPSULE "\" capsule");
  }
  auto* handle = static_cast<sc_communicator*>(PyCapsule_GetPointer(communicator.ptr(), SC_COMMUNICATOR_CAPSULE));
  std::shared_ptr<Group> group(new Group(handle, std::move(owner)));
  guard_registry();
  const WithoutGil unlocked;
  const std::lock_guard lock(g_mutex);
  std::erase_if(g_groups, [](const auto& known) { return known.expired(); });
  g_groups.push_back(group);
  return group;
}

Group::Group(sc_communicator* communicator, pybind11::object owner)
    : communicator_(communicator), owner_(owner.release().ptr()), generation_(fork_generation()) {
  engine().retain(communicator_);
}

Group::~Group() {
  if (inherited()) {
    completions_.abandon();
    return;  // The parent's engine state and Python object are not ours to end.
  }
  {
    const WithoutGil unlocked;
    completions_.stop();
    engine().release(communicator_);
  }
  if (Py_IsInitialized() != 0) {
    const pybind11::gil_scoped_acquire gil;
    Py_DECREF(owner_);
  }
}

void Group::check_process() const {
  if (inherited()) {
    throw Error(ErrorKind::closed,
                "this process group belongs to the parent of this forked process; create a new one in the child");
  }
}

void Group::close() {
  if (inherited()) return;
  const WithoutGil unlocked;
  engine().close(communicator_);
  completions_.stop();
}

void Group::abort(const std::string& reason) {
  if (inherited()) return;
  const WithoutGil unlocked;
  engine().abort(communicator_, reason.c_str());
}

void Group::close_all() {
  const WithoutGil unlocked;
  std::vector<std::shared_ptr<Group>> groups;
  {
    const std::lock_guard lock(g_mutex);
    for (const auto& known : g_groups) {
      if (auto group = known.lock(); group != nullptr && !group->inherited()) groups.push_back(std::move(group));
    }
  }
  for (const auto& group : groups) {
    if (!group->completions_.wait_idle(kExitGrace)) {
      group->abort("rank " + std::to_string(engine().rank(group->communicator_)) +
                   " exited with operations in flight");
    }
    group->close();
  }
}

}  // namespace securecoll::binding
