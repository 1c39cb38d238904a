#include "emulator/emulated_device.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>

#include "emulator/text.hpp"

namespace securecoll::emulator {
namespace {

// Whole number, with K, M or G behind it.
bool parse_number(const std::string& text, uint64_t* number) {
  char* end = nullptr;
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  *number = std::strtoull(text.c_str(), &end, 10);
  const std::string unit = end;
  if (unit == "K") *number <<= 10;
  if (unit == "M") *number <<= 20;
  if (unit == "G") *number <<= 30;
  return unit.empty() || unit == "K" || unit == "M" || unit == "G";
}

bool parse_order(const std::string& text, Order* order) {
  if (text == "in_turn") *order = Order::in_turn;
  if (text == "reversed") *order = Order::reversed;
  if (text == "random") *order = Order::random;
  return text == "in_turn" || text == "reversed" || text == "random";
}

std::atomic<uint64_t> devices{0};
thread_local std::vector<uint64_t> bound;  // devices by id; the last is current in this thread
thread_local std::string refused;

}  // namespace

std::string DeviceOptions::parse(const std::string& text_of_all) {
  std::istringstream words(text_of_all);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "order") {
      if (!parse_order(value, &order)) return text("order is in_turn, reversed or random, not \"%s\"", value.c_str());
      continue;
    }
    uint64_t number = 0;
    if (!parse_number(value, &number)) return text("%s needs a number, not \"%s\"", key.c_str(), value.c_str());
    if (key == "seed") {
      seed = number;
    } else if (key == "blocking_copies") {
      blocking_copies = number != 0;
    } else if (key == "mappable") {
      mappable = number != 0;
    } else if (key == "capturing") {
      capturing = number != 0;
    } else if (key == "memory") {
      memory = number;
    } else if (key == "multiprocessors") {
      multiprocessors = static_cast<uint32_t>(number);
    } else if (key == "capability") {
      capability = static_cast<uint32_t>(number);
    } else if (key == "latency") {
      latency = static_cast<uint32_t>(number);
    } else {
      return text("the emulated device has no option \"%s\"", key.c_str());
    }
  }
  if (multiprocessors == 0) return "multiprocessors must not be 0";
  return {};
}

EmulatedDevice::EmulatedDevice(const DeviceOptions& options)
    : options_(options),
      name_(text("emulated device, seed %llu", static_cast<unsigned long long>(options.seed))),
      id_(devices.fetch_add(1)),
      memory_(options.memory, options.seed),
      random_(options.seed),
      lazy_(random_.one_in(2)) {}

EmulatedDevice::~EmulatedDevice() {
  for (const auto& [at, bytes] : pinned_) std::free(at);
}

bool EmulatedDevice::refuse(const std::string& why) const {
  refused = why;
  return false;
}

const char* EmulatedDevice::why_not() const { return failed_ ? failure_.c_str() : refused.c_str(); }

bool EmulatedDevice::usable() const {
  if (bound.empty() || bound.back() != id_) {
    return refuse("the device is not current in this thread: bind() was not called");
  }
  return !failed_;
}

// The first failure stays. Called with `mutex_` held.
void EmulatedDevice::fail(const std::string& why) {
  if (failed_) return;
  failure_ = why;
  failed_ = true;
}

bool EmulatedDevice::bind() {
  bound.push_back(id_);
  return true;
}

void EmulatedDevice::unbind() {
  if (!bound.empty() && bound.back() == id_) {
    bound.pop_back();
    return;
  }
  std::lock_guard lock(mutex_);
  fail("unbind() in a thread where the device is not current");
}

cuda::Device::Address EmulatedDevice::allocate(size_t bytes) {
  if (!usable()) return 0;
  const Address at = memory_.allocate(bytes);
  if (at == 0) refuse(text("no room for %zu bytes of %zu on the emulated device", bytes, options_.memory));
  return at;
}

void EmulatedDevice::release(Address at) {
  std::lock_guard lock(mutex_);
  if (at != 0 && !memory_.release(at)) fail("released device memory that was not allocated");
}

