#include "cuda/device_memory.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cuda/launch.hpp"
#include "engine/arena.hpp"
#include "engine/error.hpp"
#include "engine/fork.hpp"
#include "host/aead.hpp"
#include "host/reduce.hpp"

namespace securecoll::cuda {
namespace {

using Address = Device::Address;

constexpr size_t kAlign = 256;
// A CTA should have this much to do before another one joins it: each has tables to set up.
constexpr uint32_t kBytesPerPart = 32768;
constexpr uint32_t kRecordsPerReseal = kRecordsPerLaunch / 2;
constexpr uint32_t kSnapshots = 64;

// Tickets are numbers on one of a few channels, each of which settles in its own order.
enum Channel : unsigned { kSent, kSentOn, kTaken, kVerdict, kEnd, kChannels };
constexpr unsigned kChannelShift = 60;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
Address address(const void* at) { return reinterpret_cast<Address>(at); }

// A point in a stream's work, and what must stay until it has passed. Events and buffers go back to their pool with
// the last that holds them.
using Moment = std::shared_ptr<void>;
using Bounce = std::shared_ptr<void>;

Address address(const Bounce& bounce) { return reinterpret_cast<Address>(bounce.get()); }

struct Mark {
  Moment moment;
};

// The device is current in this thread while one of these lives.
class Current {
 public:
  explicit Current(Device& device) : device_(device), bound_(device.bind()) {}
  ~Current() {
    if (bound_) device_.unbind();
  }
  Current(const Current&) = delete;
  bool bound() const { return bound_; }

 private:
  Device& device_;
  bool bound_;
};

struct Range {
  Address at = 0;
  uint64_t bytes = 0;
  bool overlaps(const Range& o) const { return at < o.at + o.bytes && o.at < at + bytes && bytes && o.bytes; }
};

// Where a call that copies returns when the copy is done, as in confidential mode, each queue has a thread that makes
// its calls, in the order they were given: so neither queue, nor the caller, stands still while the other copies.
class Worker {
 public:
  ~Worker() { join(); }
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  bool started() const { return thread_.joinable(); }

  // Returns how many calls were given, with this one.
  uint64_t give(std::function<void()> call) {
    std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
    return ++given_;
  }
  uint64_t given() {
    std::lock_guard lock(mutex_);
    return given_;
  }
  // Returns when that many were made. From another thread than this worker's.
  void wait_made(uint64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return made_ >= count; });
  }
  // From now on calls are dropped instead of made; returns when the one in progress is over.
  void drop() {
    {
      std::lock_guard lock(mutex_);
      dropping_ = true;
    }
    wait_made(given());
  }
  // In a forked child, where destroying the thread would wait for one that does not exist.
  void abandon() { static_cast<void>(new std::thread(std::move(thread_))); }
  void join() {
    if (!started()) return;
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !calls_.empty() || ending_; });
      if (calls_.empty()) return;
      std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      const bool drop = dropping_;
      lock.unlock();
      if (!drop) call();
      call = nullptr;  // lets go of buffers, which takes locks of its own
      lock.lock();
      made_++;
      changed_.notify_all();
    }
  }

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  uint64_t given_ = 0, made_ = 0;
  bool dropping_ = false, ending_ = false;
};

// A sealed record's way out.
struct Departure {
  std::vector<uint8_t*> slots;  // to copy to; none: the kernel writes the slot itself
  size_t bytes = 0;
  Bounce bounce;
};

struct Sealing {
  Record record{};
  Departure departure;
};

struct Opening {
  Record record{};
  Reduction reduction{};
  Range out, operand;
  Bounce bounce;
  bool is_mapped = false;
  bool resealed = false;
  Sealing onward;
};

class DeviceMemory final : public Memory {
 public:
  DeviceMemory(std::shared_ptr<Device> device, const DeviceMemoryOptions& options)
      : device_(std::move(device)), options_(options), generation_(fork_generation()) {
    try {
      set_up();
    } catch (...) {
      tear_down();
      throw;
    }
  }

  ~DeviceMemory() override {
    if (generation_ != fork_generation()) {  // the device works for the parent, and its threads are not here
      for (Worker& w : workers_) w.abandon();
      return;
    }
    for (Worker& w : workers_) w.join();
    const Current current(*device_);
    for (Device::Stream s : {send_, receive_, in_, out_, aside_}) device_->synchronize(s);
    tear_down();
  }

  std::string mode() const { return mode_; }

