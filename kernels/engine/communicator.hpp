// A communicator on one rank: calls in, operations out, one failure for all.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/control.hpp"
#include "engine/executor.hpp"
#include "engine/mesh.hpp"
#include "engine/operation.hpp"
#include "engine/point_to_point.hpp"
#include "engine/store_choice.hpp"

namespace securecoll {

// Moved out of a finished handshake; by peer, empty at the own rank.
struct Roots {
  std::vector<Secret> link_tx, link_rx, p2p_tx, p2p_rx, control_tx, control_rx, sender;
};

struct CommunicatorOptions {
  uint32_t rank = 0, size = 1;
  uint32_t slot_bytes = 65536;
  int64_t timeout_ns = 0;
  // Cipher blocks that a stream may seal in one epoch; the protocol's bound is 2^32, tests use less. Equal on all
  // ranks.
  uint64_t budget_blocks = uint64_t{1} << 32;
  bool crowded = false;  // more ranks than cores on this host
};

// Builds the plan of a call: a pure function of its arguments and the communicator's shape. Throws EngineError.
using Planner = std::function<std::shared_ptr<const Prepared>(const sc_request& request, uint8_t algorithm)>;

// The memory of a device, for this communicator alone. Asked for once, when a call first brings device memory. Throws
// EngineError: config when there is no such device, saying what is missing.
using DeviceSource = std::function<std::unique_ptr<Memory>(uint32_t ordinal, const Mesh* mesh)>;

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // `mesh` is null for a group of one, and has met everyone. `memory` is the CPU's.
  Communicator(CommunicatorOptions options, std::unique_ptr<Mesh> mesh, Roots roots, Memory* memory, Planner planner,
               DeviceSource devices);
  ~Communicator();

  // The caller owns one reference to the operation. `algorithm`: 0 lets the tuner choose. Throws EngineError: config
  // when the call is wrong, and then nothing was sent and no sequence number used; else the communicator's first
  // error.
  Operation* submit(const sc_request& request, uint8_t algorithm = 0);
  // As submit, for a message to or from another rank: Collective::send or receive.
  Operation* exchange(const sc_message& message, Collective direction);
  // Makes progress until the operation is final, or handed to its memory, or `until` (ns, monotonic; 0: its own
  // deadline rules) has passed. Returns whether it got there.
  enum class Until : uint8_t { final, handed };
  bool wait(Operation& op, int64_t until, Until goal = Until::final);
  // After a successful wait for Until::handed: the caller's stream goes on behind the operation. Throws EngineError.
  void resume(Operation& op, void* stream);
  static void release(Operation* op);

  // Makes progress until no collective and no send is in flight or `until` (ns, monotonic) has passed. Whether none
  // is.
  bool drain(int64_t until);
  void abort(const std::string& reason);
  void close();
  Error error();

  uint32_t rank() const { return options_.rank; }
  uint32_t size() const { return options_.size; }
  uint64_t last_sequence();
  void set_timeout(int64_t timeout_ns) { timeout_ns_.store(timeout_ns); }
  const Counters& counters() const { return counters_; }
  uint64_t mapped_bytes();
  std::vector<uint32_t> reached();
  // Connections to this rank that proved nothing, and what is to be said of the last; also after close().
  std::pair<uint64_t, std::string> strangers();
  uint32_t epoch();

  // For the pool: one round of progress, if no other thread is at it. Idle: nothing is in flight.
  struct Round {
    bool moved, idle;
  };
  Round round(bool look_around);
  bool idle();
  // Sleeps on this communicator's alarm unless a last look finds something.
  void doze(int64_t at_most_ns);

 private:
  enum class State : uint8_t { active, failing, failed, closed };
  struct Key {
    uint8_t collective, dtype, redop, algorithm;
    uint32_t root;
    uint64_t count;
    std::vector<uint64_t> counts;
    bool operator==(const Key& o) const;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const noexcept;
  };
  struct Past {
    uint64_t sequence = 0;
    Call call;
    std::vector<uint64_t> send_counts, recv_counts;
  };

