#include "engine/executor.hpp"

#include <algorithm>

#include "engine/store_choice.hpp"
#include "engine/wait.hpp"

namespace securecoll {
namespace {

uint32_t chunks_in_wave(const Plan& plan, const PlanStep& step, uint32_t wave) {
  const uint64_t first = uint64_t{wave} * plan.wave;
  if (first >= step.chunks) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(plan.wave, step.chunks - first));
}

uint32_t chunk_bytes(const Plan& plan, const PlanStep& step, uint32_t chunk) {
  return static_cast<uint32_t>(std::min<uint64_t>(plan.chunk, step.length - uint64_t{chunk} * plan.chunk));
}

uint32_t waves(const Plan& plan, const PlanStep& step) { return (step.chunks + plan.wave - 1) / plan.wave; }

// Moves a lane's turn to the next step that has records in a wave, starting with the position it names.
void find_turn(const Plan& plan, const LaneUse& use, LaneTurn& turn) {
  uint32_t last = 0;
  for (uint32_t s : use.steps) last = std::max(last, waves(plan, plan.steps[s]));
  while (turn.wave < last) {
    for (; turn.index < use.steps.size(); turn.index++) {
      turn.left = chunks_in_wave(plan, plan.steps[use.steps[turn.index]], turn.wave);
      if (turn.left) return;
    }
    turn.index = 0;
    turn.wave++;
  }
  turn.over = true;
}

// The widest accumulator element is four times its dtype's (8-bit floats in float32).
constexpr size_t kAccumulatorGrowth = 4;

constexpr uintptr_t kAhead = 2048;  // bytes

// Whether what is written at `at`, of an output, is stored past the caches, see store_choice.hpp. In place, the
// operation itself read what lies there: it may still be in a cache.
bool goes_far(const Operation& op, const Buffer& output, const uint8_t* at) {
  return at && output.bytes() >= kFarOutput && !op.buffers[0].holds(at);
}

}  // namespace

uint8_t* Executor::staging(Operation& op, Staging index) {
  const int side = memories_[0] == op.memory ? 0 : 1;
  return staging_[side][index].in(*op.memory, t_.slot_bytes + kTagBytes);
}

void Executor::begin(Operation& op) {
  const Plan& plan = op.prepared->plan;
  // Partial results of an operation before this one must not be taken for this one's.
  for (StepCursor& c : op.cursors) c = StepCursor{0, 0, false, nullptr, std::move(c.scratch)};
  op.cursors.resize(plan.steps.size());
  op.turns.assign(plan.uses.size(), LaneTurn{});
  for (size_t u = 0; u < plan.uses.size(); u++) find_turn(plan, plan.uses[u], op.turns[u]);
  op.unfinished = static_cast<uint32_t>(plan.steps.size());
  sending_.clear();
  taking_.clear();
  verdicts_.clear();
  handed_ = false;
  if (!memories_[0])
    memories_[0] = op.memory;
  else if (memories_[0] != op.memory)
    memories_[1] = op.memory;
  op.memory->begin(op.ready);
  op.active = true;
}

bool Executor::ready(const Operation& op, uint32_t s) const {
  const Plan& plan = op.prepared->plan;
  const uint32_t chunk = op.cursors[s].chunk;
  for (uint32_t d : plan.steps[s].after)
    if (op.cursors[d].chunk <= std::min(chunk, plan.steps[d].chunks - 1)) return false;
  return true;
}

bool Executor::has_turn(const Operation& op, int32_t use, uint32_t s) const {
  const LaneTurn& turn = op.turns[use];
  return !turn.over && op.prepared->plan.uses[use].steps[turn.index] == s;
}

void Executor::advance(Operation& op, int32_t use) {
  LaneTurn& turn = op.turns[use];
  if (--turn.left) return;
  turn.index++;
  find_turn(op.prepared->plan, op.prepared->plan.uses[use], turn);
}

Executor::Turn Executor::violated(uint32_t peer) {
  failed_peer_ = peer;
  lane_violated_ = true;
  return Turn::failed;
}

