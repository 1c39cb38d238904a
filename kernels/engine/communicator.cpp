#include "engine/communicator.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "engine/clock.hpp"
#include "engine/fork.hpp"
#include "engine/pieces.hpp"
#include "engine/pool.hpp"

namespace securecoll {
namespace {

constexpr size_t kPlans = 512;   // cached
constexpr size_t kHistory = 64;  // calls that a peer's question may still be about
constexpr size_t kSpare = 32;    // operations kept for reuse
constexpr int64_t kLook = 1 * kMillisecond;
constexpr int64_t kAskAfter = 250 * kMillisecond;
constexpr int64_t kLivenessEvery = 100 * kMillisecond;
// How long a failed rank listens for its peers' view of the failure before it names the error.
constexpr int64_t kListen = 2000 * kMillisecond;
constexpr int64_t kListenShort = 100 * kMillisecond;
// How long one that closes waits for what it has sent to arrive.
constexpr int64_t kFarewell = 2000 * kMillisecond;
constexpr uint64_t kLastSequence = (uint64_t{1} << 40) - 1;

// A mark of a memory, until an operation takes it.
struct Mark {
  Memory& memory;
  void* mark;
  ~Mark() {
    if (mark) memory.release_mark(mark);
  }
};

std::string seconds(int64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%.4g s", static_cast<double>(ns) / 1e9);
  return text;
}

bool is_message(const Operation& op) {
  return op.call.collective == Collective::send || op.call.collective == Collective::receive;
}

uint64_t sum(const uint64_t* counts, uint32_t n) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < n; i++) total += counts[i];
  return total;
}

}  // namespace

bool Communicator::Key::operator==(const Key& o) const {
  return collective == o.collective && dtype == o.dtype && redop == o.redop && algorithm == o.algorithm &&
         root == o.root && count == o.count && counts == o.counts;
}

size_t Communicator::KeyHash::operator()(const Key& k) const noexcept {
  uint64_t h = uint64_t{k.collective} | uint64_t{k.dtype} << 8 | uint64_t{k.redop} << 16 |
               uint64_t{k.algorithm} << 24 | uint64_t{k.root} << 32;
  auto mix = [&](uint64_t v) { h = (h ^ v) * 0x9e3779b97f4a7c15ull, h ^= h >> 29; };
  mix(k.count);
  for (uint64_t c : k.counts) mix(c);
  return h;
}

Communicator::Communicator(CommunicatorOptions options, std::unique_ptr<Mesh> mesh, Roots roots, Memory* memory,
                           Planner planner, DeviceSource devices)
    : options_(options),
      generation_(fork_generation()),
      memory_(memory),
      planner_(std::move(planner)),
      devices_(std::move(devices)),
      timeout_ns_(options.timeout_ns),
      history_(kHistory),
      mesh_(std::move(mesh)),
      executor_(transport_, counters_) {
  const uint32_t n = options_.size;
  transport_.rank = options_.rank;
  transport_.size = n;
  transport_.slot_bytes = options_.slot_bytes;
  transport_.writers.resize(n + 1);
  transport_.readers.resize(2 * n);
  transport_.link_tx.resize(n);
  transport_.link_rx.resize(n);
  transport_.sender.resize(n);
  control_.resize(n);
  questions_.resize(n);
  for (auto& q : questions_) q.rank = n;
  heard_.assign(n, 0);
  left_.assign(n, 0);
  gone_.assign(n, 0);
  if (n == 1) return;
  if (!mesh_ || !mesh_->has_met())
    throw EngineError(ErrorKind::config, here() + "a group of " + std::to_string(n) + " needs a mesh that met all");
  for (const auto* list : {&roots.link_tx, &roots.link_rx, &roots.p2p_tx, &roots.p2p_rx, &roots.control_tx,
                           &roots.control_rx, &roots.sender})
    if (list->size() != n) throw EngineError(ErrorKind::config, here() + "wrong number of stream roots");
  messages_ = std::make_unique<PointToPoint>(
      PointToPoint::Shape{options_.rank, n, options_.slot_bytes, options_.budget_blocks}, memory, mesh_.get(),
      counters_);
  for (uint32_t p = 0; p < n; p++) {
    if (roots.sender[p].size() != 32) throw EngineError(ErrorKind::config, here() + "a stream root is missing");
    transport_.sender[p] = Stream(std::move(roots.sender[p]), 0, Use::collective);
    if (p == options_.rank) continue;
    for (auto* list :
         {&roots.link_tx, &roots.link_rx, &roots.p2p_tx, &roots.p2p_rx, &roots.control_tx, &roots.control_rx})
      if ((*list)[p].size() != 32) throw EngineError(ErrorKind::config, here() + "a stream root is missing");
    transport_.link_tx[p] = Stream(std::move(roots.link_tx[p]), 0, Use::collective);
    transport_.link_rx[p] = Stream(std::move(roots.link_rx[p]), 0, Use::collective);
    messages_->connect(p, std::move(roots.p2p_tx[p]), std::move(roots.p2p_rx[p]));
    control_[p] = std::make_unique<ControlLink>(mesh_->control_to(p), mesh_->control_from(p),
                                                Stream(std::move(roots.control_tx[p]), 0, Use::control),
                                                Stream(std::move(roots.control_rx[p]), 0, Use::control), memory);
    transport_.writers[p] = mesh_->writer_to(p);
    transport_.readers[p] = mesh_->reader_from(p);
    transport_.readers[n + p] = mesh_->reader_from_all(p);
  }
  transport_.writers[n] = mesh_->writer_to_all();
  // A communicator is made after every member confirmed the handshake, and a member confirms after it has mapped all.
  mesh_->unlink();
}

Communicator::~Communicator() {
  for (Operation* op : spare_) delete op;
}

void Communicator::check_generation() const {
  if (generation_ != fork_generation())
    throw EngineError(ErrorKind::closed,
                      here() +
                          "this communicator belongs to the parent of a fork, and its keys are gone here; "
                          "make a new one in the child");
}