  // ---- keys

  void* expand(const uint8_t key[32]) override {
    const Current current(*device_);
    const Address room = take_key_room();
    uint8_t nonce[kNonceBytes] = {};
    const uint64_t number = ++wrapped_;
    std::memcpy(nonce, &number, sizeof number);
    // A stream's key never lies where copies are made from: it travels sealed under a key of this device's own.
    const auto& wrapping = *static_cast<const host::AeadKey*>(wrapping_here_);
    host::aead(host::Suite::aes_256_gcm)->seal(wrapping, nonce, nullptr, 0, key, 32, pinned_key_, pinned_key_ + 32);
    expand_on_device(room, wrapping_there_, nonce, 32 + kTagSize);
    return reinterpret_cast<void*>(room);
  }

  void discard(void* key) noexcept override {
    if (generation_ != fork_generation()) return;
    const Current current(*device_);
    device_->fill(address(key), 0, kDeviceKeyBytes, aside_);
    device_->synchronize(aside_);
    spare_keys_.push_back(address(key));
  }

  // ---- room

  uint8_t* allocate(size_t bytes) override {
    const Current current(*device_);
    const size_t size = aligned(bytes);
    auto& spare = spare_rooms_[size];
    if (spare.empty()) return reinterpret_cast<uint8_t*>(take_device(size));
    const Address at = spare.back();
    spare.pop_back();
    // What it was used for may still be under way.
    follow(Queue::send);
    follow(Queue::receive);
    return reinterpret_cast<uint8_t*>(at);
  }
  void release(uint8_t* at, size_t bytes) noexcept override { spare_rooms_[aligned(bytes)].push_back(address(at)); }

  // ---- records

  bool accepts(Queue queue) override {
    const Current current(*device_);
    const auto room = [&] {
      std::lock_guard lock(pools_mutex_);
      return !outgoing_.empty() && (queue == Queue::send || !incoming_.empty());
    };
    if (room()) return true;
    for (unsigned c = 0; c < kChannels; c++) look(static_cast<Channel>(c));
    return room();
  }

  Ticket seal(Queue queue, const RecordContext& context, const uint8_t* plain, size_t bytes, uint8_t* const* slots,
              size_t lanes, uint8_t*) override {
    const Current current(*device_);
    Sealing s;
    s.record = record_of(context, bytes);
    s.record.input = address(plain);
    s.departure.bytes = bytes + kTagSize;
    s.record.output = lanes == 1 ? mapped(slots[0]) : 0;
    if (!s.record.output) {
      s.departure.bounce = take(outgoing_);
      s.record.output = address(s.departure.bounce);
      s.departure.slots.assign(slots, slots + lanes);
    }
    if (queue == Queue::send) {
      if (seals_.size() == kRecordsPerLaunch) launch_seals();
      seals_.push_back(std::move(s));
      return issue(kSent);
    }
    // What was just opened and reduced is sealed from registers, if it still waits to be.
    Opening* last = opens_.empty() ? nullptr : &opens_.back();
    if (last && !last->resealed && last->record.output == s.record.input && last->record.bytes == bytes &&
        last->out.bytes == bytes) {
      last->resealed = true;
      last->onward = std::move(s);
      const Ticket ticket = issue(kSentOn);
      if (++resealed_ == kRecordsPerReseal) launch_opens();
      return ticket;
    }
    launch_opens();
    if (onward_.size() == kRecordsPerLaunch) launch_onward();
    onward_.push_back(std::move(s));
    return issue(kSentOn);
  }

  Opened open(const RecordContext& context, const uint8_t* sealed, size_t bytes, uint8_t* plain,
              const void*) override {
    const Current current(*device_);
    Opening o;
    o.record = record_of(context, bytes);
    o.reduction = Reduction{};
    o.record.output = address(plain);
    o.out = {address(plain), bytes};
    return add(std::move(o), sealed);
  }

  Opened open_reduce(const RecordContext& context, const uint8_t* sealed, size_t bytes, uint8_t* room,
                     const void* prefetch, const ReduceTask& task) override {
    const Current current(*device_);
    if (!task.count || !fusable(static_cast<uint8_t>(task.dtype), static_cast<uint8_t>(task.op))) {
      const Opened opened = open(context, sealed, bytes, room, prefetch);
      if (task.count) reduce(Queue::receive, task);
      return opened;
    }
    Opening o;
    o.record = record_of(context, bytes);
    o.reduction = reduction_of(task);
    o.reduction.opened_is_a = task.a == room;
    const void* other = task.a == room ? task.b : task.a;
    const bool wide = task.a == room ? false : task.a_is_accumulator;
    o.record.operand = address(other);
    if (other) o.operand = {address(other), task.count * width(task.dtype, wide)};
    o.record.output = address(task.out);
    o.out = {address(task.out), task.count * width(task.dtype, task.out_is_accumulator)};
    return add(std::move(o), sealed);
  }

