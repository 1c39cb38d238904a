#include "engine/plan.hpp"

#include <algorithm>

#include "engine/error.hpp"

namespace securecoll {
namespace {

[[noreturn]] void refuse(size_t step, const char* what) {
  throw EngineError(ErrorKind::config, "plan refused: step " + std::to_string(step) + ": " + what);
}

}  // namespace

void Plan::finish(uint32_t rank, uint32_t size, uint32_t slot_bytes) {
  if (chunk == 0 || chunk % 64 != 0 || chunk > slot_bytes || wave == 0)
    throw EngineError(ErrorKind::config, "plan refused: chunks of " + std::to_string(chunk) +
                                             " bytes do not fit slots of " + std::to_string(slot_bytes));
  written_use.assign(size + 1, -1);
  read_use.assign(2 * size, -1);
  auto use = [&](bool written, uint32_t lane, uint32_t step) {
    auto& index = (written ? written_use : read_use)[lane];
    if (index < 0) {
      index = static_cast<int32_t>(uses.size());
      uses.push_back({written, lane, {}});
    }
    auto& steps_of = uses[index].steps;
    if (!steps_of.empty() && steps_of.back() == step) refuse(step, "uses a lane twice");
    steps_of.push_back(step);
  };
  auto touch = [&](uint32_t s, int64_t buffer, uint64_t offset, uint64_t length) {
    if (buffer < 0 || buffer > 1 || offset + length < offset) refuse(s, "no such block");
    buffer_bytes[buffer] = std::max(buffer_bytes[buffer], offset + length);
  };
  for (uint32_t s = 0; s < steps.size(); s++) {
    PlanStep& step = steps[s];
    const uint64_t chunks = step.length ? (step.length + chunk - 1) / chunk : 1;
    if (chunks > (1u << 24)) refuse(s, "too many records");
    step.chunks = static_cast<uint32_t>(chunks);
    if (step.block_buffer >= 0) touch(s, step.block_buffer, step.block_offset, step.length);
    for (uint32_t d : step.after)
      if (d >= s) refuse(s, "waits for a later step");
    const bool seals = step.stream_writer >= 0;
    const bool sends = seals || step.op == StepOp::forward;
    if (sends != !step.lanes.empty()) refuse(s, "needs lanes to send, and sends to have lanes");
    if (seals) {
      // One writer a key: a rank seals on its own streams only.
      if (static_cast<uint32_t>(step.stream_writer) != rank) refuse(s, "seals on another rank's stream");
      if (step.stream_reader >= static_cast<int32_t>(size) || step.stream_reader == static_cast<int32_t>(rank))
        refuse(s, "no such stream");
      if (step.op != StepOp::seal && step.op != StepOp::reduce) refuse(s, "only SEAL and REDUCE seal");
      if (uint64_t{step.record} + chunks > (1u << 24)) refuse(s, "record numbers run out");
    }
    for (uint32_t l : step.lanes) {
      if (l > size || l == rank) refuse(s, "no such lane to write");
      use(true, l, s);
    }
    for (const PlanSource& source : step.sources) {
      if (!source.is_record) {
        touch(s, source.buffer, source.offset, step.length);
        continue;
      }
      if (source.lane >= 2 * size || source.lane % size == rank) refuse(s, "no such lane to read");
      if (source.writer >= size || source.writer == rank) refuse(s, "no such stream to open");
      if (source.reader >= 0 && static_cast<uint32_t>(source.reader) != rank) refuse(s, "opens another rank's stream");
      if (uint64_t{source.record} + chunks > (1u << 24)) refuse(s, "record numbers run out");
      use(false, source.lane, s);
    }
    const size_t n = step.sources.size();
    const bool record_source = n == 1 && step.sources[0].is_record;
    switch (step.op) {
      case StepOp::seal:
        if (!seals || n != 0 || (step.block_buffer < 0 && step.length)) refuse(s, "SEAL takes a block and a stream");
        break;
      case StepOp::open:
        if (!record_source || (step.block_buffer < 0 && step.length)) refuse(s, "OPEN takes one record and a block");
        break;
      case StepOp::reduce:
        if (n == 0 || (step.block_buffer < 0 && !seals))
          refuse(s, "REDUCE takes sources and somewhere to put the result");
        break;
      case StepOp::forward:
        if (!record_source) refuse(s, "FORWARD takes one record");
        break;
      case StepOp::copy:
        if (n != 1 || step.sources[0].is_record || step.block_buffer < 0) refuse(s, "COPY takes two blocks");
        break;
      default:
        refuse(s, "no such operation");
    }
  }
}

}  // namespace securecoll