Executor::Turn Executor::acquire(Operation& op, uint32_t s) {
  const Plan& plan = op.prepared->plan;
  slots_.clear();
  for (uint32_t lane : plan.steps[s].lanes) {
    if (!has_turn(op, plan.written_use[lane], s)) return Turn::blocked;
    LaneWriter& writer = *t_.writers[lane];
    uint8_t* slot = writer.acquire();
    if (!slot) return writer.violated() ? violated(lane < t_.size ? lane : t_.rank) : Turn::blocked;
    slots_.push_back(slot);
  }
  return Turn::ran;
}

Executor::Turn Executor::peek(Operation& op, const PlanSource& source, uint32_t s, uint32_t bytes,
                              const uint8_t** slot) {
  if (!has_turn(op, op.prepared->plan.read_use[source.lane], s)) return Turn::blocked;
  LaneReader& reader = *t_.readers[source.lane];
  *slot = reader.peek(bytes + kTagBytes);
  if (!*slot) return reader.violated() ? violated(source.lane % t_.size) : Turn::blocked;
  return Turn::ran;
}

RecordContext Executor::sealing(Operation& op, uint32_t s, uint32_t bytes) {
  const PlanStep& step = op.prepared->plan.steps[s];
  Stream& stream = step.stream_reader < 0 ? t_.sender[t_.rank] : t_.link_tx[step.stream_reader];
  // A sender stream binds what all members know; its descriptor is the same towards every peer.
  const uint32_t peer = step.stream_reader < 0 ? t_.rank : static_cast<uint32_t>(step.stream_reader);
  return stream.record(*op.memory, op.sequence, step.record + op.cursors[s].chunk, bytes,
                       op.prepared->sealed_descriptor[peer]);
}

RecordContext Executor::opening(Operation& op, const PlanSource& source, uint32_t chunk, uint32_t bytes) {
  Stream& stream = source.reader < 0 ? t_.sender[source.writer] : t_.link_rx[source.writer];
  return stream.record(*op.memory, op.sequence, source.record + chunk, bytes,
                       op.prepared->opened_descriptor[source.writer]);
}

void Executor::seal(Operation& op, uint32_t s, Queue queue, const uint8_t* plain, uint32_t bytes) {
  RecordContext record = sealing(op, s, bytes);
  record.far = op.far && slots_.size() == 1;
  // Several lanes: sealed once into private memory, since a slot is never read back.
  uint8_t* room = slots_.size() > 1 ? staging(op, kSealed) : nullptr;
  sent(op, s, bytes, op.memory->seal(queue, record, plain, bytes, slots_.data(), slots_.size(), room));
  counters_.bytes_sealed.fetch_add(bytes, std::memory_order_relaxed);
  counters_.records_sealed.fetch_add(1, std::memory_order_relaxed);
  if (record.far) counters_.records_far.fetch_add(1, std::memory_order_relaxed);
}

void Executor::sent(Operation& op, uint32_t s, uint32_t bytes, Ticket ticket) {
  const Plan& plan = op.prepared->plan;
  const PlanStep& step = plan.steps[s];
  for (uint32_t lane : step.lanes) {
    t_.writers[lane]->reserve(bytes + kTagBytes);
    if (ticket == kNow) t_.writers[lane]->publish();
    advance(op, plan.written_use[lane]);
  }
  if (ticket != kNow) sending_.push_back({ticket, &step});
}

bool Executor::took(Operation& op, const PlanSource& source, uint32_t bytes, const Opened& opened, bool was_opened) {
  const uint32_t peer = source.lane % t_.size;
  if (opened.refused) {
    failed_peer_ = peer;
    lane_violated_ = false;
    return false;
  }
  if (was_opened) {
    counters_.bytes_opened.fetch_add(bytes, std::memory_order_relaxed);
    counters_.records_opened.fetch_add(1, std::memory_order_relaxed);
    if (opened.verdict != kNow) verdicts_.push_back({opened.verdict, peer});
  }
  t_.readers[source.lane]->take();
  if (opened.taken == kNow)
    t_.readers[source.lane]->release();
  else
    taking_.push_back({opened.taken, source.lane});
  advance(op, op.prepared->plan.read_use[source.lane]);
  return true;
}