// Refuses a call that cannot be right, before anything is sent.
void Communicator::check(const sc_request& r) const {
  const uint32_t n = options_.size, me = options_.rank;
  if (r.collective < 1 || r.collective > static_cast<uint8_t>(Collective::barrier))
    throw EngineError(ErrorKind::config, here() + "no such collective");
  const auto collective = static_cast<Collective>(r.collective);
  const auto dtype = static_cast<DType>(r.dtype);
  const auto redop = static_cast<RedOp>(r.redop);
  const auto what = [&] { return here() + name_of(collective) + ": "; };  // worded only when there is an error
  const uint64_t element = element_bytes(dtype);
  const bool barrier = collective == Collective::barrier;
  if (!barrier && !element) throw EngineError(ErrorKind::config, what() + "no such dtype");
  const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
                       collective == Collective::reduce;
  if (reduces && !memory_->reducible(dtype, redop))
    throw EngineError(ErrorKind::config, what() + name_of(redop) + " is not defined for " + name_of(dtype));
  if (!reduces && redop != RedOp::none) throw EngineError(ErrorKind::config, what() + "takes no reduction");
  if (r.root >= n)
    throw EngineError(ErrorKind::config,
                      what() + "root " + std::to_string(r.root) + " is not one of " + std::to_string(n) + " ranks");
  if ((r.send_counts != nullptr) != (r.recv_counts != nullptr) && collective == Collective::all_to_all)
    throw EngineError(ErrorKind::config, what() + "needs counts for both directions or for none");
  const bool root = r.root == me;
  const uint64_t all = r.send_counts ? sum(r.send_counts, n) : r.count * n;
  const uint64_t own = r.send_counts ? r.send_counts[me] : r.count;
  uint64_t in = r.count, out = r.count;
  switch (collective) {
    case Collective::all_reduce:
      break;
    case Collective::reduce_scatter:
      in = all, out = own;
      break;
    case Collective::all_gather:
      in = own, out = all;
      break;
    case Collective::broadcast:
      in = root ? r.count : 0;
      break;
    case Collective::reduce:
      out = root ? r.count : 0;
      break;
    case Collective::gather:
      in = own, out = root ? all : 0;
      break;
    case Collective::scatter:
      in = root ? all : 0, out = own;
      break;
    case Collective::all_to_all:
      in = all, out = r.recv_counts ? sum(r.recv_counts, n) : all;
      break;
    case Collective::barrier:
    case Collective::send:  // refused above
    case Collective::receive:
      in = out = 0;
      break;
  }
  auto size_of = [](const sc_segment* s, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += s[i].bytes;
    return bytes;
  };
  auto expect = [&](const char* name, uint64_t elements, const sc_segment* s, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
      if (s[i].bytes && (!s[i].data || s[i].bytes % element))
        throw EngineError(ErrorKind::config, what() + name + " must hold whole elements of " + name_of(dtype));
    if (size_of(s, count) != elements * element)
      throw EngineError(ErrorKind::config, what() + name + " must hold " + std::to_string(elements) + " elements of " +
                                               name_of(dtype) + ", and holds " + std::to_string(size_of(s, count)) +
                                               " bytes");
  };
  expect("the input", in, r.input, r.inputs);
  expect("the output", out, r.output, r.outputs);
}

std::shared_ptr<const Prepared> Communicator::prepare(std::unique_lock<std::mutex>& lock, const sc_request& r,
                                                      uint8_t algorithm) {
  Key key{r.collective, r.dtype, r.redop, algorithm, r.root, r.count, {}};
  if (r.send_counts) key.counts.assign(r.send_counts, r.send_counts + options_.size);
  if (r.recv_counts) key.counts.insert(key.counts.end(), r.recv_counts, r.recv_counts + options_.size);
  if (r.send_counts) key.count = 0;
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  // Python builds it. Not under the mutex: a thread that holds the GIL may wait for that.
  lock.unlock();
  auto made = planner_(r, algorithm);
  lock.lock();
  if (plans_.size() >= kPlans) plans_.clear();
  plans_.emplace(std::move(key), made);
  return made;
}

Memory& Communicator::memory_at(uint32_t place) {
  if (!place) return *memory_;
  std::lock_guard lock(device_mutex_);
  if (!device_) {
    if (!devices_) throw EngineError(ErrorKind::config, here() + "this communicator was made without a device");
    device_ = devices_(place - 1, mesh_.get());
    device_place_ = place;
  }
  if (place != device_place_)
    throw EngineError(ErrorKind::config, here() + "this communicator works on device " +
                                             std::to_string(device_place_ - 1) + ", and got memory of device " +
                                             std::to_string(place - 1) + "; make one communicator for each device");
  return *device_;
}