void* EmulatedDevice::allocate_pinned(size_t bytes) {
  if (!usable()) return nullptr;
  void* at = nullptr;
  if (posix_memalign(&at, 4096, bytes) != 0) {
    refuse(text("no room for %zu bytes of pinned host memory", bytes));
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  random_.fill(at, bytes);
  pinned_[at] = bytes;
  if (options_.mappable) memory_.map(at, bytes, true);
  return at;
}

void EmulatedDevice::release_pinned(void* at) {
  std::lock_guard lock(mutex_);
  if (at == nullptr) return;
  if (pinned_.erase(at) == 0) return fail("released pinned memory that was not allocated");
  memory_.unmap(at);
  std::free(at);
}

cuda::Device::Address EmulatedDevice::map(void* host, size_t bytes, bool writable) {
  if (!usable()) return 0;
  if (!options_.mappable) {
    refuse("host memory cannot be mapped on this device");
    return 0;
  }
  memory_.map(host, bytes, writable);
  return reinterpret_cast<Address>(host);
}

void EmulatedDevice::unmap(void* host) {
  std::lock_guard lock(mutex_);
  if (!memory_.unmap(host)) fail("unmapped host memory that was not mapped");
}

EmulatedDevice::Queue* EmulatedDevice::find(Stream stream) {
  if (stream == nullptr) return &default_queue_;
  for (const auto& queue : queues_) {
    if (queue.get() == stream && !queue->released) return queue.get();
  }
  return nullptr;
}

void EmulatedDevice::erase(Queue* queue) {
  queues_.erase(std::find_if(queues_.begin(), queues_.end(), [queue](const auto& q) { return q.get() == queue; }));
}

bool EmulatedDevice::submit(Work work, Stream stream, bool blocks) {
  if (!usable()) return false;
  Queue* queue = nullptr;
  {
    std::lock_guard lock(mutex_);
    queue = find(stream);
    if (queue == nullptr) return refuse("no such stream");
    // A wait is for the record that came last when it was called, whatever is recorded in that event later.
    if (work.kind == Work::Kind::record) work.event->last = std::make_shared<bool>(false);
    if (work.event) work.passed = work.event->last;
    work.submitted = ++submitted_;
    work.held_until = tick_ + random_.below(options_.latency + 1);
    work.held_since = tick_;
    // What is still held waits for the newcomer, so that it can be overtaken; but not for ever.
    for_each_queue([&](Queue& other) {
      for (Work& held : other.work) {
        const uint64_t limit = held.held_since + 4 * options_.latency;
        if (held.held_until > tick_) held.held_until = std::max(held.held_until, std::min(work.held_until, limit));
      }
    });
    if (random_.one_in(8)) lazy_ = !lazy_;
    queue->work.push_back(std::move(work));
  }
  return blocks ? drain(queue) : true;
}

bool EmulatedDevice::copy_in(Address to, const void* from, size_t bytes, Stream stream) {
  Work work(Work::Kind::copy_in);
  work.to = to;
  work.from = reinterpret_cast<uint64_t>(from);
  work.bytes = bytes;
  return submit(std::move(work), stream, options_.blocking_copies);
}

bool EmulatedDevice::copy_out(void* to, Address from, size_t bytes, Stream stream) {
  Work work(Work::Kind::copy_out);
  work.to = reinterpret_cast<uint64_t>(to);
  work.from = from;
  work.bytes = bytes;
  return submit(std::move(work), stream, options_.blocking_copies);
}

bool EmulatedDevice::copy(Address to, Address from, size_t bytes, Stream stream) {
  Work work(Work::Kind::copy);
  work.to = to;
  work.from = from;
  work.bytes = bytes;
  return submit(std::move(work), stream);
}

bool EmulatedDevice::fill(Address at, uint8_t value, size_t bytes, Stream stream) {
  Work work(Work::Kind::fill);
  work.to = at;
  work.value = value;
  work.bytes = bytes;
  return submit(std::move(work), stream);
}

cuda::Device::Function EmulatedDevice::function(const char* kernel) {
  if (!usable()) return nullptr;
  const Kernel* const found = find_kernel(kernel);
  if (found == nullptr) refuse(text("no kernel \"%s\"", kernel));
  return const_cast<Kernel*>(found);
}

bool EmulatedDevice::launch(Function f, uint32_t grid, uint32_t block, uint32_t shared, const void* args, size_t bytes,
                            Stream stream) {
  if (f == nullptr) return refuse("launched no kernel");
  const auto* const kernel = static_cast<const Kernel*>(f);
  if (bytes != kernel->args_bytes) {
    return refuse(text("%s takes %zu bytes of arguments, not %zu", kernel->name, kernel->args_bytes, bytes));
  }
  Work work(Work::Kind::kernel);
  work.launch = LaunchRequest{kernel, nullptr, grid, block, shared};
  const std::string why = refusal(work.launch);
  if (!why.empty()) return refuse(why);
  work.launch.order = options_.order;
  work.launch.resident = options_.multiprocessors;
  const auto* const from = static_cast<const uint8_t*>(args);
  work.args.assign(from, from + bytes);
  return submit(std::move(work), stream);
}

cuda::Device::Stream EmulatedDevice::stream() {
  if (!usable()) return nullptr;
  std::lock_guard lock(mutex_);
  queues_.push_back(std::make_unique<Queue>());
  return queues_.back().get();
}

// Its work still runs.
void EmulatedDevice::release_stream(Stream stream) {
  std::lock_guard lock(mutex_);
  Queue* const queue = stream == nullptr ? nullptr : find(stream);
  if (queue == nullptr) return fail("released a stream that is none");
  queue->released = true;
  if (queue->work.empty()) erase(queue);
}

cuda::Device::Event EmulatedDevice::event() {
  if (!usable()) return nullptr;
  std::lock_guard lock(mutex_);
  auto event = std::make_shared<EventState>();
  const Event handle = event.get();
  events_.emplace(handle, std::move(event));
  return handle;
}

void EmulatedDevice::release_event(Event event) {
  std::lock_guard lock(mutex_);
  if (events_.erase(event) == 0) fail("released an event that is none");
}

bool EmulatedDevice::record(Event event, Stream stream) {
  Work work(Work::Kind::record);
  {
    std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return refuse("no such event");
    work.event = found->second;
  }
  return submit(std::move(work), stream);
}

bool EmulatedDevice::wait(Stream stream, Event event) {
  Work work(Work::Kind::wait);
  {
    std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return refuse("no such event");
    work.event = found->second;
  }
  return submit(std::move(work), stream);
}

cuda::Device::State EmulatedDevice::query(Event event) {
  if (!usable()) return State::failed;
  std::shared_ptr<EventState> state;
  {
    std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) {
      refuse("no such event");
      return State::failed;
    }
    state = found->second;
    tick_++;
  }
  {
    // Another thread that already runs work is let be: a query never waits.
    std::unique_lock running(running_, std::try_to_lock);
    if (running.owns_lock()) {
      Queue* wanted = nullptr;
      {
        std::lock_guard lock(mutex_);
        wanted = queue_that_passes(state->last);
      }
      step(wanted, false);
    }
  }
  std::lock_guard lock(mutex_);
  if (failed_) return State::failed;
  return *state->last ? State::done : State::pending;
}