  Forwarded forward(const Forwarding& f) override {
    const Current current(*device_);
    launch_opens();
    launch_onward();
    Forwarded done;
    const Bounce bounce = take(incoming_);
    done.opened.taken = issue(kTaken);
    done.sent = issue(kSentOn);
    post(Queue::receive, [this, bounce, from = f.from, slots = std::vector<uint8_t*>(f.to, f.to + f.lanes),
                          bytes = f.bytes + kTagSize, taken = issued_[kTaken], sent = issued_[kSentOn]] {
      check(device_->copy_in(address(bounce), from, bytes, in_));
      const Moment read = moment(in_);
      fly(kTaken, taken, read, {});
      wait(out_, read);
      for (uint8_t* slot : slots) check(device_->copy_out(slot, address(bounce), bytes, out_));
      fly(kSentOn, sent, moment(out_), {bounce});
    });
    if (!f.record) return done;
    Opening o;
    o.record = record_of(*f.record, f.bytes);
    o.reduction = Reduction{};
    o.record.input = address(bounce);
    o.record.output = address(f.plain);
    o.out = {address(f.plain), f.bytes};
    o.bounce = bounce;
    done.opened.verdict = issue(kVerdict);
    o.record.index = static_cast<uint32_t>(issued_[kVerdict]);
    opens_.push_back(std::move(o));
    return done;
  }

  void reduce(Queue queue, const ReduceTask& task) override {
    const Current current(*device_);
    launch_pending(queue);
    ReduceArgs args{address(task.out), address(task.a), address(task.b), task.count, reduction_of(task)};
    const uint64_t ctas = std::clamp<uint64_t>(task.count / 4096, 1, options_.ctas);
    post(queue, [this, queue, args, ctas] {
      launch(reduce_kernel_, static_cast<uint32_t>(ctas), 0, &args, sizeof args, stream_of(queue));
    });
  }

  void copy(Queue queue, void* to, const void* from, size_t bytes, bool) override {
    const Current current(*device_);
    launch_pending(queue);
    post(queue, [this, queue, to, from, bytes] {
      check(device_->copy(address(to), address(from), bytes, stream_of(queue)));
    });
  }

  void zero(void* at, size_t bytes) noexcept override {
    const Current current(*device_);
    device_->fill(address(at), 0, bytes, aside_);
    device_->synchronize(aside_);
  }

  bool reducible(DType dtype, RedOp op) const override { return host::reduce_kernel(dtype, op) != nullptr; }

  // ---- order

  void* mark(void* stream) override {
    const Current current(*device_);
    if (device_->capturing(stream))
      throw EngineError(ErrorKind::config,
                        "the stream is being captured into a graph; a replay would seal new data under old nonces, so "
                        "a collective cannot be captured: call it outside of the capture");
    return new Mark{moment(stream)};
  }

  void begin(void* mark) override {
    const Current current(*device_);
    if (!mark) return;
    for (const Queue queue : {Queue::send, Queue::receive})
      post(queue, [this, queue, ready = static_cast<Mark*>(mark)->moment] { wait(stream_of(queue), ready); });
  }

  void follow(Queue queue) override {
    const Current current(*device_);
    const Queue other = queue == Queue::send ? Queue::receive : Queue::send;
    launch_pending(other);
    bool& busy = busy_[static_cast<unsigned>(other)];
    if (!busy) return;  // it was given nothing since it was followed last
    busy = false;
    Worker& others = workers_[static_cast<unsigned>(other)];
    post(queue, [this, queue, other, &others, given = others.given()] {
      if (others.started()) others.wait_made(given);
      wait(stream_of(queue), moment(stream_of(other)));
    });
  }

  void flush() override {
    const Current current(*device_);
    launch_pending(Queue::send);
    launch_pending(Queue::receive);
  }

