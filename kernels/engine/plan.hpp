// A plan as the engine runs it; securecoll/plan/ir.py says what it means.
#pragma once
#include <cstdint>
#include <vector>

namespace securecoll {

struct PlanSource {
  bool is_record;
  uint32_t buffer;  // block
  uint64_t offset;
  uint32_t lane;  // record
  uint32_t writer;
  int32_t reader;  // -1: a sender stream
  uint32_t record;
};

enum class StepOp : uint8_t { seal = 1, open = 2, reduce = 3, forward = 4, copy = 5 };

struct PlanStep {
  StepOp op;
  uint64_t length;
  int32_t block_buffer = -1;  // -1: none
  uint64_t block_offset = 0;
  int32_t stream_writer = -1;  // -1: seals nothing
  int32_t stream_reader = -1;
  uint32_t record = 0;
  bool scale = false, finish = false;
  std::vector<uint32_t> after;
  std::vector<uint32_t> lanes;  // written
  std::vector<PlanSource> sources;
  uint32_t chunks = 0;  // derived
};

// Which steps use a lane, in step order: the order of records on it is (wave, step, chunk).
struct LaneUse {
  bool written;
  uint32_t lane;
  std::vector<uint32_t> steps;
};

struct Plan {
  uint32_t chunk = 0, wave = 0;
  uint64_t blocks = 0;
  std::vector<PlanStep> steps;

  // Derived by finish().
  std::vector<LaneUse> uses;
  std::vector<int32_t> written_use, read_use;  // lane -> index into uses, or -1
  uint64_t buffer_bytes[2] = {0, 0};           // what the steps touch of each buffer

  // Checks every field against the communicator and derives the rest. Throws EngineError: config.
  void finish(uint32_t rank, uint32_t size, uint32_t slot_bytes);
};

}  // namespace securecoll
