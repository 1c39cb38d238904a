#include "engine/table.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "engine/clock.hpp"
#include "host/reduce.hpp"

struct sc_communicator {
  std::atomic<uint32_t> references{1};
  std::shared_ptr<securecoll::Communicator> communicator;
};

namespace securecoll {
namespace {

Operation* of(sc_operation* op) { return reinterpret_cast<Operation*>(op); }

void fill(sc_error* to, const Error& from) {
  if (!to) return;
  to->kind = static_cast<uint8_t>(from.kind);
  const size_t n = std::min(from.message.size(), sizeof to->message - 1);
  std::memcpy(to->message, from.message.data(), n);
  to->message[n] = 0;
}

void retain(sc_communicator* c) { c->references.fetch_add(1); }
void release(sc_communicator* c) {
  if (c->references.fetch_sub(1) == 1) delete c;
}

// No exception leaves the table.
sc_operation* submit(sc_communicator* c, const sc_request* request, sc_error* error) {
  try {
    return reinterpret_cast<sc_operation*>(c->communicator->submit(*request));
  } catch (const EngineError& e) {
    fill(error, e.error());
  } catch (const std::exception& e) {
    fill(error, {ErrorKind::config, e.what()});
  }
  return nullptr;
}

sc_operation* exchange(sc_communicator* c, const sc_message* message, Collective direction, sc_error* error) {
  try {
    return reinterpret_cast<sc_operation*>(c->communicator->exchange(*message, direction));
  } catch (const EngineError& e) {
    fill(error, e.error());
  } catch (const std::exception& e) {
    fill(error, {ErrorKind::config, e.what()});
  }
  return nullptr;
}

sc_operation* send(sc_communicator* c, const sc_message* message, sc_error* error) {
  return exchange(c, message, Collective::send, error);
}
sc_operation* receive(sc_communicator* c, const sc_message* message, sc_error* error) {
  return exchange(c, message, Collective::receive, error);
}

int poll(sc_operation* operation, sc_error* error) {
  Operation& op = *of(operation);
  switch (op.state.load(std::memory_order_acquire)) {
    case kDone:
      return 1;
    case kFailed:
      fill(error, op.error);
      return -1;
    default:
      return 0;
  }
}

int wait_until(sc_operation* operation, int64_t timeout_ns, Communicator::Until until, sc_error* error) {
  Operation& op = *of(operation);
  bool reached;
  try {
    reached = op.owner->wait(op, timeout_ns < 0 ? 0 : std::max<int64_t>(1, now_ns() + timeout_ns), until);
  } catch (const EngineError& e) {
    fill(error, e.error());
    return -1;
  }
  const int polled = poll(operation, error);
  return polled == 0 && reached ? 1 : polled;
}

int wait(sc_operation* op, int64_t timeout_ns, sc_error* error) {
  return wait_until(op, timeout_ns, Communicator::Until::final, error);
}
int wait_handed(sc_operation* op, int64_t timeout_ns, sc_error* error) {
  return wait_until(op, timeout_ns, Communicator::Until::handed, error);
}

int resume(sc_operation* operation, void* stream, sc_error* error) {
  try {
    of(operation)->owner->resume(*of(operation), stream);
    return 0;
  } catch (const EngineError& e) {
    fill(error, e.error());
  } catch (const std::exception& e) {
    fill(error, {ErrorKind::closed, e.what()});
  }
  return -1;
}

uint64_t sequence(sc_operation* op) { return of(op)->sequence; }
uint32_t source(sc_operation* op) { return of(op)->source; }
void release_operation(sc_operation* op) { Communicator::release(of(op)); }
void abort_communicator(sc_communicator* c, const char* reason) { c->communicator->abort(reason ? reason : ""); }
void close_communicator(sc_communicator* c) { c->communicator->close(); }

int state(sc_communicator* c, sc_error* error) {
  const Error e = c->communicator->error();
  if (!e) return 0;
  fill(error, e);
  return -1;
}

uint32_t rank(sc_communicator* c) { return c->communicator->rank(); }
uint32_t size(sc_communicator* c) { return c->communicator->size(); }
uint64_t last_sequence(sc_communicator* c) { return c->communicator->last_sequence(); }
void set_timeout(sc_communicator* c, int64_t ns) { c->communicator->set_timeout(ns); }

int reducible(uint8_t dtype, uint8_t redop) {
  return host::reduce_kernel(static_cast<DType>(dtype), static_cast<RedOp>(redop)) != nullptr;
}

}  // namespace

const sc_table& engine_table() {
  static constexpr sc_table table = {SC_TABLE_VERSION,
                                     sizeof(sc_table),
                                     retain,
                                     release,
                                     submit,
                                     send,
                                     receive,
                                     wait,
                                     wait_handed,
                                     resume,
                                     poll,
                                     sequence,
                                     source,
                                     release_operation,
                                     abort_communicator,
                                     close_communicator,
                                     state,
                                     rank,
                                     size,
                                     last_sequence,
                                     set_timeout,
                                     reducible};
  return table;
}

sc_communicator* export_communicator(std::shared_ptr<Communicator> communicator) {
  auto* c = new sc_communicator;
  c->communicator = std::move(communicator);
  return c;
}

}  // namespace securecoll
