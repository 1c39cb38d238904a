#include "engine/executor.hpp"

#include <algorithm>
#include <cstring>

namespace securecoll {
namespace {

uint32_t chunks_in_wave(const Plan& plan, const PlanStep& step, uint32_t wave) {
  const uint64_t first = uint64_t{wave} * plan.wave;
  if (first >= step.chunks) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(plan.wave, step.chunks - first));
}

uint32_t waves(const Plan& plan, const PlanStep& step) { return (step.chunks + plan.wave - 1) / plan.wave; }

// Moves a lane's turn to the next step that has records in a wave, starting with the position it names.
void settle(const Plan& plan, const LaneUse& use, LaneTurn& turn) {
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

}  // namespace

uint8_t* Executor::staging(Staging index) {
  auto& s = staging_[index];
  if (!s) s.reset(new uint8_t[t_.slot_bytes + kTagBytes + 64]);
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(s.get()) + 63) & ~uintptr_t{63});
}

void Executor::begin(Operation& op) {
  const Plan& plan = op.prepared->plan;
  // Partial results of an operation before this one must not be taken for this one's.
  for (StepCursor& c : op.cursors) c = StepCursor{0, 0, false, nullptr, std::move(c.scratch)};
  op.cursors.resize(plan.steps.size());
  op.turns.assign(plan.uses.size(), LaneTurn{});
  for (size_t u = 0; u < plan.uses.size(); u++) settle(plan, plan.uses[u], op.turns[u]);
  op.unfinished = static_cast<uint32_t>(plan.steps.size());
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
  settle(op.prepared->plan, op.prepared->plan.uses[use], turn);
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

Executor::Turn Executor::peek(Operation& op, const PlanSource& source, uint32_t s, const uint8_t** slot) {
  if (!has_turn(op, op.prepared->plan.read_use[source.lane], s)) return Turn::blocked;
  LaneReader& reader = *t_.readers[source.lane];
  *slot = reader.peek();
  if (!*slot) return reader.violated() ? violated(source.lane % t_.size) : Turn::blocked;
  return Turn::ran;
}

void Executor::seal(Operation& op, uint32_t s, const uint8_t* plain, uint32_t bytes) {
  const Plan& plan = op.prepared->plan;
  const PlanStep& step = plan.steps[s];
  Stream& stream = step.stream_reader < 0 ? t_.sender[t_.rank] : t_.link_tx[step.stream_reader];
  // A sender stream binds what all members know; its descriptor is the same towards every peer.
  const uint32_t peer = step.stream_reader < 0 ? t_.rank : static_cast<uint32_t>(step.stream_reader);
  RecordContext record =
      stream.record(op.sequence, step.record + op.cursors[s].chunk, bytes, op.prepared->sealed_descriptor[peer]);
  record.far = op.far && slots_.size() == 1;
  // Several lanes: sealed once into private memory, since a slot is never read back.
  uint8_t* sealed = slots_.size() == 1 ? slots_[0] : staging(kSealed);
  t_.memory->seal(record, plain, bytes, sealed);
  if (slots_.size() > 1)
    for (uint8_t* slot : slots_) t_.memory->copy(slot, sealed, bytes + kTagBytes);
  for (uint32_t lane : step.lanes) {
    t_.writers[lane]->publish();
    advance(op, plan.written_use[lane]);
  }
  counters_.bytes_sealed.fetch_add(bytes, std::memory_order_relaxed);
  counters_.records_sealed.fetch_add(1, std::memory_order_relaxed);
  if (record.far) counters_.records_far.fetch_add(1, std::memory_order_relaxed);
}

bool Executor::open(Operation& op, const PlanSource& source, uint32_t chunk, const uint8_t* sealed, uint32_t bytes,
                    uint8_t* plain, const void* prefetch) {
  Stream& stream = source.reader < 0 ? t_.sender[source.writer] : t_.link_rx[source.writer];
  const RecordContext record =
      stream.record(op.sequence, source.record + chunk, bytes, op.prepared->opened_descriptor[source.writer]);
  if (!t_.memory->open(record, sealed, bytes, plain, prefetch)) {
    failed_peer_ = source.lane % t_.size;
    lane_violated_ = false;
    return false;
  }
  counters_.bytes_opened.fetch_add(bytes, std::memory_order_relaxed);
  counters_.records_opened.fetch_add(1, std::memory_order_relaxed);
  return true;
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
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(plan.chunk, step.length - within));
  const uint64_t offset = step.block_offset + within;
  const Buffer& block = op.buffers[std::max(0, step.block_buffer)];  // a step without one touches no byte
  Turn turn;

  switch (step.op) {
    case StepOp::seal: {
      if ((turn = acquire(op, s)) != Turn::ran) return turn;
      const uint8_t* plain = bytes ? block.contiguous(offset, bytes) : nullptr;
      const bool scale = step.scale && op.call.redop == RedOp::premul_sum;
      if (!plain && bytes) {
        block.gather(*t_.memory, offset, bytes, staging(kPlain));
        plain = staging(kPlain);
      }
      if (scale && bytes) {
        const ReduceTask task{staging(kPlain),
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
        t_.memory->reduce(task);
        plain = staging(kPlain);
      }
      seal(op, s, plain, bytes);
      break;
    }

    case StepOp::open: {
      const PlanSource& source = step.sources[0];
      const uint8_t* slot;
      if ((turn = peek(op, source, s, &slot)) != Turn::ran) return turn;
      // Straight into the output, before the verdict: nobody reads an output before its operation completes, and a
      // failure zeroes it.
      uint8_t* at = bytes ? block.contiguous(offset, bytes) : nullptr;
      uint8_t* plain = at ? at : staging(kPlain);
      // The lines it will write are asked for a little ahead.
      const void* ahead = at ? reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + kAhead) : nullptr;
      if (!open(op, source, chunk, slot, bytes, plain, ahead)) return Turn::failed;
      if (!at) block.scatter(*t_.memory, offset, bytes, plain);
      t_.readers[source.lane]->release();
      advance(op, plan.read_use[source.lane]);
      break;
    }

    case StepOp::forward: {
      const PlanSource& source = step.sources[0];
      const uint8_t* slot;
      if ((turn = peek(op, source, s, &slot)) != Turn::ran) return turn;
      if ((turn = acquire(op, s)) != Turn::ran) return turn;
      // One read of the slot serves both the next hop and this rank.
      uint8_t* sealed = staging(kSealed);
      t_.memory->copy(sealed, slot, bytes + kTagBytes);
      if (step.block_buffer >= 0) {
        uint8_t* at = bytes ? block.contiguous(offset, bytes) : nullptr;
        uint8_t* plain = at ? at : staging(kPlain);
        if (!open(op, source, chunk, sealed, bytes, plain, nullptr)) return Turn::failed;
        if (!at) block.scatter(*t_.memory, offset, bytes, plain);
      }
      for (size_t i = 0; i < step.lanes.size(); i++) {
        t_.memory->copy(slots_[i], sealed, bytes + kTagBytes);
        t_.writers[step.lanes[i]]->publish();
        advance(op, plan.written_use[step.lanes[i]]);
      }
      t_.readers[source.lane]->release();
      advance(op, plan.read_use[source.lane]);
      break;
    }

    case StepOp::copy: {
      const Buffer& from = op.buffers[step.sources[0].buffer];
      const uint64_t source = step.sources[0].offset + within;
      const uint8_t* a = from.contiguous(source, bytes);
      uint8_t* b = block.contiguous(offset, bytes);
      if (a && b) {
        if (a != b) t_.memory->copy(b, a, bytes);
      } else if (bytes) {
        from.gather(*t_.memory, source, bytes, staging(kPlain));
        block.scatter(*t_.memory, offset, bytes, staging(kPlain));
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
  if (!c.scratch)  // for the accumulator, and for a first record that waits for a second source
    c.scratch.reset(new uint8_t[size_t{t_.slot_bytes} * (kAccumulatorGrowth + 1) + 64]);
  auto* accumulator = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(c.scratch.get()) + 63) & ~uintptr_t{63});
  uint8_t* first = accumulator + size_t{t_.slot_bytes} * kAccumulatorGrowth;
  const uint64_t offset = step.block_offset + within;
  uint8_t* at = step.block_buffer >= 0 ? op.buffers[step.block_buffer].contiguous(offset, bytes) : nullptr;
  uint8_t* result = at ? at : staging(kPlain);

  while (c.source < n) {
    const PlanSource& source = step.sources[c.source];
    const bool last = c.source + 1 == n;
    // The result leaves in the same turn it is made: so look for room before the last source is taken.
    if (last && !step.lanes.empty() && (turn = acquire(op, s)) != Turn::ran) return turn;
    const uint8_t* b;
    if (source.is_record) {
      const uint8_t* slot;
      if ((turn = peek(op, source, s, &slot)) != Turn::ran) return turn;
      uint8_t* plain = c.source == 0 ? first : staging(kSource);
      if (!open(op, source, c.chunk, slot, bytes, plain, last ? at : nullptr)) return Turn::failed;
      t_.readers[source.lane]->release();
      advance(op, plan.read_use[source.lane]);
      b = plain;
    } else {
      const Buffer& from = op.buffers[source.buffer];
      b = from.contiguous(source.offset + within, bytes);
      if (!b && bytes) {
        uint8_t* room = c.source == 0 ? first : staging(kSource);
        from.gather(*t_.memory, source.offset + within, bytes, room);
        b = room;
      }
    }
    if (c.source == 0) {
      c.a = b;
      c.a_accumulated = false;
    }
    if (c.source > 0 || n == 1) {
      const PlanSource& a_source = step.sources[0];
      ReduceTask task{};
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
      if (count) t_.memory->reduce(task);
      c.a = accumulator;
      c.a_accumulated = true;
    }
    c.source++;
  }
  if (step.block_buffer >= 0 && !at && bytes) op.buffers[step.block_buffer].scatter(*t_.memory, offset, bytes, result);
  if (!step.lanes.empty()) seal(op, s, result, bytes);
  return Turn::ran;
}

Executor::Progress Executor::progress(Operation& op) {
  const Plan& plan = op.prepared->plan;
  bool moved = false;
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
  if (op.unfinished == 0) return Progress::finished;
  return moved ? Progress::moved : Progress::blocked;
}

std::vector<uint32_t> Executor::awaited(Operation& op) {
  const Plan& plan = op.prepared->plan;
  std::vector<uint32_t> ranks;
  for (uint32_t s = 0; s < plan.steps.size(); s++) {
    const PlanStep& step = plan.steps[s];
    const StepCursor& c = op.cursors[s];
    if (c.chunk == step.chunks || !ready(op, s)) continue;
    for (size_t i = c.source; i < step.sources.size(); i++) {
      const PlanSource& source = step.sources[i];
      if (source.is_record && has_turn(op, plan.read_use[source.lane], s) && !t_.readers[source.lane]->peek())
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
