// The handle of one collective or message: c10d's Work and the future behind it.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "arguments.hpp"
#include "group.hpp"

namespace securecoll::binding {

class Work final : public c10d::Work {
 public:
  // `outputs` is what result() and the future give. `title` names the operation to a profiler, which also shows the
  // shapes of `inputs`.
  Work(std::shared_ptr<Group> group, int rank, c10d::OpType type, const char* title,
       const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs);
  ~Work() override;

  // Runs the call in this thread and returns when it is final, or, on a CUDA device, when all of it was handed to the
  // device and the current stream goes on behind it. Throws its error.
  void run(Call& call);
  // Starts the call; its operands stay alive until it is final. Throws when it is refused.
  void start(Call&& call);

  // What it stands for was done already.
  void done() { finish(); }

  // On a CUDA device, as run() does: the work is final later, when the device is done. Any number of streams can be
  // made to wait so.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  // Of a receive that is final: the rank, of the group, whose message it got.
  int sourceRank() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
  // The engine has no half-failed communicator: this aborts the whole group.
  void abort() override;

 private:
  friend class Completions;
  static void on_done(void* context, sc_operation* operation);
  // On the completion thread: makes the work final and runs what waits on its future.
  void complete();
  // Makes the work final once the operation is: copies staged outputs back, then wakes all. The first caller does it,
  // others wait for that; so neither a waiter nor the completion thread depends on the other being scheduled.
  void settle(const sc_error* error);
  [[noreturn]] void throw_not_done(std::chrono::milliseconds timeout) const;

  std::shared_ptr<Group> group_;
  std::vector<at::Tensor> outputs_;
  Operands operands_;
  std::atomic<sc_operation*> operation_{nullptr};
  std::atomic<bool> claimed_{false};
  c10::Device device_{c10::kCPU};
  uint64_t sequence_ = 0;
  std::atomic<int> source_{-1};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // made when first asked for; guarded by mutex_
  Work* next_ = nullptr;                            // in the completion thread's queue
};

// Several works as one: what endCoalescing returns.
class Works final : public c10d::Work {
 public:
  Works(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Waits for all, also after one failed; then throws the first error.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override;
  // Completes with all their tensors, in order.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  void abort() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace securecoll::binding