void* Communicator::mark(Memory& memory, void* stream) {
  try {
    return memory.mark(stream);
  } catch (const EngineError&) {
    throw;
  } catch (const std::exception& e) {
    // A gate that trapped takes the device with it. The verdict behind it is on the host, or about to be.
    const int64_t until = now_ns() + 500 * kMillisecond;
    while (state_ != State::failed && now_ns() < until) {
      round(true);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const Error error = this->error();
    if (error) throw EngineError(error.kind, here() + "this communicator cannot be used any more: " + error.message);
    throw EngineError(ErrorKind::closed, here() + e.what());
  }
}

Operation* Communicator::take_operation() {
  if (spare_.empty()) return new Operation;
  Operation* op = spare_.back();
  spare_.pop_back();
  return op;
}

void Communicator::require_active() const {
  if (state_ != State::active)
    throw EngineError(error_.kind, here() + "this communicator cannot be used any more: " + error_.message);
}

void Communicator::listen() {
  if (options_.size == 1 || !progress_.try_lock()) return;
  std::lock_guard progress(progress_, std::adopt_lock);
  if (state_ == State::active && !current_) poll_control();
  // Nobody else would bring the failure that was just found to its end.
  for (; state_ == State::failing && !current_; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    step_failing();
}

Operation* Communicator::exchange(const sc_message& m, Collective direction) {
  check_generation();
  const auto what = [&] { return here() + name_of(direction) + ": "; };
  const auto dtype = static_cast<DType>(m.dtype);
  const uint64_t element = element_bytes(dtype);
  const bool sends = direction == Collective::send;
  if (!element) throw EngineError(ErrorKind::config, what() + "no such dtype");
  if (m.peer == options_.rank)
    throw EngineError(ErrorKind::config, what() + "a rank has no messages with itself; copy the data");
  if (m.peer >= options_.size && (sends || m.peer != kAnySource))
    throw EngineError(ErrorKind::config, what() + "rank " + std::to_string(m.peer) + " is not one of " +
                                             std::to_string(options_.size) + " ranks");
  if (options_.size == 1) throw EngineError(ErrorKind::config, what() + "nobody else is in a group of one");
  if (m.place)
    throw EngineError(ErrorKind::config,
                      what() + "messages are sent from and received in CPU memory only; copy the data to the CPU");
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < m.count; i++) {
    if (m.segments[i].bytes && (!m.segments[i].data || m.segments[i].bytes % element))
      throw EngineError(ErrorKind::config, what() + "the data must hold whole elements of " + name_of(dtype));
    bytes += m.segments[i].bytes;
  }
  if (bytes / options_.slot_bytes >= PointToPoint::kRecords)
    throw EngineError(ErrorKind::config, what() + "one message may have " +
                                             std::to_string(PointToPoint::kRecords * options_.slot_bytes) +
                                             " bytes at most, not " + std::to_string(bytes) + "; split it");
  listen();
  Operation* op;
  {
    std::lock_guard lock(mutex_);
    require_active();
    if (sends) messages_->prepare(m.peer, bytes > PointToPoint::kEagerBytes);
    op = take_operation();
    sc_request r{};
    r.dtype = m.dtype;
    r.input = m.segments;
    r.inputs = m.count;
    describe(*op, r, *memory_, m.timeout_ns > 0 ? m.timeout_ns : timeout_ns_.load());
    op->call = Call{direction, dtype, RedOp::none, m.peer, bytes / element, m.tag};
    op->source = kAnySource;
    op->references.store(2, std::memory_order_relaxed);  // the engine's and the caller's
    op->done = m.done;
    op->context = m.context;
    exchanges_.push_back(op);
    if (sends) sends_.push_back(op);
    exchanging_.fetch_add(1);
  }
  if (m.blocking) return op;
  // A short message is sent, or was received, by now; no other thread is woken for it.
  round(false);
  if (!op->final()) pool::add(shared_from_this());
  return op;
}

Operation* Communicator::submit(const sc_request& request, uint8_t algorithm) {
  check_generation();
  sc_request r = request;
  if (static_cast<Collective>(r.collective) == Collective::broadcast && r.root == options_.rank && r.outputs == 0) {
    r.output = r.input;  // a root that names no output means its input
    r.outputs = r.inputs;
  }
  check(r);
  // Even parts are the same call however they were written down.
  if (r.send_counts && static_cast<Collective>(r.collective) != Collective::all_to_all &&
      std::all_of(r.send_counts, r.send_counts + options_.size, [&](uint64_t c) { return c == r.send_counts[0]; })) {
    r.count = r.send_counts[0];
    r.send_counts = nullptr;
  }
  listen();
  Memory& memory = memory_at(r.place);
  Mark ready{memory, mark(memory, r.stream)};
  std::unique_lock lock(mutex_);
  require_active();
  auto prepared = prepare(lock, r, algorithm);
  require_active();
  std::vector<std::shared_ptr<const Prepared>> plans;
  std::optional<Pieces> pieces;
  if (prepared->plan.blocks > options_.budget_blocks) {
    // More than a key may seal: several sequence numbers, with steps of the epoch between them. All ranks cut alike.
    for (uint64_t n = prepared->plan.blocks / options_.budget_blocks + 1; plans.empty(); n *= 2) {
      pieces.emplace(r, options_.rank, options_.size, static_cast<uint32_t>(n));
      for (uint32_t k = 0; k < n; k++) {
        plans.push_back(prepare(lock, pieces->piece(k), algorithm));
        if (plans.back()->plan.blocks <= options_.budget_blocks) continue;
        plans.clear();
        break;
      }
      if (plans.empty() && pieces->largest() <= 1)
        throw EngineError(ErrorKind::config, here() + "one call may seal at most " +
                                                 std::to_string(options_.budget_blocks * 16) +
                                                 " bytes on a stream; split it");
    }
    require_active();
  }
  if (sequence_ + std::max<size_t>(plans.size(), 1) > kLastSequence)
    throw EngineError(ErrorKind::config, here() + "sequence numbers have run out; make a new communicator");
  const int64_t timeout = r.timeout_ns > 0 ? r.timeout_ns : timeout_ns_.load(std::memory_order_relaxed);
  Operation* op = nullptr;
  if (plans.empty()) {
    op = enqueue(r, std::move(prepared), memory, timeout);
    op->references.store(2, std::memory_order_relaxed);  // the queue's and the caller's
    op->ready = std::exchange(ready.mark, nullptr);
    op->done = r.done;
    op->context = r.context;
  } else {
    op = take_operation();
    describe(*op, r, memory, timeout);
    op->references.store(2, std::memory_order_relaxed);  // the pieces' and the caller's
    op->sequence = sequence_;
    op->done = r.done;
    op->context = r.context;
    op->pieces.store(static_cast<uint32_t>(plans.size()), std::memory_order_relaxed);
    for (uint32_t k = 0; k < plans.size(); k++) {
      Operation* piece = enqueue(pieces->piece(k), std::move(plans[k]), memory, timeout);
      piece->whole = op;
      piece->ready = std::exchange(ready.mark, nullptr);
      op->last_piece = piece;
    }
    op->last_piece->references.fetch_add(1);
  }
  lock.unlock();
  // On a device the caller waits no longer than until all is handed over: what comes after is the pool's.
  if (!r.blocking || r.place) pool::add(shared_from_this());
  return op;
}

void Communicator::describe(Operation& op, const sc_request& r, Memory& memory, int64_t timeout) {
  op.state.store(kInFlight, std::memory_order_relaxed);
  op.error = Error{};
  op.owner = shared_from_this();
  op.call = Call{static_cast<Collective>(r.collective),
                 static_cast<DType>(r.dtype),
                 static_cast<RedOp>(r.redop),
                 r.root,
                 r.send_counts ? sum(r.send_counts, options_.size) : r.count,
                 0};
  op.send_counts.clear();
  op.recv_counts.clear();
  if (r.send_counts) op.send_counts.assign(r.send_counts, r.send_counts + options_.size);
  if (r.recv_counts) op.recv_counts.assign(r.recv_counts, r.recv_counts + options_.size);
  op.factor = r.factor;
  op.memory = &memory;
  op.ready = op.end = nullptr;
  op.handed.store(0, std::memory_order_relaxed);
  op.last = kNow;
  op.buffers[0].assign(r.input, r.inputs);
  op.buffers[1].assign(r.output, r.outputs);
  op.timeout = timeout;
  op.deadline = now_ns() + timeout;
  op.done = nullptr;
  op.context = nullptr;
  op.active = false;
  op.pieces.store(0, std::memory_order_relaxed);
  op.last_piece = op.whole = nullptr;
}

Operation* Communicator::enqueue(const sc_request& r, std::shared_ptr<const Prepared> prepared, Memory& memory,
                                 int64_t timeout) {
  // Every rank counts alike, from what the call and its plan say, so all step to the next epoch before the same
  // sequence.
  if (epoch_blocks_ + prepared->plan.blocks > options_.budget_blocks) {
    epoch_++;
    epoch_blocks_ = 0;
  }
  epoch_blocks_ += prepared->plan.blocks;

  Operation* op = take_operation();
  describe(*op, r, memory, timeout);
  op->references.store(1, std::memory_order_relaxed);
  op->prepared = std::move(prepared);
  op->sequence = sequence_++;
  op->epoch = epoch_;
  Past& past = history_[op->sequence % kHistory];
  past.sequence = op->sequence;
  past.call = op->call;
  past.send_counts = op->send_counts;
  past.recv_counts = op->recv_counts;
  queue_.push_back(op);
  return op;
}

void Communicator::release(Operation* op) {
  if (op->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const auto owner = std::move(op->owner);
  op->prepared.reset();
  for (void** mark : {&op->ready, &op->end})
    if (*mark) op->memory->release_mark(std::exchange(*mark, nullptr));
  if (op->last_piece) release(std::exchange(op->last_piece, nullptr));
  std::lock_guard lock(owner->mutex_);
  if (owner->spare_.size() < kSpare)
    owner->spare_.push_back(op);
  else
    delete op;
}

void Communicator::resume(Operation& op, void* stream) {
  check_generation();
  const Operation& last = op.last_piece ? *op.last_piece : op;
  if (last.end) op.memory->resume(last.end, stream);
}

bool Communicator::wait(Operation& op, int64_t until, Until goal) {
  const auto reached = [&] {
    return op.final() || (goal == Until::handed && op.handed.load(std::memory_order_acquire));
  };
  if (reached()) return true;
  check_generation();
  inside_.fetch_add(1);
  struct Leave {
    std::atomic<uint32_t>& inside;
    ~Leave() { inside.fetch_sub(1); }
  } leave{inside_};
  Bell nobody{};
  Backoff backoff(mesh_ ? mesh_->alarm() : Alarm{&nobody}, options_.crowded);
  int64_t blocked_at = 0;
  auto look = [&](bool around) {
    std::unique_lock progress(progress_, std::try_to_lock);
    if (!progress) return -1;
    const bool moved = step();
    if (!moved && around) look_around();
    return moved ? 1 : 0;
  };
  while (!reached()) {
    const int moved = look(backoff.idle());
    if (moved > 0) {
      if (blocked_at) {
        counters_.waiting_ns.fetch_add(static_cast<uint64_t>(now_ns() - blocked_at), std::memory_order_relaxed);
        blocked_at = 0;
      }
      backoff.reset();
      continue;
    }
    if (until && now_ns() >= until) break;
    if (moved < 0) {  // another thread makes progress: it will say when this operation is final
      op.waiters.fetch_add(1);
      if (goal == Until::handed)
        sleep_on(&op.handed, 0, kRecheckNs);
      else
        sleep_on(&op.state, kInFlight, kRecheckNs);
      op.waiters.fetch_sub(1);
      continue;
    }
    if (!blocked_at) blocked_at = now_ns();
    if (!backoff.pause()) continue;
    backoff.prepare();
    if (reached() || look(true) != 0)
      backoff.cancel();
    else
      backoff.sleep(std::min(until ? until - now_ns() : kRecheckNs, recheck_ns()));
  }
  if (blocked_at)
    counters_.waiting_ns.fetch_add(static_cast<uint64_t>(now_ns() - blocked_at), std::memory_order_relaxed);
  return reached();
}

Communicator::Round Communicator::round(bool look) {
  bool moved = false;
  if (std::unique_lock progress(progress_, std::try_to_lock); progress) {
    moved = step();
    if (!moved && look) look_around();
  }
  return {moved, idle()};
}

bool Communicator::idle() {
  std::lock_guard lock(mutex_);
  return queue_.empty() && !exchanging_;
}

void Communicator::doze(int64_t at_most_ns) {
  inside_.fetch_add(1);
  if (state_ != State::closed && mesh_) {
    Backoff backoff(mesh_->alarm(), options_.crowded);
    backoff.prepare();
    const Round r = round(true);
    if (r.moved || r.idle)
      backoff.cancel();
    else
      backoff.doze(std::min(at_most_ns, recheck_ns()));
  } else {
    sched_yield();
  }
  inside_.fetch_sub(1);
}

bool Communicator::step() {
  if (state_ == State::failing) {
    step_failing();
    return state_ != State::failing;
  }
  if (state_ != State::active) return false;
  bool moved = false;
  if (exchanging_.load(std::memory_order_relaxed)) {
    moved = step_messages(false);
    if (state_ != State::active) return true;
  }
  if (!current_) {
    {
      std::lock_guard lock(mutex_);
      if (!queue_.empty()) current_ = queue_.front();
    }
    if (!current_) return exchanging_ ? pump(moved) : moved;
    blocked_since_ = 0;
    asked_ = leaving_ = false;
    // Nothing of the old epoch is in flight any more: operations run one after another.
    while (transport_.sender[options_.rank].epoch() < current_->epoch && options_.size > 1) {
      for (Stream& s : transport_.sender) s.step_epoch();
      for (uint32_t p = 0; p < options_.size; p++) {
        if (p == options_.rank) continue;
        transport_.link_tx[p].step_epoch();
        transport_.link_rx[p].step_epoch();
      }
    }
    executor_.begin(*current_);
    const Plan& plan = current_->prepared->plan;
    current_->timed = plan.chunk >= StoreChoice::kLeastChunk && plan.blocks >= StoreChoice::kLeastBlocks &&
                      !(mesh_ && mesh_->has_sockets());  // a socket reads what was stored, at once
    current_->far = current_->timed && store_choice_.far(plan.blocks);
    current_->worked_ns = 0;
    for (uint32_t p = 0; p < options_.size; p++) {
      if (questions_[p].rank != p || questions_[p].sequence != current_->sequence) continue;
      questions_[p].rank = options_.size;
      compare(p, questions_[p]);
      if (state_ != State::active) return true;
    }
  }
  Executor::Progress progress;
  try {
    const int64_t began = current_->timed ? now_ns() : 0;
    progress = leaving_ ? Executor::Progress::finished : executor_.progress(*current_);
    if (current_->timed && progress != Executor::Progress::blocked) current_->worked_ns += now_ns() - began;
  } catch (const std::exception& e) {  // libcrypto or memory failed: nothing that a retry could rely on
    fail({ErrorKind::closed, where(*current_) + e.what()}, kListenShort);
    return true;
  }
  switch (progress) {
    case Executor::Progress::blocked:
      return pump(moved);
    case Executor::Progress::moved:
      if (mesh_) mesh_->flush();
      blocked_since_ = 0;
      return true;
    case Executor::Progress::finished: {
      // An operation ends when its last record has left: its caller may not come back to see to that.
      leaving_ = mesh_ && !mesh_->flush();
      if (leaving_) return mesh_->pump();
      Operation* op = current_;
      current_ = nullptr;
      {
        std::lock_guard lock(mutex_);
        queue_.pop_front();
      }
      counters_.operations.fetch_add(1, std::memory_order_relaxed);
      if (op->timed) store_choice_.took(op->prepared->plan.blocks, op->far, op->worked_ns);
      complete(op, Error{});
      return true;
    }
    case Executor::Progress::failed: {
      const std::string peer = std::to_string(executor_.failed_peer());
      fail({ErrorKind::authentication,
            where(*current_) +
                (executor_.lane_violated() ? "the lane shared with rank " + peer + " moved as no honest peer moves it"
                                           : "a record on the lane from rank " + peer + " failed authentication") +
                "; the host or the network changed it, or the ranks do not run the same program; nothing of it was "
                "used"},
           kListen);
      return true;
    }
  }
  return false;
}

bool Communicator::pump(bool moved) {
  if (!mesh_) return moved;
  if (!moved) return mesh_->pump();
  mesh_->flush();
  return true;
}

bool Communicator::step_messages(bool everyone) {
  std::vector<Operation*> posted;
  {
    std::lock_guard lock(mutex_);
    posted.swap(exchanges_);
  }
  for (Operation* op : posted) messages_->post(op);
  PointToPoint::Progress progress;
  try {
    progress = messages_->progress(finished_messages_, everyone);
  } catch (const std::exception& e) {  // libcrypto or memory failed: nothing that a retry could rely on
    fail({ErrorKind::closed, here() + "a message between ranks: " + e.what()}, kListenShort);
    return true;
  }
  // What was sent leaves this process before its sender is told, for nobody may be here to move it later.
  if (!finished_messages_.empty()) mesh_->flush();
  const auto rest = std::partition(finished_messages_.begin(), finished_messages_.end(), [&](Operation* op) {
    return op->call.collective == Collective::send && !mesh_->flushed(op->call.root);
  });
  std::for_each(rest, finished_messages_.end(), [&](Operation* op) { complete(op, Error{}); });
  finished_messages_.erase(rest, finished_messages_.end());
  if (progress != PointToPoint::Progress::failed) return progress == PointToPoint::Progress::moved;
  const PointToPoint::Failure& f = messages_->failure();
  const std::string who = "rank " + std::to_string(f.peer);
  if (f.kind == ErrorKind::mismatch)
    fail_message({f.kind, here() + who + "'s " + f.theirs.text() + " met this rank's " + f.ours.text() +
                              "; a send and the receive that takes it must have the same dtype and size"},
                 0, f.peer, f.ours, f.theirs);
  else
    fail_message({f.kind, here() + "a message from " + who + ": " + f.text}, kListenShort, f.peer,
                 Call{Collective::receive, DType::none, RedOp::none, f.peer, 0, 0});
  return true;
}

void Communicator::complete(Operation* op, Error error) {
  const bool failed = static_cast<bool>(error);
  if (is_message(*op)) {
    std::lock_guard lock(mutex_);
    exchanging_.fetch_sub(1);
    sends_.erase(std::remove(sends_.begin(), sends_.end(), op), sends_.end());
  }
  if (Operation* whole = op->whole) {
    if (failed && !whole->error) whole->error = error;
    if (whole->pieces.fetch_sub(1) == 1) {
      if (whole->error) zero_output(*whole);  // also what pieces before the failed one had brought
      complete(whole, whole->error);
    }
  }
  op->error = std::move(error);
  op->state.store(failed ? kFailed : kDone, std::memory_order_seq_cst);
  if (op->waiters.load(std::memory_order_seq_cst)) {
    wake_all(&op->state);
    wake_all(&op->handed);
  }
  if (op->done) op->done(op->context, reinterpret_cast<sc_operation*>(op));
  release(op);
}

void Communicator::zero_output(const Operation& op) const {
  // The root of a broadcast keeps what it had: nothing of it came from a peer.
  if (op.call.collective == Collective::broadcast && op.call.root == options_.rank) return;
  if (op.call.collective == Collective::receive) op.buffers[0].zero(*op.memory);
  op.buffers[1].zero(*op.memory);
}

std::string Communicator::where(const Operation& op) const {
  if (is_message(op)) return here() + op.call.text() + ": ";
  return here() + op.call.text() + ", collective number " + std::to_string(op.sequence) + ": ";
}

std::string Communicator::ranks_text(const std::vector<uint32_t>& ranks) const {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < 8; i++) text += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > 8) text += " and " + std::to_string(ranks.size() - 8) + " more";
  return text;
}

