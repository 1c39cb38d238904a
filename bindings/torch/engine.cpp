#include "engine.hpp"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <string>

namespace py = pybind11;

namespace securecoll::binding {
namespace {

const sc_table* g_table = nullptr;
std::atomic<uint64_t> g_generation{0};

}  // namespace

void load_engine() {
  const py::object capsule = py::module_::import("securecoll._engine").attr("table");
  if (!PyCapsule_IsValid(capsule.ptr(), SC_TABLE_CAPSULE)) {
    throw py::import_error("securecoll._engine.table is not a \"" SC_TABLE_CAPSULE "\" capsule; reinstall securecoll");
  }
  const auto* table = static_cast<const sc_table*>(PyCapsule_GetPointer(capsule.ptr(), SC_TABLE_CAPSULE));
  if (table->version != SC_TABLE_VERSION || table->bytes != sizeof(sc_table)) {
    throw py::import_error("securecoll._torch was built for version " + std::to_string(SC_TABLE_VERSION) + " (" +
                           std::to_string(sizeof(sc_table)) +
                           " bytes) of the engine's table, but securecoll._engine has version " +
                           std::to_string(table->version) + " (" + std::to_string(table->bytes) +
                           " bytes): they come from different builds; reinstall securecoll with "
                           "`pip install --no-build-isolation --force-reinstall --no-deps securecoll`");
  }
  if (g_table == nullptr)
    pthread_atfork(nullptr, nullptr, [] { g_generation.fetch_add(1, std::memory_order_relaxed); });
  g_table = table;
}

const sc_table& engine() noexcept { return *g_table; }

uint64_t fork_generation() noexcept { return g_generation.load(std::memory_order_relaxed); }

// Not PyGILState_Check, which says yes to every thread once a subinterpreter exists.
WithoutGil::WithoutGil() noexcept : thread_state_(nullptr) {
  PyThreadState* own = PyGILState_GetThisThreadState();
  if (own != nullptr && own == _PyThreadState_UncheckedGet()) thread_state_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  if (thread_state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(thread_state_));
}

}  // namespace securecoll::binding
