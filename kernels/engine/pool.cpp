#include "engine/pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/communicator.hpp"
#include "engine/fork.hpp"
#include "engine/wait.hpp"

namespace securecoll::pool {
namespace {

struct State {
  std::mutex mutex;
  std::condition_variable news;
  std::vector<std::shared_ptr<Communicator>> served;
  unsigned threads = 0, wanted = 1;
};

// Leaked, with its threads, at exit: what they touch is not destroyed before the process ends. A forked child gets a
// new one, for no thread survives a fork, and the old one's mutex may have been held.
State* state = new State;

void serve(State* s) {
  std::vector<std::shared_ptr<Communicator>> mine;
  uint32_t quiet = 0;
  for (;;) {
    // A last reference may take a communicator with it, whose end waits for Python's lock: never under the mutex.
    std::vector<std::shared_ptr<Communicator>> done;
    mine.clear();
    {
      std::unique_lock lock(s->mutex);
      // Idle ones leave the list under the lock that add() takes, so a new operation cannot fall between.
      const auto rest = std::partition(s->served.begin(), s->served.end(), [](const auto& c) { return !c->idle(); });
      done.assign(std::make_move_iterator(rest), std::make_move_iterator(s->served.end()));
      s->served.erase(rest, s->served.end());
      if (s->served.empty()) {
        lock.unlock();
        done.clear();
        lock.lock();
        s->news.wait(lock, [&] { return !s->served.empty(); });
        quiet = 0;
      }
      mine = s->served;
    }
    done.clear();
    bool moved = false;
    // A while on each before the list is looked at again: the lock above is not for the fast path.
    for (int turn = 0; turn < 64; turn++) {
      bool moved_now = false, idle = false;
      for (const auto& c : mine) {
        const auto round = c->round(quiet > 64);
        moved_now |= round.moved;
        idle |= round.idle;
      }
      if (idle) break;
      if (!moved_now) {
        if (++quiet > 8) break;
        continue;
      }
      moved = true;
      quiet = 0;
    }
    if (moved) {
      quiet = 0;
      continue;
    }
    // Short yields, then sleep on a bell: the only communicator's, or for a shorter while one of several.
    if (quiet < 64)
      std::this_thread::yield();
    else
      mine[0]->doze(mine.size() == 1 ? kRecheckNs : kRecheckNs / 8);
    quiet++;
  }
}

}  // namespace

void add(std::shared_ptr<Communicator> communicator) {
  static const bool once = (call_in_children([] { state = new State; }), true);
  (void)once;
  State* s = state;
  std::lock_guard lock(s->mutex);
  if (std::find(s->served.begin(), s->served.end(), communicator) == s->served.end())
    s->served.push_back(std::move(communicator));
  for (; s->threads < s->wanted; s->threads++) std::thread(serve, s).detach();
  s->news.notify_all();
}

void set_threads(unsigned threads) {
  std::lock_guard lock(state->mutex);
  state->wanted = std::max(1u, threads);
}

}  // namespace securecoll::pool