void Communicator::look_around() {
  const int64_t now = now_ns();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  if (state_ == State::failing) {
    step_failing();
    return;
  }
  if (state_ != State::active) return;
  if (abort_requested_) {
    std::string reason;
    {
      std::lock_guard lock(mutex_);
      reason = abort_reason_;
    }
    fail({ErrorKind::closed, here() + "aborted: " + reason}, 0);
    return;
  }
  poll_control();
  if (state_ != State::active) return;
  // Whoever waits for a collective also takes what its peers sent, so that they get to that collective.
  if (messages_ && (current_ || exchanging_)) step_messages(true);
  if (state_ != State::active || !(current_ || exchanging_)) return;
  if (current_ && !blocked_since_) {
    blocked_since_ = now;
    next_liveness_ = now;
  }
  if (late(now) || options_.size == 1) return;
  if (now >= next_liveness_) {
    next_liveness_ = now + kLivenessEvery;
    notice_deaths();
    if (state_ != State::active || lost()) return;
  }
  if (current_ && !asked_ && now - blocked_since_ > kAskAfter) {
    asked_ = true;
    for (uint32_t p : awaited()) control_[p]->send(about(ControlKind::query, ErrorKind::none, p, current_->sequence));
  }
}

bool Communicator::late(int64_t now) {
  Operation* late = nullptr;
  const auto look = [&](Operation* op) {
    if (now >= op->deadline && (!late || op->deadline < late->deadline)) late = op;
  };
  {
    std::lock_guard lock(mutex_);
    for (Operation* op : queue_) look(op);
  }
  for (Operation* op : messages()) look(op);
  if (!late) return false;
  const bool message = is_message(*late);
  const auto ranks = message ? messages_->awaited(*late) : awaited();
  std::string text = where(*late) + "not finished within the timeout of " + seconds(late->timeout);
  if (!message && late != current_)
    text += ", behind " + current_->call.text() + ", collective number " + std::to_string(current_->sequence);
  if (!ranks.empty()) {
    text += "; still waiting for " + ranks_text(ranks);
    const std::string why = mesh_->why_not_reached(ranks[0]);
    if (!why.empty()) text += " (no connection to rank " + std::to_string(ranks[0]) + ": " + why + ")";
  }
  if (message) {
    text +=
        late->call.collective == Collective::send ? ", which did not receive it" : ", which sent nothing that fits";
    text += "; see that it runs and that tags agree, or raise the timeout";
    fail_message({ErrorKind::timeout, text}, kListenShort, ranks[0], late->call);
    return true;
  }
  text += "; see that every rank runs and issues the same calls, or raise the timeout";
  fail({ErrorKind::timeout, text}, kListenShort, ranks.empty() ? UINT32_MAX : ranks[0]);
  return true;
}