  Settled settled(Ticket ticket) override {
    const Current current(*device_);
    check_workers();
    const auto channel = static_cast<Channel>((ticket >> kChannelShift) - 1);
    const uint64_t number = ticket & ((uint64_t{1} << kChannelShift) - 1);
    if (settled_[channel] < number) look(channel);
    if (settled_[channel] < number) return Settled::pending;
    return channel == kVerdict && number >= refused_from_ ? Settled::refused : Settled::good;
  }

  Ticket finish(void** end) override {
    const Current current(*device_);
    flush();
    busy_[0] = true;
    follow(Queue::receive);
    const Ticket ticket = issue(kEnd);
    auto* mark = new Mark;
    *end = mark;
    post(Queue::receive, [this, mark, number = issued_[kEnd]] {
      mark->moment = moment(receive_);
      fly(kEnd, number, mark->moment, {});
    });
    return ticket;
  }

  bool given(Ticket end) override {
    check_workers();
    const uint64_t number = end & ((uint64_t{1} << kChannelShift) - 1);
    std::lock_guard lock(flights_mutex_);
    return settled_[kEnd] >= number || (!flights_[kEnd].empty() && flights_[kEnd].back().upto >= number);
  }

  void resume(void* end, void* stream) override {
    const Current current(*device_);
    wait(stream, static_cast<Mark*>(end)->moment);
    const GateArgs args{status_};
    check(device_->launch(gate_kernel_, 1, 32, 0, &args, sizeof args, stream));
  }

  void release_mark(void* mark) noexcept override { delete static_cast<Mark*>(mark); }

  void stop() noexcept override {
    const Current current(*device_);
    // Kernels look at the status again before a tag leaves them. So no key is wiped under a kernel that still seals.
    const Status stopped{1, 0, {}};
    std::memcpy(snapshots_ + kSnapshots, &stopped, sizeof stopped);
    device_->copy_in(status_, snapshots_ + kSnapshots, sizeof stopped, aside_);
    for (Worker& w : workers_)
      if (w.started()) w.drop();
    for (Device::Stream s : {aside_, in_, receive_, send_, out_}) device_->synchronize(s);
  }

 private:
  struct Flight {
    uint64_t upto;
    Moment moment;
    std::vector<Bounce> keep;
    uint32_t snapshot;
  };

  struct Mapped {
    Segment::Range range;
    Address at;
  };

  // What becomes of events and bounce buffers when the last that holds one lets go. Outlives the memory, for a mark
  // may.
  struct Events {
    std::shared_ptr<Device> device;
    std::mutex mutex;
    std::vector<Device::Event> spare;
    ~Events() {
      for (Device::Event e : spare) device->release_event(e);
    }
  };

  void check(bool accepted) const {
    if (!accepted) throw std::runtime_error(std::string("the device failed: ") + device_->why_not());
  }
  Device::Stream stream_of(Queue queue) const { return queue == Queue::send ? send_ : receive_; }

  // ---- building up and taking down

  void set_up() {
    const Current current(*device_);
    check(current.bound());
    events_ = std::make_shared<Events>();
    events_->device = device_;
    for (Device::Stream* s : {&send_, &receive_, &in_, &out_, &aside_})
      if (!(*s = device_->stream())) refuse("it gave no stream");
    struct {
      Device::Function* at;
      const char* name;
    } kernels[] = {{&seal_kernel_, "sc_seal"},         {&verify_kernel_, "sc_verify"},
                   {&commit_kernel_, "sc_commit"},     {&reseal_kernel_, "sc_commit_seal"},
                   {&expand_kernel_, "sc_expand_key"}, {&reduce_kernel_, "sc_reduce"},
                   {&gate_kernel_, "sc_gate"}};
    for (auto& k : kernels)
      if (!(*k.at = device_->function(k.name))) refuse(std::string("it has no kernel ") + k.name);
    status_ = take_device(sizeof(Status));
    partials_[0] = take_device(kPartialBytes * kRecordsPerLaunch);
    partials_[1] = take_device(kPartialBytes * kRecordsPerLaunch);
    key_in_ = take_device(kAlign);
    const size_t record = aligned(options_.slot_bytes + kTagSize);
    for (uint32_t i = 0; i < options_.on_their_way; i++) {
      incoming_.push_back(take_device(record));
      outgoing_.push_back(take_device(record));
    }
    for (Address at : {status_, partials_[0], partials_[1]})
      check(device_->fill(at, 0, at == status_ ? sizeof(Status) : kPartialBytes * kRecordsPerLaunch, aside_));
    check(device_->synchronize(aside_));
    snapshots_ = static_cast<Status*>(device_->allocate_pinned(sizeof(Status) * (kSnapshots + 1)));
    pinned_key_ = static_cast<uint8_t*>(device_->allocate_pinned(kAlign));
    if (!snapshots_ || !pinned_key_) refuse("it gave no pinned host memory");
    std::fill_n(snapshots_, kSnapshots + 1, Status{});

    // The one key that crosses as it is. Where the way to the device is not trusted, its driver encrypts it.
    wrapping_here_ = Arena::instance().allocate(sizeof(host::AeadKey));
    const Secret wrapping = Secret::random(32);
    host::aead(host::Suite::aes_256_gcm)->expand(static_cast<host::AeadKey*>(wrapping_here_), wrapping.data());
    wrapping_there_ = take_key_room();
    std::memcpy(pinned_key_, wrapping.data(), 32);
    const uint8_t nonce[kNonceBytes] = {};
    expand_on_device(wrapping_there_, 0, nonce, 32);

    if (options_.mapped) map_slots();
    if (options_.copies_block)
      for (Worker& w : workers_) w.start();
  }