bool EmulatedDevice::synchronize(Stream stream) {
  if (!usable()) return false;
  Queue* queue = nullptr;
  {
    std::lock_guard lock(mutex_);
    queue = find(stream);
    if (queue == nullptr) return refuse("no such stream");
  }
  return drain(queue);
}

bool EmulatedDevice::capturing(Stream) { return options_.capturing; }

// Until the queue has nothing left.
bool EmulatedDevice::drain(Queue* queue) {
  for (;;) {
    std::lock_guard running(running_);
    {
      std::lock_guard lock(mutex_);
      if (failed_) return false;
      if (queue->work.empty()) return true;
    }
    step(queue, true);
  }
}

// The four below are called with `mutex_` held.

void EmulatedDevice::for_each_queue(const std::function<void(Queue&)>& call) {
  call(default_queue_);
  for (const auto& queue : queues_) call(*queue);
}

bool EmulatedDevice::may_run(const Queue& queue, bool impatient) const {
  if (queue.work.empty()) return false;
  const Work& work = queue.work.front();
  if (work.kind == Work::Kind::wait && !*work.passed) return false;
  return impatient || work.held_until <= tick_;
}

// Null: it has done so already.
EmulatedDevice::Queue* EmulatedDevice::queue_that_passes(const std::shared_ptr<bool>& record) {
  Queue* found = nullptr;
  for_each_queue([&](Queue& queue) {
    for (const Work& work : queue.work) {
      if (work.kind == Work::Kind::record && work.passed == record) found = &queue;
    }
  });
  return found;
}