void Communicator::notice_deaths() {
  std::vector<uint32_t> dead;
  for (uint32_t p : mesh_->reached())
    if (!gone_[p] && !left_[p] && mesh_->ended(p)) dead.push_back(p);
  if (dead.empty()) return;
  poll_control();  // a goodbye that came before the end
  if (state_ != State::active) return;
  for (uint32_t p : dead)
    if (!left_[p]) told_of_death(p, options_.rank);
}

void Communicator::told_of_death(uint32_t rank, uint32_t by) {
  if (gone_[rank] || left_[rank]) return;
  gone_[rank] = 1;
  next_liveness_ = 0;
  ControlMessage lost;
  lost.kind = ControlKind::lost;
  lost.rank = options_.rank;
  lost.subject = rank;
  for (uint32_t p : mesh_->reached())
    if (p != rank && p != by) control_[p]->send(lost);
}

bool Communicator::lost() {
  const auto is_gone = [&](uint32_t p) { return left_[p] || gone_[p] || !mesh_->alive(p); };
  const auto text = [&](const Operation& op, const std::vector<uint32_t>& ranks) {
    const bool one = ranks.size() == 1;
    const std::string left = one ? " closed its communicator" : " closed their communicators";
    const std::string died =
        one ? " is gone: its process ended, or its host did" : " are gone: their processes ended, or their hosts did";
    return where(op) + ranks_text(ranks) + (left_[ranks[0]] ? left : died) +
           "; restart the job, or the group, without " + (one ? "it" : "them");
  };
  if (current_) {
    std::vector<uint32_t> gone;
    for (uint32_t p : awaited())
      if (is_gone(p)) gone.push_back(p);
    if (!gone.empty()) {
      // What a peer sent before it ended counts: so look once more, now that no more can come.
      const auto again = awaited();
      gone.erase(std::remove_if(gone.begin(), gone.end(),
                                [&](uint32_t p) { return !std::binary_search(again.begin(), again.end(), p); }),
                 gone.end());
      // Those that died before those that left: they are the cause.
      std::stable_partition(gone.begin(), gone.end(), [&](uint32_t p) { return !left_[p]; });
      const auto same = std::find_if(gone.begin(), gone.end(), [&](uint32_t p) { return left_[p] != left_[gone[0]]; });
      gone.erase(same, gone.end());
    }
    if (!gone.empty()) {
      fail({ErrorKind::peer_lost, text(*current_, gone)}, kListenShort, gone[0]);
      return true;
    }
  }
  if (messages().empty()) return false;
  std::vector<uint8_t> gone(options_.size, 0);
  bool any = false;
  for (uint32_t p = 0; p < options_.size; p++)
    if (p != options_.rank && is_gone(p)) gone[p] = any = true;
  if (!any) return false;
  while (step_messages(true))  // what they sent before
    if (state_ != State::active) return true;
  for (Operation* op : messages()) {
    const auto ranks = messages_->awaited(*op);
    if (!std::all_of(ranks.begin(), ranks.end(), [&](uint32_t p) { return gone[p]; })) continue;
    fail_message({ErrorKind::peer_lost, text(*op, ranks)}, kListenShort, ranks[0], op->call);
    return true;
  }
  return false;
}