  void map_slots() {
    size_t reading = 0, readable = 0;
    bool writable = false;
    for (const Segment::Range& range : options_.ranges) {
      const Address at = device_->map(range.base, range.bytes, range.writable);
      if (at) mapped_.push_back({range, at});
      if (range.writable) {
        writable = at != 0;
      } else {
        reading++;
        readable += at != 0;
      }
    }
    mode_ = writable && readable == reading ? "mapped"
            : mapped_.empty()               ? std::string("staged: ") + device_->why_not()
                                            : std::string("mapped in part: ") + device_->why_not();
  }

  void tear_down() noexcept {
    for (auto* list : {&seals_, &onward_}) list->clear();
    opens_.clear();
    for (auto& flights : flights_) flights.clear();
    for (const Mapped& m : mapped_) device_->unmap(m.range.base);
    if (wrapping_there_) device_->fill(wrapping_there_, 0, kDeviceKeyBytes, aside_), device_->synchronize(aside_);
    if (wrapping_here_) Arena::instance().release(wrapping_here_, sizeof(host::AeadKey));
    for (Address at : allocated_) device_->release(at);
    if (snapshots_) device_->release_pinned(snapshots_);
    if (pinned_key_) device_->release_pinned(pinned_key_);
    for (Device::Stream s : {send_, receive_, in_, out_, aside_})
      if (s) device_->release_stream(s);
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw EngineError(ErrorKind::config,
                      std::string(device_->name()) + " cannot seal: " + why + " (" + device_->why_not() + ")");
  }

  Address take_device(size_t bytes) {
    const Address at = device_->allocate(bytes);
    if (!at) refuse("it has no room for " + std::to_string(bytes) + " bytes more");
    allocated_.push_back(at);
    return at;
  }

  Address take_key_room() {
    if (spare_keys_.empty()) return take_device(kDeviceKeyBytes);
    const Address at = spare_keys_.back();
    spare_keys_.pop_back();
    return at;
  }

  // From pinned_key_, which is wiped.
  void expand_on_device(Address room, Address wrapping, const uint8_t nonce[kNonceBytes], size_t bytes) {
    KeyArgs args{};
    args.wrapping = wrapping;
    args.status = status_;
    args.count = 1;
    args.sealed[0] = key_in_;
    args.keys[0] = room;
    std::memcpy(args.nonce[0], nonce, kNonceBytes);
    const bool done = device_->copy_in(key_in_, pinned_key_, bytes, aside_) &&
                      device_->launch(expand_kernel_, 1, kThreads, kSharedBytes, &args, sizeof args, aside_) &&
                      device_->fill(key_in_, 0, kAlign, aside_) && device_->synchronize(aside_);
    wipe(pinned_key_, kAlign);
    check(done);
  }

  // ---- tickets

  Ticket issue(Channel channel) { return (Ticket{channel} + 1) << kChannelShift | ++issued_[channel]; }

  // What was issued on the channel, up to that number, settles at that moment.
  void fly(Channel channel, uint64_t upto, const Moment& at, std::vector<Bounce> keep, uint32_t snapshot = 0) {
    std::lock_guard lock(flights_mutex_);
    flights_[channel].push_back({upto, at, std::move(keep), snapshot});
  }

