// A device whose kernels run in the emulator, and whose streams run as late and in as unhelpful an order as events and
// stream order allow: what a program forgot to wait for has not happened yet, or has happened too early.
//
// Nothing runs but inside query(), synchronize() and copies that block, in the thread that calls. Each call of query()
// is a tick, and work is held for a random number of ticks, so that more can be submitted before it runs. Then one of
// two moods decides, which change now and then:
//   - eager: what was submitted last runs first, so that a consumer that does not wait for its producer, and a writer
//     that does not wait for the last reader, come first;
//   - lazy: only that runs which the caller waits for, and what this waits for by stream order and events. All else,
//     which the caller may have forgotten to wait for, is still to come.
// Copies read and write host memory when they run. Launch arguments are taken when the launch is submitted. The
// default stream is a stream like any other.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "emulator/device_memory.hpp"
#include "emulator/launch.hpp"
#include "emulator/random.hpp"

namespace securecoll::emulator {

struct DeviceOptions {
  uint64_t seed = 1;
  Order order = Order::random;
  bool blocking_copies = false;  // copies between host and device return when they are done, as in confidential mode
  bool mappable = true;          // whether map() works, which it does not in confidential mode
  bool capturing = false;        // what capturing() says
  size_t memory = size_t{256} << 20;
  uint32_t multiprocessors = 2;
  uint32_t capability = 90;
  uint32_t latency = 16;  // ticks that work is held at most

  // From "seed=7 order=random blocking_copies=1 memory=64M". Empty, or what is wrong with the text.
  std::string parse(const std::string& text);
};

class EmulatedDevice final : public cuda::Device {
 public:
  explicit EmulatedDevice(const DeviceOptions& options);
  ~EmulatedDevice() override;

  const char* name() const override { return name_.c_str(); }
  uint32_t multiprocessors() const override { return options_.multiprocessors; }
  uint32_t capability() const override { return options_.capability; }
  const char* why_not() const override;
  bool bind() override;
  void unbind() override;

  Address allocate(size_t bytes) override;
  void release(Address at) override;
  void* allocate_pinned(size_t bytes) override;
  void release_pinned(void* at) override;
  Address map(void* host, size_t bytes, bool writable) override;
  void unmap(void* host) override;

  bool copy_in(Address to, const void* from, size_t bytes, Stream stream) override;
  bool copy_out(void* to, Address from, size_t bytes, Stream stream) override;
  bool copy(Address to, Address from, size_t bytes, Stream stream) override;
  bool fill(Address at, uint8_t value, size_t bytes, Stream stream) override;

  Function function(const char* kernel) override;
  bool launch(Function f, uint32_t grid, uint32_t block, uint32_t shared, const void* args, size_t bytes,
              Stream stream) override;

  Stream stream() override;
  void release_stream(Stream stream) override;
  Event event() override;
  void release_event(Event event) override;
  bool record(Event event, Stream stream) override;
  bool wait(Stream stream, Event event) override;
  State query(Event event) override;
  bool synchronize(Stream stream) override;
  bool capturing(Stream stream) override;

 private:
  struct EventState {
    // Whether the stream has come to the last record(). What was never recorded counts as passed.
    std::shared_ptr<bool> last = std::make_shared<bool>(true);
  };
  struct Work {
    enum class Kind : uint8_t { copy_in, copy_out, copy, fill, kernel, record, wait };
    explicit Work(Kind kind) : kind(kind) {}

    Kind kind;
    uint64_t to = 0, from = 0;
    size_t bytes = 0;
    uint8_t value = 0;
    LaunchRequest launch{};
    std::vector<uint8_t> args;
    std::shared_ptr<EventState> event;
    std::shared_ptr<bool> passed;  // of the event: the record() that this is, or is waited for
    uint64_t submitted = 0;        // a serial number
    uint64_t held_since = 0;       // ticks
    uint64_t held_until = 0;
  };
  struct Queue {
    std::deque<Work> work;
    bool released = false;
  };

  // Each says so through why_not() and returns false.
  bool refuse(const std::string& why) const;
  bool usable() const;
  void fail(const std::string& why);

  Queue* find(Stream stream);
  void erase(Queue* queue);
  void for_each_queue(const std::function<void(Queue&)>& call);
  bool submit(Work work, Stream stream, bool blocks = false);
  // Runs one piece of work that may run. The caller waits for `wanted`, if that is not null. Held work runs only with
  // `impatient`.
  void step(Queue* wanted, bool impatient);
  Queue* choose(Queue* wanted, bool impatient);
  bool may_run(const Queue& queue, bool impatient) const;
  Queue* queue_that_passes(const std::shared_ptr<bool>& record);
  std::string perform(const Work& work);
  bool drain(Queue* queue);

  const DeviceOptions options_;
  const std::string name_;
  const uint64_t id_;
  DeviceMemory memory_;

  std::mutex running_;  // held by the thread that runs work; taken before `mutex_`
  std::mutex mutex_;    // guards everything below
  Random random_;
  bool lazy_;
  uint64_t tick_ = 0;
  uint64_t submitted_ = 0;
  Queue default_queue_;
  std::vector<std::unique_ptr<Queue>> queues_;  // in the order of their making, so that a seed means one schedule
  std::map<Event, std::shared_ptr<EventState>> events_;
  std::map<void*, size_t> pinned_;
  std::atomic<bool> failed_{false};
  std::string failure_;
};

}  // namespace securecoll::emulator

extern "C" {

// Null: what is wrong with the options then stands in sc_emulated_device_why_not(). Options that are not named keep
// their defaults; see DeviceOptions. The caller deletes the device.
securecoll::cuda::Device* sc_emulated_device(const char* options);
const char* sc_emulated_device_why_not();
}