std::vector<Operation*> Communicator::messages() const {
  std::vector<Operation*> all = finished_messages_;
  if (messages_) all.insert(all.end(), messages_->unfinished().begin(), messages_->unfinished().end());
  return all;
}

std::vector<uint32_t> Communicator::awaited() {
  std::vector<uint32_t> ranks;
  if (leaving_)
    mesh_->laggards(ranks);
  else
    ranks = executor_.awaited(*current_);
  return ranks;
}

void Communicator::poll_control() {
  if (!mesh_) return;
  mesh_->pump();
  for (uint32_t p : mesh_->reached()) {
    ControlMessage message;
    ControlLink::Received got;
    while ((got = control_[p]->receive(message)) == ControlLink::Received::message) {
      if (message.rank != p) {
        got = ControlLink::Received::forged;
        break;
      }
      receive(p, message);
      if (state_ != State::active && state_ != State::failing) return;
    }
    if (got == ControlLink::Received::forged) {
      heard_[p] = 1;
      if (state_ == State::active) {
        fail({ErrorKind::authentication, here() + "a control record on the lane from rank " + std::to_string(p) +
                                             " failed authentication; the host changed it"},
             kListenShort);
        return;
      }
    }
  }
}

bool Communicator::mine(uint64_t sequence, Past& past) {
  std::lock_guard lock(mutex_);
  if (sequence >= sequence_ || sequence + kHistory < sequence_) return false;
  past = history_[sequence % kHistory];
  return past.sequence == sequence;
}

bool Communicator::differs(uint32_t peer, const ControlMessage& theirs, const Past& ours) const {
  const Call& a = ours.call;
  const Call& b = theirs.call;
  if (a.collective != b.collective || a.dtype != b.dtype || a.redop != b.redop || a.root != b.root) return true;
  if (a.collective != Collective::all_to_all) return a.count != b.count;
  const uint64_t sends = ours.send_counts.empty() ? a.count : ours.send_counts[peer];
  const uint64_t expects = ours.recv_counts.empty() ? a.count : ours.recv_counts[peer];
  return sends != theirs.expects || expects != theirs.sends;
}

