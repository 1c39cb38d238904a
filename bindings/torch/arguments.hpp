// What a collective call reads and writes: tensors checked, described to the engine as segments, and kept alive.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/StringUtil.h>

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "engine/codes.hpp"
#include "engine/table.h"
#include "error.hpp"

namespace securecoll::binding {

using Segments = c10::SmallVector<sc_segment, 2>;

struct Operands {
  Segments input, output;
  std::vector<at::Tensor> held;
  // (tensor, contiguous copy of it that the engine writes): for tensors whose elements do not lie in one dense row.
  std::vector<std::pair<at::Tensor, at::Tensor>> staged;

  // When the operation is final. Also after a failure: the engine has zeroed the copies then, and a strided tensor
  // should show the same as a dense one.
  void copy_back() const;
};

// Checks one call, argument by argument, before anything is sent. Every check throws a ConfigError that names the rank
// and the collective.
class Call {
 public:
  // `name` as in messages. `keep`: the call outlives its caller's references to the tensors.
  Call(const char* name, Collective collective, int rank, int size, bool keep);

  void timeout(std::chrono::milliseconds limit);  // kUnsetTimeout: the group's
  void root(int64_t rank);
  // After the tensors: whether the reduction fits their dtype.
  void reduction(const c10d::ReduceOp& op);

  void reads(const at::Tensor& tensor);
  void writes(const at::Tensor& tensor);
  void updates(const at::Tensor& tensor);
  // The lists hold one tensor for each coalesced call, all ranks' parts within; the engine wants rank by rank.
  void interleave_input() { interleave(operands_.input); }
  void interleave_output() { interleave(operands_.output); }
  // Elements in the sense of sc_request::count, of tensors of this call's dtype.
  void count(int64_t elements);
  // Each rank's part in elements, equal on all ranks.
  void send_counts(std::vector<uint64_t> elements);
  // all_to_all. Given even where all are equal: other ranks cannot know that they are here.
  void counts_by_edge(std::vector<uint64_t> sent, std::vector<uint64_t> received);
  // Refuses memory that is written twice, or both written and read. Allowed in place: an input that is the part of the
  // output which begins `input_shift` bytes into it (negative: an output that is that part of the input).
  void check_overlap(std::optional<int64_t> input_shift);

  template <class... Parts>
  void require(bool condition, const Parts&... what) const {
    if (C10_UNLIKELY(!condition)) fail(c10::str(what...));
  }
  [[noreturn]] void fail(const std::string& what) const;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool root_here() const noexcept { return static_cast<int>(request_.root) == rank_; }

  // Where the tensors lie: all in one place.
  c10::Device device() const noexcept { return device_.value_or(c10::Device(c10::kCPU)); }
  Operands& operands() noexcept { return operands_; }
  // This call is a message: of what it reads, or into what it writes. No peer: from any rank.
  void message(std::optional<int> peer, int tag);

  struct Start {
    bool blocking;
    void* stream;
    sc_done done;
    void* context;
  };
  // Submits it, with its operands, which may have been moved from here.
  sc_operation* start(sc_communicator* communicator, const Operands& operands, const Start& how,
                      sc_error* error) const noexcept;

 private:
  void check(const at::Tensor& tensor);
  void interleave(Segments& whole) const;

  const char* name_;
  int rank_, size_;
  bool keep_;
  std::optional<at::ScalarType> type_;
  std::optional<c10::Device> device_;
  uint64_t units_ = 1;  // elements of the engine's dtype in one of torch's
  sc_request request_{};
  Operands operands_;
  std::vector<uint64_t> sent_, received_;
  uint32_t peer_ = 0;  // of a message
  uint64_t tag_ = 0;
};

}  // namespace securecoll::binding
