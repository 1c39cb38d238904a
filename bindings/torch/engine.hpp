// The engine's function table, found at load, and what the binding adds around it.
#pragma once
#include <cstdint>

#include "engine/table.h"

namespace securecoll::binding {

// Finds and checks the table. Throws pybind11::import_error that says what to do when it does not fit.
void load_engine();

// Valid after load_engine().
const sc_table& engine() noexcept;

// Grows by one in every child made by fork. What remembers another value belongs to an ancestor: its threads are gone,
// its locks may be held for ever, and the engine refuses to serve it.
uint64_t fork_generation() noexcept;

// Lets go of the GIL for a scope if this thread holds it. Most calls arrive without it, but nothing of torch promises
// so, and the engine must never be waited for with the GIL held.
class WithoutGil {
 public:
  WithoutGil() noexcept;
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* thread_state_;
};

}  // namespace securecoll::binding