EmulatedDevice::Queue* EmulatedDevice::choose(Queue* wanted, bool impatient) {
  if (lazy_ && wanted != nullptr && !random_.one_in(16)) {
    // What holds the wanted queue up, through any number of events.
    while (!wanted->work.empty() && wanted->work.front().kind == Work::Kind::wait && !may_run(*wanted, true)) {
      wanted = queue_that_passes(wanted->work.front().passed);
    }
    return may_run(*wanted, impatient) ? wanted : nullptr;
  }
  std::vector<Queue*> able;
  for_each_queue([&](Queue& queue) {
    if (may_run(queue, impatient)) able.push_back(&queue);
  });
  if (able.empty()) return nullptr;
  if (random_.one_in(8)) return able[random_.below(static_cast<uint32_t>(able.size()))];
  return *std::max_element(able.begin(), able.end(), [](const Queue* a, const Queue* b) {
    return a->work.front().submitted < b->work.front().submitted;
  });
}

// Called with `running_` held, so the work that is chosen stays the first of its queue until it is done.
void EmulatedDevice::step(Queue* wanted, bool impatient) {
  Queue* queue = nullptr;
  Work* work = nullptr;
  {
    std::lock_guard lock(mutex_);
    queue = choose(wanted, impatient);
    if (queue == nullptr) return;
    work = &queue->work.front();  // of a deque: others push behind it without moving it
    work->launch.seed = random_.next();
  }
  const std::string why = perform(*work);
  std::lock_guard lock(mutex_);
  if (work->kind == Work::Kind::record) *work->passed = true;
  queue->work.pop_front();
  if (!why.empty()) fail(why);
  if (queue->released && queue->work.empty()) erase(queue);
}

// Empty, or why it failed.
std::string EmulatedDevice::perform(const Work& work) {
  const auto outside = [&](const char* what, uint64_t at) {
    return text("%s of %zu bytes at %s", what, work.bytes, memory_.describe(at).c_str());
  };
  const auto not_host = [&](uint64_t at) {
    return text("a copy takes device memory for host memory: %s", memory_.describe(at).c_str());
  };
  switch (work.kind) {
    case Work::Kind::copy_in:
      if (memory_.contains(work.from)) return not_host(work.from);
      if (!memory_.holds(work.to, work.bytes, true)) return outside("copy to the device", work.to);
      break;
    case Work::Kind::copy_out:
      if (memory_.contains(work.to)) return not_host(work.to);
      if (!memory_.holds(work.from, work.bytes, false)) return outside("copy from the device", work.from);
      break;
    case Work::Kind::copy:
      if (!memory_.holds(work.to, work.bytes, true)) return outside("copy on the device to", work.to);
      if (!memory_.holds(work.from, work.bytes, false)) return outside("copy on the device", work.from);
      break;
    case Work::Kind::fill: {
      if (!memory_.holds(work.to, work.bytes, true)) return outside("fill", work.to);
      DeviceMemory::Access access;
      std::memset(reinterpret_cast<void*>(work.to), work.value, work.bytes);
      return {};
    }
    case Work::Kind::kernel: {
      LaunchRequest request = work.launch;
      request.args = work.args.data();
      return run(request, memory_);
    }
    case Work::Kind::record:
    case Work::Kind::wait:
      return {};
  }
  DeviceMemory::Access access;
  std::memcpy(reinterpret_cast<void*>(work.to), reinterpret_cast<const void*>(work.from), work.bytes);
  return {};
}

}  // namespace securecoll::emulator

namespace {
thread_local std::string bad_options;
}

__attribute__((visibility("default"))) securecoll::cuda::Device* sc_emulated_device(const char* options) {
  securecoll::emulator::DeviceOptions parsed;
  bad_options = parsed.parse(options == nullptr ? "" : options);
  if (!bad_options.empty()) return nullptr;
  try {
    return new securecoll::emulator::EmulatedDevice(parsed);
  } catch (const std::bad_alloc&) {
    bad_options = "no address space for the device's memory";
    return nullptr;
  }
}

__attribute__((visibility("default"))) const char* sc_emulated_device_why_not() { return bad_options.c_str(); }