  std::string here() const { return "rank " + std::to_string(options_.rank) + ": "; }
  void check_generation() const;
  void check(const sc_request& request) const;
  Memory& memory_at(uint32_t place);
  // memory.mark(stream). Throws the communicator's error where that is why the device takes no more work.
  void* mark(Memory& memory, void* stream);
  std::shared_ptr<const Prepared> prepare(std::unique_lock<std::mutex>& lock, const sc_request& request,
                                          uint8_t algorithm);
  Operation* take_operation();
  // All but references, plan, sequence and epoch.
  void describe(Operation& op, const sc_request& request, Memory& memory, int64_t timeout);
  // mutex_ held: gives it its sequence number. The one reference is the queue's.
  Operation* enqueue(const sc_request& request, std::shared_ptr<const Prepared> prepared, Memory& memory,
                     int64_t timeout);
  void zero_output(const Operation& op) const;
  // Nobody rings a bell when a device is done.
  int64_t recheck_ns() const { return executor_.outstanding() ? kRecheckNs / 40 : kRecheckNs; }
  // The communicator's error, as a later call raises it. mutex_ held.
  void require_active() const;
  // Before a call is taken. A peer's failure that arrived while this rank was busy elsewhere is its answer.
  void listen();
  bool step();  // progress_ held
  // Sends and receives that are not final, but for those that nobody looked at yet.
  std::vector<Operation*> messages() const;
  // The ranks that the operation in progress waits for.
  std::vector<uint32_t> awaited();
  // progress_ held. `everyone`: see PointToPoint::progress.
  bool step_messages(bool everyone);
  // The notice, and so the peers' error, is about a message.
  void fail_message(Error error, int64_t listen_ns, uint32_t subject, const Call& ours, const Call& theirs = {});
  // The operation or the messages did what they could, or nothing: moves what sockets hold. progress_ held.
  bool pump(bool moved);
  void look_around();   // progress_ held: clocks, control, liveness
  void poll_control();  // progress_ held
  void receive(uint32_t peer, const ControlMessage& message);
  void told_of_message(uint32_t peer, const ControlMessage& message);
  // The rank that a notice comes from in the end, though another passed it on.
  uint32_t origin(uint32_t peer, const ControlMessage& message) const;
  std::string reports(uint32_t peer, const ControlMessage& message) const;
  void compare(uint32_t peer, const ControlMessage& message);
  bool mine(uint64_t sequence, Past& past);
  std::string mismatch(uint32_t peer, const ControlMessage& theirs, const Past& ours) const;
  bool differs(uint32_t peer, const ControlMessage& theirs, const Past& ours) const;
  ControlMessage about(ControlKind kind, ErrorKind error, uint32_t peer, uint64_t sequence);
  // progress_ held. For the peers' messages: `subject` is the rank that the error is about, `sequence` the call (by
  // default the one in progress, or the last).
  void fail(Error error, int64_t listen_ns, uint32_t subject = UINT32_MAX, uint64_t sequence = UINT64_MAX);
  void step_failing();  // progress_ held
  void conclude();      // progress_ held
  void complete(Operation* op, Error error);
  void end_messages();  // progress_ held
  // What passed its deadline, or waits for ranks that are gone. Whether that ended the communicator.
  bool late(int64_t now);
  bool lost();
  // Tells the others of ranks whose process ended without a goodbye: some may wait for one that they have no way to.
  void notice_deaths();
  void told_of_death(uint32_t rank, uint32_t by);
  std::string where(const Operation& op) const;
  std::string ranks_text(const std::vector<uint32_t>& ranks) const;

  const CommunicatorOptions options_;
  const uint64_t generation_;
  Memory* const memory_;
  const Planner planner_;
  const DeviceSource devices_;
  std::mutex device_mutex_;
  std::unique_ptr<Memory> device_;  // outlives what is in it
  uint32_t device_place_ = 0;
  std::atomic<int64_t> timeout_ns_;
  Counters counters_;

  std::mutex mutex_;  // the queue, sequence numbers, plans and the state's transitions
  std::deque<Operation*> queue_;
  std::vector<Operation*> exchanges_;    // sends and receives that messages_ did not take over yet
  std::vector<Operation*> sends_;        // that are not final
  std::atomic<uint32_t> exchanging_{0};  // sends and receives that are not final
  std::vector<Operation*> spare_;
  std::unordered_map<Key, std::shared_ptr<const Prepared>, KeyHash> plans_;
  std::vector<Past> history_;
  uint64_t sequence_ = 0;
  uint32_t epoch_ = 0;
  uint64_t epoch_blocks_ = 0;
  std::atomic<State> state_{State::active};
  Error error_;
  std::string abort_reason_;
  std::atomic<bool> abort_requested_{false};

  std::mutex progress_;  // taken before mutex_
  std::unique_ptr<Mesh> mesh_;
  std::pair<uint64_t, std::string> strangers_;  // of one that was closed
  Transport transport_;
  Executor executor_;
  std::unique_ptr<PointToPoint> messages_;
  std::vector<Operation*> finished_messages_;
  std::optional<ControlMessage> about_message_;  // what this rank's failure is about, if not a collective
  StoreChoice store_choice_;
  std::vector<std::unique_ptr<ControlLink>> control_;
  std::vector<ControlMessage> questions_;     // a QUERY for a call this rank has not made yet; rank size: none
  std::vector<uint8_t> heard_, left_, gone_;  // by rank: said what it had to, closed, is known to have died
  Operation* current_ = nullptr;
  int64_t blocked_since_ = 0, next_look_ = 0, next_liveness_ = 0, failing_until_ = 0;
  bool asked_ = false;
  bool leaving_ = false;  // current_ is done but for what sockets have not taken yet
  uint64_t failed_sequence_ = 0;
  uint32_t failed_subject_ = UINT32_MAX, failed_origin_ = UINT32_MAX;
  ErrorKind failed_there_ = ErrorKind::none;  // at the origin, if that is another rank

  std::atomic<uint32_t> inside_{0};  // threads that may touch the mesh's alarm
};

}  // namespace securecoll