  // Opens are numbered as their verdicts are. Where none is named, the host stopped the device, and none counts.
  void learn(const Status& status) {
    if (status.failed && refused_from_ == UINT64_MAX) refused_from_ = status.first ? ~status.first : 1;
  }

  // Whether any verdict that reached the host says that a record was refused.
  bool learn_refusal() {
    std::for_each(snapshots_, snapshots_ + kSnapshots, [this](const Status& status) { learn(status); });
    return refused_from_ != UINT64_MAX;
  }

  void look(Channel channel) {
    auto& flights = flights_[channel];
    std::vector<Flight> landed;  // let go of without the lock
    std::lock_guard lock(flights_mutex_);
    while (!flights.empty()) {
      Flight& f = flights.front();
      const Device::State state = device_->query(f.moment.get());
      if (state == Device::State::pending) return;
      if (state == Device::State::failed) {
        // A gate that trapped takes all events of its context with it. The verdict that made it trap was on the host
        // before: so the error is a refused record, not a broken device.
        check(learn_refusal());
        if (channel == kVerdict) settled_[channel] = flights.back().upto;
        return;
      }
      if (channel == kVerdict) {
        learn(snapshots_[f.snapshot]);
      }
      settled_[channel] = f.upto;
      landed.push_back(std::move(f));
      flights.pop_front();
    }
  }

  // Makes calls on the device: at once, or in the queue's own thread.
  void post(Queue queue, std::function<void()> calls) {
    busy_[static_cast<unsigned>(queue)] = true;
    Worker& worker = workers_[static_cast<unsigned>(queue)];
    if (!worker.started()) {
      calls();
      return;
    }
    check_workers();
    worker.give([this, calls = std::move(calls)] {
      const Current current(*device_);
      try {
        calls();
      } catch (const std::exception& e) {
        std::lock_guard lock(flights_mutex_);
        if (worker_failed_.empty()) worker_failed_ = e.what();
      }
    });
  }
  void check_workers() {
    std::lock_guard lock(flights_mutex_);
    if (!worker_failed_.empty()) throw std::runtime_error(worker_failed_);
  }

  Moment moment(Device::Stream stream) {
    Device::Event event = nullptr;
    {
      std::lock_guard lock(events_->mutex);
      if (!events_->spare.empty()) {
        event = events_->spare.back();
        events_->spare.pop_back();
      }
    }
    if (!event) event = device_->event();
    check(event != nullptr);
    Moment m(event, [pool = events_](void* e) {
      std::lock_guard lock(pool->mutex);
      pool->spare.push_back(e);
    });
    check(device_->record(event, stream));
    return m;
  }
  void wait(Device::Stream stream, const Moment& m) { check(device_->wait(stream, m.get())); }

  Bounce take(std::vector<Address>& pool) {
    std::lock_guard lock(pools_mutex_);
    if (pool.empty()) throw std::logic_error("a record was given that was not accepted");
    const Address at = pool.back();
    pool.pop_back();
    return Bounce(reinterpret_cast<void*>(at), [this, &pool](void* p) {
      std::lock_guard lock(pools_mutex_);
      pool.push_back(address(p));
    });
  }

  Address mapped(const uint8_t* slot) const {
    for (const Mapped& m : mapped_)
      if (slot >= m.range.base && slot < m.range.base + m.range.bytes)
        return m.at + static_cast<uint64_t>(slot - m.range.base);
    return 0;
  }

  // ---- launches

  static Record record_of(const RecordContext& context, size_t bytes) {
    Record r{};
    r.key = address(context.key);
    r.bytes = static_cast<uint32_t>(bytes);
    std::memcpy(r.nonce, context.nonce, kNonceBytes);
    std::memcpy(r.associated, context.associated, kAssociatedBytes);
    return r;
  }

  static size_t width(DType dtype, bool accumulator) {
    return accumulator ? host::accumulator_bytes(dtype) : element_bytes(dtype);
  }

  static Reduction reduction_of(const ReduceTask& task) {
    Reduction r{};
    r.dtype = static_cast<uint8_t>(task.dtype);
    r.op = static_cast<uint8_t>(task.op);
    r.flags = static_cast<uint8_t>((task.a_is_accumulator ? kAIsAccumulator : 0u) |
                                   (task.out_is_accumulator ? kOutIsAccumulator : 0u) | (task.scale_a ? kScaleA : 0u) |
                                   (task.scale_b ? kScaleB : 0u) | (task.finish ? kFinish : 0u));
    r.world = task.world;
    r.factor = task.factor;
    return r;
  }