// Looks again at what the memory had still to do.
Executor::Turn Executor::settle(Operation& op) {
  Turn turn = Turn::blocked;
  for (; !taking_.empty() && op.memory->settled(taking_.front().ticket) != Settled::pending; taking_.pop_front()) {
    t_.readers[taking_.front().lane]->release();
    turn = Turn::ran;
  }
  for (; !verdicts_.empty(); verdicts_.pop_front()) {
    const Settled settled = op.memory->settled(verdicts_.front().ticket);
    if (settled == Settled::pending) break;
    if (settled == Settled::refused) {
      failed_peer_ = verdicts_.front().peer;
      lane_violated_ = false;
      return Turn::failed;
    }
    turn = Turn::ran;
  }
  for (; !sending_.empty() && op.memory->settled(sending_.front().ticket) != Settled::pending; sending_.pop_front()) {
    for (uint32_t lane : sending_.front().step->lanes) t_.writers[lane]->publish();
    turn = Turn::ran;
  }
  return turn;
}

void Executor::finish_chunk(Operation& op, uint32_t s) {
  StepCursor& c = op.cursors[s];
  c.source = 0;
  c.a_accumulated = false;
  if (++c.chunk == op.prepared->plan.steps[s].chunks) op.unfinished--;
}

Executor::Turn Executor::run_chunk(Operation& op, uint32_t s) {
  const Plan& plan = op.prepared->plan;
  const PlanStep& step = plan.steps[s];
  const uint32_t chunk = op.cursors[s].chunk;
  if (!ready(op, s)) return Turn::blocked;
  const uint64_t within = uint64_t{chunk} * plan.chunk;
  const uint32_t bytes = chunk_bytes(plan, step, chunk);
  const uint64_t offset = step.block_offset + within;
  const Buffer& block = op.buffers[std::max(0, step.block_buffer)];  // a step without one touches no byte
  Turn turn;

  Memory& memory = *op.memory;
  const Queue queue = step.op == StepOp::seal ? Queue::send : Queue::receive;
  if (!memory.accepts(queue)) return Turn::blocked;

  switch (step.op) {
    case StepOp::seal: {
      if ((turn = acquire(op, s)) != Turn::ran) return turn;
      if (!step.after.empty()) memory.follow(queue);
      const uint8_t* plain = bytes ? block.contiguous(offset, bytes) : nullptr;
      const bool scale = step.scale && op.call.redop == RedOp::premul_sum;
      if (!plain && bytes) {
        block.gather(memory, queue, offset, bytes, staging(op, kOutgoing));
        plain = staging(op, kOutgoing);
      }
      if (scale && bytes) {
        const ReduceTask task{staging(op, kOutgoing),
                              plain,
                              nullptr,
                              bytes / element_bytes(op.call.dtype),
                              op.call.dtype,
                              op.call.redop,
                              op.factor,
                              t_.size,
                              false,
                              false,
                              true,
                              false,
                              false};
        memory.reduce(queue, task);
        plain = staging(op, kOutgoing);
      }
      seal(op, s, queue, plain, bytes);
      break;
    }

    case StepOp::open: {
      const PlanSource& source = step.sources[0];
      const uint8_t* slot;
      if ((turn = peek(op, source, s, bytes, &slot)) != Turn::ran) return turn;
      if (!step.after.empty()) memory.follow(queue);
      // Straight into the output, before the verdict: nobody reads an output before its operation completes, and a
      // failure zeroes it.
      uint8_t* at = bytes ? block.contiguous(offset, bytes) : nullptr;
      uint8_t* plain = at ? at : staging(op, kPlain);
      // The lines it will write are asked for a little ahead.
      const void* ahead = at ? reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + kAhead) : nullptr;
      RecordContext record = opening(op, source, chunk, bytes);
      record.far = goes_far(op, block, at);
      const Opened opened = memory.open(record, slot, bytes, plain, ahead);
      if (!took(op, source, bytes, opened, true)) return Turn::failed;
      if (!at) block.scatter(memory, queue, offset, bytes, plain);
      break;
    }

    case StepOp::forward: {
      const PlanSource& source = step.sources[0];
      const uint8_t* slot;
      if ((turn = peek(op, source, s, bytes, &slot)) != Turn::ran) return turn;
      if ((turn = acquire(op, s)) != Turn::ran) return turn;
      if (!step.after.empty()) memory.follow(queue);
      // One read of the slot serves both the next hop and this rank.
      const bool open_too = step.block_buffer >= 0;
      RecordContext record;
      if (open_too) record = opening(op, source, chunk, bytes);
      uint8_t* at = open_too && bytes ? block.contiguous(offset, bytes) : nullptr;
      record.far = goes_far(op, block, at);
      uint8_t* plain = at ? at : staging(op, kPlain);
      const Forwarded forwarded = memory.forward(
          {slot, slots_.data(), slots_.size(), bytes, open_too ? &record : nullptr, plain, staging(op, kSealed)});
      if (!took(op, source, bytes, forwarded.opened, open_too)) return Turn::failed;
      if (open_too && !at) block.scatter(memory, queue, offset, bytes, plain);
      sent(op, s, bytes, forwarded.sent);
      break;
    }

    case StepOp::copy: {
      const Buffer& from = op.buffers[step.sources[0].buffer];
      const uint64_t source = step.sources[0].offset + within;
      const uint8_t* a = from.contiguous(source, bytes);
      uint8_t* b = block.contiguous(offset, bytes);
      if (!step.after.empty()) memory.follow(queue);
      if (a && b) {
        if (a != b) memory.copy(queue, b, a, bytes, goes_far(op, block, b));
      } else if (bytes) {
        from.gather(memory, queue, source, bytes, staging(op, kPlain));
        block.scatter(memory, queue, offset, bytes, staging(op, kPlain));
      }
      break;
    }

    case StepOp::reduce:
      if ((turn = run_reduce(op, s, within, bytes)) != Turn::ran) return turn;
      break;
  }
  finish_chunk(op, s);
  return Turn::ran;
}