std::string Communicator::mismatch(uint32_t peer, const ControlMessage& theirs, const Past& ours) const {
  std::string text = here() + "rank " + std::to_string(peer) + " called " + theirs.call.text() + ", this rank " +
                     ours.call.text() + ", as collective number " + std::to_string(ours.sequence);
  if (ours.call.collective == Collective::all_to_all && theirs.call.collective == Collective::all_to_all) {
    const uint64_t sends = ours.send_counts.empty() ? ours.call.count : ours.send_counts[peer];
    const uint64_t expects = ours.recv_counts.empty() ? ours.call.count : ours.recv_counts[peer];
    text += " (rank " + std::to_string(peer) + " sends " + std::to_string(theirs.sends) + " and expects " +
            std::to_string(theirs.expects) + " elements, this rank expects " + std::to_string(expects) +
            " and sends " + std::to_string(sends) + ")";
  }
  return text + "; every rank of a group must issue the same calls in the same order";
}

void Communicator::compare(uint32_t peer, const ControlMessage& theirs) {
  Past ours;
  if (mine(theirs.sequence, ours) && differs(peer, theirs, ours))
    fail({ErrorKind::mismatch, mismatch(peer, theirs, ours)}, kListenShort, UINT32_MAX, theirs.sequence);
}

uint32_t Communicator::origin(uint32_t peer, const ControlMessage& message) const {
  return message.origin < options_.size ? message.origin : peer;
}

std::string Communicator::reports(uint32_t peer, const ControlMessage& message) const {
  static constexpr const char* why[] = {
      "an error",          "a wrong call", "a failed handshake", "a record that failed authentication",
      "calls that differ", "a lost peer",  "a timeout",          "an abort"};
  std::string text = here() + "rank " + std::to_string(origin(peer, message)) + " reports " +
                     why[static_cast<unsigned>(message.error)];
  if (message.subject < options_.size) text += " (rank " + std::to_string(message.subject) + ")";
  return text;
}

void Communicator::told_of_message(uint32_t peer, const ControlMessage& message) {
  heard_[peer] = 1;
  if (state_ != State::active) return;
  std::string text = reports(peer, message) + " in its " + message.call.text();
  if (message.error == ErrorKind::mismatch) {
    Call sent = message.other;
    sent.root = origin(peer, message);
    text = here() + "rank " + std::to_string(sent.root) + "'s " + message.call.text() + " met rank " +
           std::to_string(message.call.root == kAnySource ? message.subject : message.call.root) + "'s " +
           sent.text() + "; a send and the receive that takes it must have the same dtype and size";
  }
  const ErrorKind kind = message.error == ErrorKind::closed ? ErrorKind::peer_lost : message.error;
  about_message_ = message;  // passed on
  failed_origin_ = origin(peer, message);
  failed_there_ = message.error;
  fail({kind, text + "; its own error says more; make a new communicator to go on"}, 0, message.subject);
}

void Communicator::receive(uint32_t peer, const ControlMessage& message) {
  switch (message.kind) {
    case ControlKind::lost:
      if (state_ == State::active && message.subject < options_.size && message.subject != options_.rank)
        told_of_death(message.subject, peer);
      return;
    case ControlKind::goodbye:
      left_[peer] = 1;
      heard_[peer] = 1;
      next_liveness_ = 0;
      return;
    case ControlKind::query:
      if (state_ != State::active) return;
      {
        std::lock_guard lock(mutex_);
        if (message.sequence >= sequence_) {  // not called here yet: answered when it is
          questions_[peer] = message;
          return;
        }
      }
      compare(peer, message);
      return;
    case ControlKind::notice: {
      if (message.call.collective == Collective::send || message.call.collective == Collective::receive) {
        told_of_message(peer, message);
        return;
      }
      Past ours;
      const bool both = mine(message.sequence, ours);
      const bool differ = both && differs(peer, message, ours);
      if (state_ == State::failing) {
        // Calls can only be compared at one sequence number: a peer that failed at another is told of this rank's
        // call there, and one that failed ahead of this rank will do the same.
        if (both && message.sequence != failed_sequence_)
          control_[peer]->send(about(ControlKind::notice, error_.kind, peer, message.sequence));
        if (both || message.sequence == UINT64_MAX) heard_[peer] = 1;
        std::lock_guard lock(mutex_);
        if (differ && (error_.kind == ErrorKind::authentication || error_.kind == ErrorKind::timeout))
          error_ = {ErrorKind::mismatch, mismatch(peer, message, ours)};
        return;
      }
      if (state_ != State::active) return;
      heard_[peer] = 1;
      const uint64_t sequence = both ? message.sequence : UINT64_MAX;
      if (differ && message.error != ErrorKind::closed && message.error != ErrorKind::peer_lost) {
        fail({ErrorKind::mismatch, mismatch(peer, message, ours)}, kListenShort, UINT32_MAX, sequence);
        return;
      }
      const ErrorKind kind = message.error == ErrorKind::closed ? ErrorKind::peer_lost : message.error;
      failed_origin_ = origin(peer, message);
      failed_there_ = message.error;
      std::string text = reports(peer, message);
      if (message.sequence != UINT64_MAX)
        text += " in " + message.call.text() + ", collective number " + std::to_string(message.sequence);
      fail({kind, text + "; its own error says more; make a new communicator to go on"}, 0, message.subject, sequence);
      return;
    }
  }
}

ControlMessage Communicator::about(ControlKind kind, ErrorKind error, uint32_t peer, uint64_t sequence) {
  ControlMessage m;
  if (about_message_ && kind == ControlKind::notice) m = *about_message_;
  m.kind = kind;
  m.error = failed_there_ != ErrorKind::none ? failed_there_ : error;
  m.rank = options_.rank;
  m.sequence = UINT64_MAX;
  m.subject = failed_subject_;
  m.origin = failed_origin_;
  Past past;
  if (mine(sequence, past)) {
    m.sequence = sequence;
    m.call = past.call;
    m.sends = past.send_counts.empty() ? past.call.count : past.send_counts[peer];
    m.expects = past.recv_counts.empty() ? past.call.count : past.recv_counts[peer];
  }
  return m;
}

void Communicator::fail_message(Error error, int64_t listen_ns, uint32_t subject, const Call& ours,
                                const Call& theirs) {
  about_message_.emplace();
  about_message_->call = ours;
  about_message_->other = theirs;
  fail(std::move(error), listen_ns, subject);
}

