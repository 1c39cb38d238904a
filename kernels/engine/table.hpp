// The engine's side of table.h.
#pragma once
#include <memory>

#include "engine/communicator.hpp"
#include "engine/table.h"

namespace securecoll {

const sc_table& engine_table();

// A reference that a foreign module may hold; give it back with sc_table::release.
sc_communicator* export_communicator(std::shared_ptr<Communicator> communicator);

}  // namespace securecoll