  Opened add(Opening o, const uint8_t* slot) {
    launch_onward();
    if (conflicts(o)) launch_opens();
    Opened opened;
    o.bounce = take(incoming_);
    if (const Address at = mapped(slot)) {
      o.is_mapped = true;
      o.record.input = at;
      o.record.copy = address(o.bounce);
    } else {
      o.record.input = address(o.bounce);
      post(Queue::receive, [this, bounce = o.bounce, slot, bytes = o.record.bytes + kTagSize] {
        check(device_->copy_in(address(bounce), slot, bytes, in_));
      });
    }
    opened.taken = issue(kTaken);
    opened.verdict = issue(kVerdict);
    o.record.index = static_cast<uint32_t>(issued_[kVerdict]);
    opens_.push_back(std::move(o));
    return opened;
  }

  // Whether a record cannot go in one launch with those that wait: there is no order within a launch.
  bool conflicts(const Opening& o) const {
    if (opens_.size() == kRecordsPerLaunch) return true;
    for (const Opening& p : opens_) {
      if (std::memcmp(&p.reduction, &o.reduction, sizeof o.reduction) != 0) return true;
      if (o.out.overlaps(p.out) || o.operand.overlaps(p.out) || o.out.overlaps(p.operand)) return true;
    }
    return false;
  }

  void launch_pending(Queue queue) {
    if (queue == Queue::send) {
      launch_seals();
    } else {
      launch_opens();
      launch_onward();
    }
  }

  void launch(Device::Function f, uint32_t grid, uint32_t shared, const void* args, size_t bytes,
              Device::Stream stream) {
    check(device_->launch(f, grid, kThreads, shared, args, bytes, stream));
  }

  uint32_t parts_for(uint32_t most_bytes, size_t records) const {
    const uint32_t useful = (most_bytes + kBytesPerPart - 1) / kBytesPerPart;
    const uint32_t fair = options_.ctas / static_cast<uint32_t>(records);
    return std::clamp<uint32_t>(std::min(useful, fair), 1, kMaxParts);
  }

  void launch_seals() { launch_sealing(seals_, Queue::send, kSent); }
  void launch_onward() { launch_sealing(onward_, Queue::receive, kSentOn); }

  void launch_sealing(std::vector<Sealing>& batch, Queue queue, Channel channel) {
    if (batch.empty()) return;
    CryptArgs args{};
    args.status = status_;
    args.partials = partials_[static_cast<unsigned>(queue)];
    args.records = static_cast<uint32_t>(batch.size());
    uint32_t most = 0;
    std::vector<Departure> departures;
    for (size_t i = 0; i < batch.size(); i++) {
      args.record[i] = batch[i].record;
      most = std::max(most, batch[i].record.bytes);
      departures.push_back(std::move(batch[i].departure));
    }
    batch.clear();
    args.parts = parts_for(most, args.records);
    post(queue, [this, queue, channel, args, departures = std::move(departures), upto = issued_[channel]] {
      launch(seal_kernel_, args.records * args.parts, kSharedBytes, &args, sizeof args, stream_of(queue));
      depart(departures, stream_of(queue), channel, upto);
    });
  }

  // What the stream's last kernel sealed goes to its slots.
  void depart(const std::vector<Departure>& departures, Device::Stream stream, Channel channel, uint64_t upto) {
    Moment done = moment(stream);
    std::vector<Bounce> keep;
    bool copies = false;
    for (const Departure& d : departures) copies |= !d.slots.empty();
    if (copies) {
      wait(out_, done);
      for (const Departure& d : departures) {
        for (uint8_t* slot : d.slots) check(device_->copy_out(slot, address(d.bounce), d.bytes, out_));
        keep.push_back(d.bounce);
      }
      done = moment(out_);
    }
    fly(channel, upto, done, std::move(keep));
  }

