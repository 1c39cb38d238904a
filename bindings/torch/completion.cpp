#include "completion.hpp"

#include <pthread.h>

#include <condition_variable>
#include <mutex>

#include "work.hpp"

namespace securecoll::binding {
namespace {

thread_local bool t_completes = false;

}  // namespace

struct Completions::State {
  std::mutex mutex;
  std::condition_variable changed;
  Work* first = nullptr;  // linked through Work::next_: a push allocates nothing
  Work* last = nullptr;
  size_t expected = 0;  // submitted and not yet pushed
  bool busy = false;    // a work is being completed
  bool stopped = false;
  std::thread::id worker;
};

Completions::Completions() : state_(std::make_shared<State>()) {}

Completions::~Completions() { stop(); }

bool Completions::in_callback() noexcept { return t_completes; }

void Completions::expect() {
  const std::lock_guard lock(state_->mutex);
  if (!thread_.joinable() && !state_->stopped) {
    thread_ = std::thread([state = state_] { run(state); });
    state_->worker = thread_.get_id();
    pthread_setname_np(thread_.native_handle(), "sc-completions");
  }
  ++state_->expected;
}

void Completions::cancel() noexcept {
  const std::lock_guard lock(state_->mutex);
  --state_->expected;
  state_->changed.notify_all();
}

void Completions::push(Work* work) noexcept {
  const std::lock_guard lock(state_->mutex);
  --state_->expected;
  if (state_->stopped) return;
  work->next_ = nullptr;
  (state_->last != nullptr ? state_->last->next_ : state_->first) = work;
  state_->last = work;
  state_->changed.notify_all();
}

bool Completions::wait_idle(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  if (std::this_thread::get_id() == state_->worker) return true;
  return state_->changed.wait_for(lock, limit,
                                  [&] { return state_->expected == 0 && state_->first == nullptr && !state_->busy; });
}

void Completions::stop() {
  std::thread ending;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    state_->changed.notify_all();
    ending.swap(thread_);
  }
  if (!ending.joinable()) return;
  // A callback may drop the last reference to its own process group.
  if (std::this_thread::get_id() == ending.get_id()) {
    ending.detach();
  } else {
    ending.join();
  }
}

void Completions::abandon() noexcept {
  static_cast<void>(new std::thread(std::move(thread_)));  // destroying or detaching it would touch the dead thread
  static_cast<void>(new std::shared_ptr<State>(state_));
  state_ = std::make_shared<State>();
}

void Completions::run(const std::shared_ptr<State>& state) {
  t_completes = true;
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->first != nullptr || state->stopped; });
    if (state->first == nullptr) return;
    auto work = c10::intrusive_ptr<Work>::reclaim(state->first);
    state->first = work->next_;
    if (state->first == nullptr) state->last = nullptr;
    state->busy = true;
    lock.unlock();
    work->complete();
    work.reset();  // may drop tensors, and with them Python objects: not under the lock
    lock.lock();
    state->busy = false;
    state->changed.notify_all();
  }
}

}  // namespace securecoll::binding
