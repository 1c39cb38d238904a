#include "work.hpp"

#include <ATen/record_function.h>

#include <algorithm>
#include <exception>

#include "error.hpp"
#include "stream.hpp"

namespace securecoll::binding {
namespace {

int64_t nanoseconds(std::chrono::milliseconds timeout) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count();
}

c10::intrusive_ptr<c10::ivalue::Future> new_future(c10::Device device) {
  std::vector<c10::Device> devices;
  if (!device.is_cpu()) devices.push_back(device);
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::move(devices));
}

}  // namespace

Work::Work(std::shared_ptr<Group> group, int rank, c10d::OpType type, const char* title,
           const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs)
    // Without a profiler the title would only cost an allocation.
    : c10d::Work(rank, type, at::hasCallbacks() ? title : nullptr,
                 at::hasCallbacks() ? std::make_optional(inputs) : std::nullopt),
      group_(std::move(group)),
      outputs_(std::move(outputs)) {}

Work::~Work() {
  sc_operation* operation = operation_.load(std::memory_order_acquire);
  if (operation != nullptr && !group_->inherited()) engine().release_operation(operation);
}

void Work::run(Call& call) {
  if (!call.device().is_cpu()) {
    start(std::move(call));
    wait(kNoTimeout);
    return;
  }
  const WithoutGil unlocked;
  sc_error error;
  sc_operation* operation =
      call.start(group_->communicator(), call.operands(), {true, nullptr, nullptr, nullptr}, &error);
  int outcome = -1;
  if (operation != nullptr) {
    outcome = engine().wait(operation, -1, &error);
    sequence_ = engine().sequence(operation);
    if (outcome == 1) source_ = static_cast<int>(engine().source(operation));
    engine().release_operation(operation);
    call.operands().copy_back();
  }
  if (outcome == 1) {
    finish();
  } else {
    finishAndThrow(std::make_exception_ptr(Error(error)));
  }
}

void Work::start(Call&& call) {
  const WithoutGil unlocked;
  device_ = call.device();
  void* stream = device_.is_cpu() ? nullptr : current_stream(device_);
  operands_ = std::move(call.operands());
  group_->completions().expect();
  c10::raw::intrusive_ptr::incref(this);  // for on_done
  sc_error error;
  sc_operation* operation =
      call.start(group_->communicator(), operands_, {false, stream, &Work::on_done, this}, &error);
  if (operation == nullptr) {
    c10::raw::intrusive_ptr::decref(this);
    group_->completions().cancel();
    finishAndThrow(std::make_exception_ptr(Error(error)));
  }
  operation_.store(operation, std::memory_order_release);
  sequence_ = engine().sequence(operation);
}

void Work::on_done(void* context, sc_operation* operation) {
  auto* work = static_cast<Work*>(context);
  work->operation_.store(operation, std::memory_order_release);  // submit may not have returned yet
  work->group_->completions().push(work);
}

void Work::complete() {
  sc_error error;
  const int outcome = engine().poll(operation_.load(std::memory_order_acquire), &error);
  settle(outcome < 0 ? &error : nullptr);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
  }
  // Nobody else completes a future that was made before the work was final.
  if (!future || future->completed()) return;
  try {
    if (exception_) {
      future->setError(exception_);
    } else {
      future->markCompleted(outputs_);
    }
  } catch (const std::exception& e) {
    TORCH_WARN("a callback on the future of ", c10d::opTypeToString(opType_), " failed: ", e.what());
  }
}

void Work::settle(const sc_error* error) {
  if (claimed_.exchange(true)) {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [this] { return completed_; });
    return;
  }
  std::exception_ptr failure;
  if (error != nullptr) failure = std::make_exception_ptr(Error(*error));
  try {
    operands_.copy_back();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  if (!failure) source_ = static_cast<int>(engine().source(operation_.load(std::memory_order_acquire)));
  operands_ = Operands();  // inputs and copies are no longer needed, whoever still holds this handle
  finish(failure);
}

void Work::throw_not_done(std::chrono::milliseconds timeout) const {
  throw Error(ErrorKind::timeout, c10::str("rank ", rank_, ": ", c10d::opTypeToString(opType_), " with sequence ",
                                           sequence_, " is not done after wait(timeout) of ", timeout.count(),
                                           " ms; it stays in flight under the group's own timeout"));
}

bool Work::wait(std::chrono::milliseconds timeout) {
  const WithoutGil unlocked;
  const int64_t limit = timeout > kNoTimeout ? nanoseconds(timeout) : -1;
  if (!device_.is_cpu()) {
    if (!isCompleted()) group_->check_process();
    sc_operation* operation = operation_.load(std::memory_order_acquire);
    sc_error error;
    const int outcome = engine().wait_handed(operation, limit, &error);
    if (outcome == 0) throw_not_done(timeout);
    if (outcome < 0 || engine().resume(operation, current_stream(device_), &error) < 0) {
      throw Error(error);  // the completion thread makes the work final
    }
    return true;
  }
  if (!isCompleted()) {
    group_->check_process();
    sc_error error;
    const int outcome = engine().wait(operation_.load(std::memory_order_acquire), limit, &error);
    if (outcome == 0) throw_not_done(timeout);
    settle(outcome < 0 ? &error : nullptr);
  }
  if (const auto failure = exception()) std::rethrow_exception(failure);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_) {
    future_ = new_future(device_);
    if (completed_ && exception_) future_->setError(exception_);
    if (completed_ && !exception_) future_->markCompleted(outputs_);
  }
  return future_;
}

int Work::sourceRank() const {
  TORCH_CHECK(opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE,
              "only a receive has a source rank");
  TORCH_CHECK(source_ >= 0, "the source rank is known once the receive is done");
  return source_;
}

uint64_t Work::getSequencenumber() const { return sequence_; }

void Work::abort() { group_->abort(c10::str("rank ", rank_, " aborted ", c10d::opTypeToString(opType_))); }

Works::Works(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool Works::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool Works::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr Works::exception() const {
  for (const auto& work : works_)
    if (auto failure = work->exception()) return failure;
  return nullptr;
}

bool Works::wait(std::chrono::milliseconds timeout) {
  std::exception_ptr failure;
  for (const auto& work : works_) {
    try {
      work->wait(timeout);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  return true;
}

std::vector<at::Tensor> Works::result() {
  std::vector<at::Tensor> tensors;
  for (const auto& work : works_)
    for (at::Tensor& tensor : work->result()) tensors.push_back(std::move(tensor));
  return tensors;
}

c10::intrusive_ptr<c10::ivalue::Future> Works::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [tensors = result()](c10::ivalue::Future& all) {
        for (const c10::IValue& each : all.value().toList())  // one that failed raises here
          each.toFuture()->value();
        return c10::IValue(tensors);
      },
      c10::ListType::ofTensors());
}

void Works::abort() {
  if (!works_.empty()) works_.front()->abort();
}

}  // namespace securecoll::binding