  void launch_opens() {
    if (opens_.empty()) return;
    std::vector<Opening> batch;
    batch.swap(opens_);
    resealed_ = 0;
    const auto count = static_cast<uint32_t>(batch.size());

    CryptArgs verify{};
    ResealArgs reseal{};
    CryptArgs commit{};
    uint32_t most = 0, most_resealed = 0, most_committed = 0;
    bool any_mapped = false;
    std::vector<Departure> departures;
    std::vector<Bounce> keep;
    for (uint32_t i = 0; i < count; i++) {
      Opening& o = batch[i];
      verify.record[i] = o.record;
      most = std::max(most, o.record.bytes);
      any_mapped |= o.is_mapped;
      if (o.resealed) {
        reseal.open[reseal.records] = o.record;
        reseal.seal[reseal.records++] = o.onward.record;
        most_resealed = std::max(most_resealed, o.record.bytes);
        departures.push_back(std::move(o.onward.departure));
      } else {
        commit.record[commit.records++] = o.record;
        most_committed = std::max(most_committed, o.record.bytes);
      }
      keep.push_back(std::move(o.bounce));
    }
    const uint64_t partials = partials_[static_cast<unsigned>(Queue::receive)];
    verify.status = commit.status = reseal.status = status_;
    verify.partials = commit.partials = reseal.partials = partials;
    verify.records = count;
    verify.parts = parts_for(most, count);
    commit.reduction = reseal.reduction = batch[0].reduction;
    if (commit.records) commit.parts = parts_for(most_committed, commit.records);
    if (reseal.records) reseal.parts = parts_for(most_resealed, reseal.records);
    post(Queue::receive, [this, verify, commit, reseal, any_mapped, departures = std::move(departures),
                          keep = std::move(keep), snapshot = snapshot_++ % kSnapshots, upto_taken = issued_[kTaken],
                          upto_sent = issued_[kSentOn], upto_verdict = issued_[kVerdict]] {
      Moment taken = moment(in_);
      wait(receive_, taken);
      launch(verify_kernel_, verify.records * verify.parts, kSharedBytes, &verify, sizeof verify, receive_);
      if (any_mapped) taken = moment(receive_);
      fly(kTaken, upto_taken, taken, {});
      if (commit.records)
        launch(commit_kernel_, commit.records * commit.parts, kSharedBytes, &commit, sizeof commit, receive_);
      if (reseal.records) {
        launch(reseal_kernel_, reseal.records * reseal.parts, kSharedBytes, &reseal, sizeof reseal, receive_);
        depart(departures, receive_, kSentOn, upto_sent);
      }
      check(device_->copy_out(snapshots_ + snapshot, status_, sizeof(Status), receive_));
      fly(kVerdict, upto_verdict, moment(receive_), keep, snapshot);
    });
  }

  const std::shared_ptr<Device> device_;
  const DeviceMemoryOptions options_;
  const uint64_t generation_;
  std::string mode_ = "staged: mapping was not wanted";
  std::shared_ptr<Events> events_;

  Device::Stream send_ = nullptr, receive_ = nullptr, in_ = nullptr, out_ = nullptr, aside_ = nullptr;
  Device::Function seal_kernel_, verify_kernel_, commit_kernel_, reseal_kernel_, expand_kernel_, reduce_kernel_,
      gate_kernel_;
  std::vector<Address> allocated_;
  Address status_ = 0, partials_[2] = {0, 0}, key_in_ = 0, wrapping_there_ = 0;
  void* wrapping_here_ = nullptr;
  Status* snapshots_ = nullptr;  // pinned
  uint8_t* pinned_key_ = nullptr;
  uint64_t wrapped_ = 0;
  uint32_t snapshot_ = 0;
  std::vector<Address> spare_keys_, incoming_, outgoing_;
  std::map<size_t, std::vector<Address>> spare_rooms_;
  std::vector<Mapped> mapped_;

  // Given, and not launched yet.
  std::vector<Sealing> seals_, onward_;
  std::vector<Opening> opens_;
  uint32_t resealed_ = 0;
  bool busy_[2] = {false, false};  // by queue: since the other last followed it

  uint64_t issued_[kChannels] = {};
  std::mutex pools_mutex_;    // incoming_, outgoing_
  std::mutex flights_mutex_;  // what follows
  uint64_t settled_[kChannels] = {};
  std::deque<Flight> flights_[kChannels];
  uint64_t refused_from_ = UINT64_MAX;
  std::string worker_failed_;

  Worker workers_[2];  // by queue; last, so that nothing they touch goes before them
};

}  // namespace

std::unique_ptr<Memory> device_memory(std::shared_ptr<Device> device, const DeviceMemoryOptions& options) {
  return std::make_unique<DeviceMemory>(std::move(device), options);
}

std::string device_mode(const Memory& memory) { return static_cast<const DeviceMemory&>(memory).mode(); }

}  // namespace securecoll::cuda
