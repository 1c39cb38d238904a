// The c10d backend "securecoll": torch's collectives on a communicator of the engine.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "arguments.hpp"
#include "group.hpp"
#include "work.hpp"

namespace securecoll::binding {

// Every call is checked before anything is sent, and then becomes one request: tensor lists and coalesced calls are
// lists of segments. With asyncOp false, or within a callback on a future, the call runs in the calling thread and the
// Work comes back final; otherwise the engine's threads make progress and the group's completion thread runs what
// waits on the future. A failure of a call that runs in its caller's thread is thrown by the call itself, of any other
// one by wait() and by the future.
class Backend final : public c10d::Backend {
 public:
  Backend(std::shared_ptr<Group> group, int rank, int size, std::chrono::milliseconds timeout);
  ~Backend() override;

  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Handle = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "securecoll"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  // Sequence numbers begin with the communicator's handshake: there is nothing left to agree on.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // A sparse tensor is reduced before this returns, whether or not the caller asked for a work to wait for.
  Handle allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  // Tensors of one dtype.
  Handle allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  Handle broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  Handle reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  // Parts may differ in size between ranks.
  Handle allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  Handle allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& opts) override;
  // Tensors of one dtype; `outputs` holds a list for each rank.
  Handle allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Handle reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override;
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  Handle reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                         const c10d::ReduceScatterOptions& opts) override;
  Handle gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  Handle scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  Handle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                       std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  Handle alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  // A message may be sent before it is received: short ones at once. It is matched by source and tag.
  Handle send(Tensors& tensors, int dstRank, int tag) override;
  Handle recv(Tensors& tensors, int srcRank, int tag) override;
  Handle recvAnysource(Tensors& tensors, int tag) override;
  // Calls in between are started as they come; the end returns one work for all of them. (supportsCoalescing says no,
  // so that batch_isend_irecv returns a work for each message, as with gloo.)
  void startCoalescing() override;
  Handle endCoalescing() override;
  Handle barrier(const c10d::BarrierOptions& opts) override;
  // A barrier with a limit of its own. The first rank whose limit passes names every rank that did not come, and tells
  // the others. As any failure, it ends the group.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  template <class Opts>
  Call begin(const char* name, Collective collective, const Opts& opts) const;
  template <class Opts>
  Handle go(Call& call, c10d::OpType type, const char* title, const Opts& opts, const Tensors& inputs,
            Tensors outputs);
  Handle launch(Call& call, const c10::intrusive_ptr<Work>& work, bool async);
  Handle message(Call& call, c10d::OpType type, const char* title, std::optional<int> peer, int tag,
                 const Tensors& tensors);

  std::shared_ptr<Group> group_;
  std::chrono::milliseconds timeout_;
  bool coalescing_ = false;
  std::vector<Handle> coalesced_;
};

}  // namespace securecoll::binding
