// The progress pool: a few threads that serve every communicator of the process.
//
// Only asynchronous operations need it: a blocking call makes progress in its caller's thread.
#pragma once
#include <memory>

namespace securecoll {

class Communicator;

namespace pool {

// Serves the communicator until it has nothing in flight.
void add(std::shared_ptr<Communicator> communicator);
// How many threads to have, at least 1; takes effect as communicators are added.
void set_threads(unsigned threads);

}  // namespace pool
}  // namespace securecoll