// Combines a chunk's sources in rank order. What was combined so far stays in this step's own scratch while a source
// is still to come; only verified plaintext gets there.
Executor::Turn Executor::run_reduce(Operation& op, uint32_t s, uint64_t within, uint32_t bytes) {
  const Plan& plan = op.prepared->plan;
  const PlanStep& step = plan.steps[s];
  StepCursor& c = op.cursors[s];
  const size_t n = step.sources.size();
  const uint64_t count = bytes ? bytes / element_bytes(op.call.dtype) : 0;
  Turn turn;
  Memory& memory = *op.memory;
  constexpr Queue queue = Queue::receive;
  // For the accumulator, and for a first record that waits for a second source.
  uint8_t* accumulator = c.scratch.in(memory, size_t{t_.slot_bytes} * (kAccumulatorGrowth + 1));
  uint8_t* first = accumulator + size_t{t_.slot_bytes} * kAccumulatorGrowth;
  const uint64_t offset = step.block_offset + within;
  uint8_t* at = step.block_buffer >= 0 ? op.buffers[step.block_buffer].contiguous(offset, bytes) : nullptr;
  uint8_t* result = at ? at : staging(op, kPlain);

  while (c.source < n) {
    const PlanSource& source = step.sources[c.source];
    const bool last = c.source + 1 == n;
    if (!memory.accepts(queue)) return Turn::blocked;
    // The result leaves in the same turn it is made: so look for room before the last source is taken.
    if (last && !step.lanes.empty() && (turn = acquire(op, s)) != Turn::ran) return turn;
    const uint8_t* slot = nullptr;
    if (source.is_record && (turn = peek(op, source, s, bytes, &slot)) != Turn::ran) return turn;
    if (c.source == 0 && !step.after.empty()) memory.follow(queue);

    const uint8_t* b;
    if (source.is_record) {
      b = c.source == 0 ? first : staging(op, kSource);
    } else {
      const Buffer& from = op.buffers[source.buffer];
      b = from.contiguous(source.offset + within, bytes);
      if (!b && bytes) {
        uint8_t* room = c.source == 0 ? first : staging(op, kSource);
        from.gather(memory, queue, source.offset + within, bytes, room);
        b = room;
      }
    }
    if (c.source == 0) {
      c.a = b;
      c.a_accumulated = false;
    }
    const bool reduces = c.source > 0 || n == 1;
    ReduceTask task{};
    if (reduces) {
      const PlanSource& a_source = step.sources[0];
      task.out = last ? result : accumulator;
      task.a = c.a;
      task.b = n == 1 ? nullptr : b;
      task.count = count;
      task.dtype = op.call.dtype;
      task.op = op.call.redop;
      task.factor = op.factor;
      task.world = t_.size;
      task.a_is_accumulator = c.a_accumulated;
      task.out_is_accumulator = !last;
      task.scale_a = step.scale && !c.a_accumulated && !a_source.is_record;
      task.scale_b = step.scale && n > 1 && !source.is_record;
      task.finish = step.finish && last;
      c.a = accumulator;
      c.a_accumulated = true;
    }
    if (source.is_record) {
      auto* room = const_cast<uint8_t*>(b);
      const void* prefetch = last ? at : nullptr;
      const RecordContext record = opening(op, source, c.chunk, bytes);
      const Opened opened = reduces ? memory.open_reduce(record, slot, bytes, room, prefetch, task)
                                    : memory.open(record, slot, bytes, room, prefetch);
      if (!took(op, source, bytes, opened, true)) return Turn::failed;
    } else if (reduces && count) {
      memory.reduce(queue, task);
    }
    c.source++;
  }
  if (step.block_buffer >= 0 && !at && bytes)
    op.buffers[step.block_buffer].scatter(memory, queue, offset, bytes, result);
  if (!step.lanes.empty()) seal(op, s, queue, result, bytes);
  return Turn::ran;
}