// The first failure: stop, erase the data keys, zero what is unfinished, tell the peers. What remains is to listen
// for their view of it, so that the error can name the cause.
void Communicator::fail(Error error, int64_t listen_ns, uint32_t subject, uint64_t sequence) {
  if (state_ != State::active) return;
  {
    std::lock_guard lock(mutex_);
    state_ = State::failing;
    error_ = std::move(error);
    failed_subject_ = subject;
    failed_sequence_ = about_message_           ? UINT64_MAX
                       : sequence != UINT64_MAX ? sequence
                       : current_               ? current_->sequence
                       : sequence_              ? sequence_ - 1
                                                : UINT64_MAX;
  }
  {
    std::lock_guard lock(device_mutex_);
    if (device_) device_->stop();
  }
  for (Stream& s : transport_.sender) s.erase();
  for (Stream& s : transport_.link_tx) s.erase();
  for (Stream& s : transport_.link_rx) s.erase();
  if (messages_) {
    messages_->erase();
    for (Operation* op : messages_->unfinished()) zero_output(*op);
  }
  {
    std::lock_guard lock(mutex_);
    for (Operation* op : queue_) zero_output(*op);
    for (Operation* op : exchanges_) zero_output(*op);
  }
  if (mesh_) {
    mesh_->stop_meeting();
    for (uint32_t p : mesh_->reached())
      control_[p]->send(about(ControlKind::notice, error_.kind, p, failed_sequence_));
  }
  failing_until_ = now_ns() + listen_ns;
  next_liveness_ = 0;
  step_failing();
}

void Communicator::step_failing() {
  poll_control();
  const int64_t now = now_ns();
  bool all = true;
  if (mesh_ && now < failing_until_) {
    const bool look = now >= next_liveness_;
    if (look) next_liveness_ = now + kLivenessEvery;
    for (uint32_t p : mesh_->reached()) {
      if (heard_[p]) continue;
      if (look && !mesh_->alive(p))
        heard_[p] = 1;
      else
        all = false;
    }
  }
  if (all || now >= failing_until_) conclude();
}

void Communicator::conclude() {
  for (auto& c : control_)
    if (c) c->erase();
  std::deque<Operation*> unfinished;
  Error error;
  {
    std::lock_guard lock(mutex_);
    state_ = State::failed;
    unfinished.swap(queue_);
    unfinished.insert(unfinished.end(), exchanges_.begin(), exchanges_.end());
    exchanges_.clear();
    error = error_;
  }
  if (messages_)
    for (Operation* op : messages_->take_unfinished()) unfinished.push_back(op);
  unfinished.insert(unfinished.end(), finished_messages_.begin(), finished_messages_.end());
  finished_messages_.clear();
  current_ = nullptr;
  for (Operation* op : unfinished) complete(op, error);
}

bool Communicator::drain(int64_t until) {
  if (generation_ != fork_generation()) return true;
  for (;;) {
    Operation* last = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (queue_.empty() && sends_.empty()) return true;
      last = queue_.empty() ? sends_.back() : queue_.back();
      last->references.fetch_add(1);
    }
    const bool final = wait(*last, until);
    release(last);
    if (!final) return false;
  }
}

void Communicator::abort(const std::string& reason) {
  if (generation_ != fork_generation()) return;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::active) return;
    abort_reason_ = reason;
    abort_requested_ = true;
  }
  inside_.fetch_add(1);
  // Whoever makes progress sees the request at its next look; when nobody does, do it here.
  if (std::unique_lock progress(progress_, std::try_to_lock); progress) {
    next_look_ = 0;
    look_around();
  } else if (mesh_) {
    mesh_->wake();
  }
  inside_.fetch_sub(1);
}

void Communicator::close() {
  if (generation_ != fork_generation()) return;
  drain(0);  // what is in flight ends by itself, at its deadline at the latest
  {
    std::lock_guard progress(progress_);
    {
      std::lock_guard lock(mutex_);
      if (state_ == State::closed) return;
      if (state_ == State::active) {
        error_ = {ErrorKind::closed, "it was closed"};
        for (uint32_t p = 0; p < options_.size; p++)
          if (control_[p]) {
            ControlMessage goodbye;
            goodbye.kind = ControlKind::goodbye;
            goodbye.rank = options_.rank;
            goodbye.sequence = sequence_;
            control_[p]->send(goodbye);
          }
      }
      state_ = State::closed;
    }
    for (auto* list : {&transport_.sender, &transport_.link_tx, &transport_.link_rx})
      for (Stream& s : *list) s.erase();
    if (messages_) end_messages();
    for (auto& c : control_)
      if (c) c->erase();
  }
  // Threads may still be about to touch the bell.
  while (inside_.load()) {
    if (mesh_) mesh_->wake();
    sched_yield();
  }
  std::lock_guard progress(progress_);
  if (mesh_) mesh_->leave(now_ns() + kFarewell);
  transport_.writers.clear();
  transport_.readers.clear();
  messages_.reset();
  control_.clear();
  control_.resize(options_.size);
  if (mesh_) strangers_ = {mesh_->strangers(), mesh_->last_stranger()};
  mesh_.reset();
}

// What no message came for.
void Communicator::end_messages() {
  std::list<Operation*> unfinished = messages_->take_unfinished();
  {
    std::lock_guard lock(mutex_);
    unfinished.insert(unfinished.end(), exchanges_.begin(), exchanges_.end());
    exchanges_.clear();
  }
  messages_->erase();
  for (Operation* op : unfinished) {
    zero_output(*op);
    complete(op, {ErrorKind::closed, where(*op) + "the communicator was closed before a message came"});
  }
}

Error Communicator::error() {
  if (generation_ != fork_generation())
    return {ErrorKind::closed,
            here() + "this communicator belongs to the parent of a fork; make a new one in the child"};
  std::lock_guard lock(mutex_);
  return state_ == State::active ? Error{} : error_;
}

uint64_t Communicator::last_sequence() {
  std::lock_guard lock(mutex_);
  return sequence_;
}

uint32_t Communicator::epoch() {
  std::lock_guard lock(mutex_);
  return epoch_;
}

std::vector<uint32_t> Communicator::reached() {
  std::lock_guard progress(progress_);
  return mesh_ ? mesh_->reached() : std::vector<uint32_t>{};
}

std::pair<uint64_t, std::string> Communicator::strangers() {
  std::lock_guard progress(progress_);
  return mesh_ ? std::pair(mesh_->strangers(), mesh_->last_stranger()) : strangers_;
}

uint64_t Communicator::mapped_bytes() {
  std::lock_guard progress(progress_);
  return mesh_ ? mesh_->mapped_bytes() : 0;
}

}  // namespace securecoll