Executor::Progress Executor::progress(Operation& op) {
  const Plan& plan = op.prepared->plan;
  const Turn settled = settle(op);
  if (settled == Turn::failed) return Progress::failed;
  bool moved = settled == Turn::ran;
  for (uint32_t s = 0; s < plan.steps.size(); s++) {
    const uint32_t chunks = plan.steps[s].chunks;
    StepCursor& c = op.cursors[s];
    if (c.chunk == chunks) continue;
    // At most to the end of the step's wave, so that what one step made is still in cache for the next.
    const uint32_t end = std::min(chunks, (c.chunk / plan.wave + 1) * plan.wave);
    while (c.chunk < end) {
      const Turn turn = run_chunk(op, s);
      if (turn == Turn::failed) return Progress::failed;
      if (turn == Turn::blocked) break;
      moved = true;
    }
  }
  op.memory->flush();
  if (op.unfinished == 0) {
    if (!handed_) {
      op.last = op.memory->finish(&op.end);
      handed_ = true;
    }
    if (op.last != kNow && !op.handed.load(std::memory_order_relaxed) && op.memory->given(op.last)) {
      Operation& call = op.whole && op.whole->last_piece == &op ? *op.whole : op;
      op.handed.store(1, std::memory_order_seq_cst);
      call.handed.store(1, std::memory_order_seq_cst);
      if (call.waiters.load(std::memory_order_seq_cst)) wake_all(&call.handed);
    }
    if (sending_.empty() && taking_.empty() && verdicts_.empty() &&
        (op.last == kNow || op.memory->settled(op.last) == Settled::good)) {
      handed_ = false;
      outstanding_.store(false, std::memory_order_relaxed);
      return Progress::finished;
    }
  }
  const bool outstanding = handed_ || !sending_.empty() || !taking_.empty() || !verdicts_.empty();
  outstanding_.store(outstanding, std::memory_order_relaxed);
  return moved ? Progress::moved : Progress::blocked;
}

std::vector<uint32_t> Executor::awaited(Operation& op) {
  const Plan& plan = op.prepared->plan;
  std::vector<uint32_t> ranks;
  for (uint32_t s = 0; s < plan.steps.size(); s++) {
    const PlanStep& step = plan.steps[s];
    const StepCursor& c = op.cursors[s];
    if (c.chunk == step.chunks || !ready(op, s)) continue;
    const uint32_t bytes = chunk_bytes(plan, step, c.chunk) + kTagBytes;
    for (size_t i = c.source; i < step.sources.size(); i++) {
      const PlanSource& source = step.sources[i];
      if (source.is_record && has_turn(op, plan.read_use[source.lane], s) && !t_.readers[source.lane]->peek(bytes))
        ranks.push_back(source.lane % t_.size);
    }
    for (uint32_t lane : step.lanes)
      if (has_turn(op, plan.written_use[lane], s)) t_.writers[lane]->laggards(ranks);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace securecoll
