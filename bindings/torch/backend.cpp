#include "backend.hpp"

#include <optional>
#include <utility>

#include "engine.hpp"
#include "error.hpp"
#include "sparse.hpp"

namespace securecoll::binding {
namespace {

const at::Tensor& only(const Call& call, const std::vector<at::Tensor>& tensors) {
  call.require(tensors.size() == 1, "takes one tensor, not ", tensors.size());
  return tensors.front();
}

// One tensor for each rank.
const std::vector<at::Tensor>& only_list(const Call& call, const std::vector<std::vector<at::Tensor>>& lists,
                                         const char* what) {
  call.require(lists.size() == 1, "takes one list of ", what, " tensors, not ", lists.size());
  call.require(lists.front().size() == static_cast<size_t>(call.size()), "the list of ", what, " tensors must have ",
               call.size(), " entries, one for each rank, not ", lists.front().size());
  return lists.front();
}

void require_elements(const Call& call, const at::Tensor& tensor, const char* what, int64_t elements) {
  call.require(tensor.numel() == elements, "the ", what, " tensor has shape ", tensor.sizes(), ", ", tensor.numel(),
               " elements, where ", elements, " are expected");
}

std::vector<uint64_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) sizes.push_back(static_cast<uint64_t>(tensor.numel()));
  return sizes;
}

int64_t bytes_before(const std::vector<at::Tensor>& tensors, int rank) {
  int64_t bytes = 0;
  for (int r = 0; r < rank; ++r) bytes += static_cast<int64_t>(tensors[r].nbytes());
  return bytes;
}

// Elements that go to, or come from, each rank: `splits` rows of dimension 0 each, or equal parts when it is empty.
std::vector<uint64_t> parts_of(const Call& call, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                               const char* what) {
  const auto size = static_cast<size_t>(call.size());
  call.require(tensor.dim() > 0, "the ", what, " tensor has no dimension 0 to split");
  const int64_t rows = tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  if (splits.empty()) {
    call.require(rows % call.size() == 0, "dimension 0 of the ", what, " tensor, ", rows,
                 ", does not divide among the ", size, " ranks; give split sizes");
    return std::vector<uint64_t>(size, static_cast<uint64_t>(rows / call.size() * row));
  }
  call.require(splits.size() == size, "the ", what, " needs ", size, " split sizes, one for each rank, not ",
               splits.size());
  std::vector<uint64_t> elements;
  elements.reserve(size);
  int64_t left = rows;
  for (const int64_t n : splits) {
    call.require(n >= 0 && n <= left, "the ", what, " split sizes [", c10::Join(", ", splits),
                 "] must not be negative and must add up to ", rows, ", dimension 0 of the tensor");
    left -= n;
    elements.push_back(static_cast<uint64_t>(n * row));
  }
  call.require(left == 0, "the ", what, " split sizes [", c10::Join(", ", splits), "] must add up to ", rows,
               ", dimension 0 of the tensor");
  return elements;
}

}  // namespace

Backend::Backend(std::shared_ptr<Group> group, int rank, int size, std::chrono::milliseconds timeout)
    : c10d::Backend(rank, size), group_(std::move(group)), timeout_(timeout) {
  init();
}

Backend::~Backend() { group_->close(); }

template <class Opts>
Call Backend::begin(const char* name, Collective collective, const Opts& opts) const {
  group_->check_process();
  Call call(name, collective, rank_, size_, opts.asyncOp || coalescing_);
  call.timeout(opts.timeout);
  return call;
}

template <class Opts>
Backend::Handle Backend::go(Call& call, c10d::OpType type, const char* title, const Opts& opts, const Tensors& inputs,
                            Tensors outputs) {
  return launch(call, c10::make_intrusive<Work>(group_, rank_, type, title, inputs, std::move(outputs)), opts.asyncOp);
}

Backend::Handle Backend::launch(Call& call, const c10::intrusive_ptr<Work>& work, bool async) {
  if (coalescing_) {
    work->start(std::move(call));
    coalesced_.push_back(work);
    return work;
  }
  // What a callback starts runs to its end in the callback, as if it had asked for that: its future would otherwise be
  // set by the thread that the callback keeps busy.
  if (async && !Completions::in_callback()) {
    work->start(std::move(call));
  } else {
    work->run(call);
  }
  return work;
}

c10::intrusive_ptr<c10d::Backend::Options> Backend::getBackendOptions() {
  return c10::make_intrusive<Options>("securecoll", timeout_);
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  group_->check_process();
  timeout_ = timeout;
  engine().set_timeout(group_->communicator(), std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count());
}

uint64_t Backend::getSequenceNumberForGroup() {
  group_->check_process();
  return engine().last_sequence(group_->communicator());
}

c10d::ErrorType Backend::getError() {
  if (group_->inherited()) return c10d::ErrorType::COMM_ERROR;
  sc_error error;
  if (engine().state(group_->communicator(), &error) == 0) return c10d::ErrorType::SUCCESS;
  switch (static_cast<ErrorKind>(error.kind)) {
    case ErrorKind::timeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorKind::peer_lost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::abort() { group_->abort(c10::str("rank ", rank_, " aborted the process group")); }

void Backend::shutdown() { group_->close(); }

Backend::Handle Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Call call = begin("all_reduce", Collective::all_reduce, opts);
  const at::Tensor& tensor = only(call, tensors);
  if (C10_UNLIKELY(tensor.defined() && tensor.layout() == at::kSparse)) {
    call.require(opts.reduceOp == c10d::ReduceOp::SUM, "sparse tensors can be summed only");
    auto work = c10::make_intrusive<Work>(group_, rank_, c10d::OpType::_ALLREDUCE_SPARSE,
                                          "securecoll:all_reduce_sparse", tensors, tensors);
    sum_sparse(*this, tensor, opts.timeout);
    work->done();
    return work;
  }
  call.updates(tensor);
  call.reduction(opts.reduceOp);
  call.count(tensor.numel());
  return go(call, c10d::OpType::ALLREDUCE, "securecoll:all_reduce", opts, tensors, tensors);
}

Backend::Handle Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  Call call = begin("all_reduce_coalesced", Collective::all_reduce, opts);
  call.require(!tensors.empty(), "the list of tensors is empty");
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    call.updates(tensor);
    elements += tensor.numel();
  }
  call.check_overlap(0);
  call.reduction(opts.reduceOp);
  call.count(elements);
  return go(call, c10d::OpType::ALLREDUCE_COALESCED, "securecoll:all_reduce_coalesced", opts, tensors, tensors);
}

Backend::Handle Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Call call = begin("broadcast", Collective::broadcast, opts);
  const at::Tensor& tensor = only(call, tensors);
  call.root(opts.rootRank);
  if (call.root_here()) {
    call.reads(tensor);
  } else {
    call.writes(tensor);
  }
  call.count(tensor.numel());
  return go(call, c10d::OpType::BROADCAST, "securecoll:broadcast", opts, tensors, tensors);
}

Backend::Handle Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Call call = begin("reduce", Collective::reduce, opts);
  const at::Tensor& tensor = only(call, tensors);
  call.root(opts.rootRank);
  if (call.root_here()) {
    call.updates(tensor);
  } else {
    call.reads(tensor);
  }
  call.reduction(opts.reduceOp);
  call.count(tensor.numel());
  return go(call, c10d::OpType::REDUCE, "securecoll:reduce", opts, tensors, tensors);
}

Backend::Handle Backend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  Call call = begin("all_gather", Collective::all_gather, opts);
  const at::Tensor& input = only(call, inputs);
  const Tensors& parts = only_list(call, outputs, "output");
  call.reads(input);
  for (const at::Tensor& part : parts) call.writes(part);
  require_elements(call, parts[rank_], "own output", input.numel());
  call.check_overlap(bytes_before(parts, rank_));
  call.send_counts(sizes_of(parts));
  return go(call, c10d::OpType::ALLGATHER, "securecoll:all_gather", opts, inputs, parts);
}

Backend::Handle Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Call call = begin("all_gather_into_tensor", Collective::all_gather, opts);
  call.reads(input);
  call.writes(output);
  require_elements(call, output, "output", input.numel() * size_);
  call.check_overlap(rank_ * static_cast<int64_t>(input.nbytes()));
  call.count(input.numel());
  return go(call, c10d::OpType::_ALLGATHER_BASE, "securecoll:all_gather_into_tensor", opts, {input}, {output});
}

Backend::Handle Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& opts) {
  Call call = begin("all_gather_into_tensor_coalesced", Collective::all_gather, opts);
  call.require(!inputs.empty() && inputs.size() == outputs.size(),
               "needs as many outputs as inputs, and at least one; ", inputs.size(), " inputs and ", outputs.size(),
               " outputs were given");
  int64_t elements = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_elements(call, outputs[i], "output", inputs[i].numel() * size_);
    call.reads(inputs[i]);
    call.writes(outputs[i]);
    elements += inputs[i].numel();
  }
  call.interleave_output();
  call.check_overlap(std::nullopt);
  call.count(elements);
  return go(call, c10d::OpType::COALESCED, "securecoll:all_gather_into_tensor_coalesced", opts, inputs, outputs);
}

Backend::Handle Backend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  Call call = begin("all_gather_coalesced", Collective::all_gather, opts);
  call.require(!inputs.empty(), "needs at least one input");
  call.require(outputs.size() == static_cast<size_t>(size_), "needs ", size_, " output lists, one for each rank; ",
               outputs.size(), " were given");
  int64_t elements = 0;
  for (const at::Tensor& input : inputs) {
    call.reads(input);
    elements += input.numel();
  }
  Tensors all;
  for (const Tensors& parts : outputs) {
    call.require(parts.size() == inputs.size(), "each output list needs ", inputs.size(), " tensors, not ",
                 parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      call.writes(parts[i]);
      require_elements(call, parts[i], "output", inputs[i].numel());
      all.push_back(parts[i]);
    }
  }
  call.check_overlap(std::nullopt);
  call.count(elements);
  return go(call, c10d::OpType::ALLGATHER_COALESCED, "securecoll:all_gather_coalesced", opts, inputs, std::move(all));
}

Backend::Handle Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                        const c10d::ReduceScatterOptions& opts) {
  Call call = begin("reduce_scatter", Collective::reduce_scatter, opts);
  const at::Tensor& output = only(call, outputs);
  const Tensors& parts = only_list(call, inputs, "input");
  for (const at::Tensor& part : parts) call.reads(part);
  call.writes(output);
  require_elements(call, output, "output", parts[rank_].numel());
  call.check_overlap(-bytes_before(parts, rank_));
  call.reduction(opts.reduceOp);
  call.send_counts(sizes_of(parts));
  return go(call, c10d::OpType::REDUCE_SCATTER, "securecoll:reduce_scatter", opts, inputs.front(), outputs);
}

Backend::Handle Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& opts) {
  Call call = begin("reduce_scatter_tensor", Collective::reduce_scatter, opts);
  call.reads(input);
  call.writes(output);
  require_elements(call, input, "input", output.numel() * size_);
  call.check_overlap(-rank_ * static_cast<int64_t>(output.nbytes()));
  call.reduction(opts.reduceOp);
  call.count(output.numel());
  return go(call, c10d::OpType::_REDUCE_SCATTER_BASE, "securecoll:reduce_scatter_tensor", opts, {input}, {output});
}

Backend::Handle Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  Call call = begin("reduce_scatter_tensor_coalesced", Collective::reduce_scatter, opts);
  call.require(!inputs.empty() && inputs.size() == outputs.size(),
               "needs as many outputs as inputs, and at least one; ", inputs.size(), " inputs and ", outputs.size(),
               " outputs were given");
  int64_t elements = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_elements(call, inputs[i], "input", outputs[i].numel() * size_);
    call.reads(inputs[i]);
    call.writes(outputs[i]);
    elements += outputs[i].numel();
  }
  call.interleave_input();
  call.check_overlap(std::nullopt);
  call.reduction(opts.reduceOp);
  call.count(elements);
  return go(call, c10d::OpType::COALESCED, "securecoll:reduce_scatter_tensor_coalesced", opts, inputs, outputs);
}

Backend::Handle Backend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  Call call = begin("gather", Collective::gather, opts);
  const at::Tensor& input = only(call, inputs);
  call.root(opts.rootRank);
  call.reads(input);
  call.count(input.numel());
  if (!call.root_here()) {
    call.require(outputs.empty() || (outputs.size() == 1 && outputs.front().empty()), "only the root, rank ",
                 opts.rootRank, ", takes output tensors");
    return go(call, c10d::OpType::GATHER, "securecoll:gather", opts, inputs, {});
  }
  const Tensors& parts = only_list(call, outputs, "output");
  for (const at::Tensor& part : parts) {
    call.writes(part);
    require_elements(call, part, "output", input.numel());
  }
  call.check_overlap(bytes_before(parts, rank_));
  return go(call, c10d::OpType::GATHER, "securecoll:gather", opts, inputs, parts);
}

Backend::Handle Backend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) {
  Call call = begin("scatter", Collective::scatter, opts);
  const at::Tensor& output = only(call, outputs);
  call.root(opts.rootRank);
  call.writes(output);
  call.count(output.numel());
  if (!call.root_here()) {
    call.require(inputs.empty() || (inputs.size() == 1 && inputs.front().empty()), "only the root, rank ",
                 opts.rootRank, ", takes input tensors");
    return go(call, c10d::OpType::SCATTER, "securecoll:scatter", opts, {}, outputs);
  }
  const Tensors& parts = only_list(call, inputs, "input");
  for (const at::Tensor& part : parts) {
    call.reads(part);
    require_elements(call, part, "input", output.numel());
  }
  call.check_overlap(-bytes_before(parts, rank_));
  return go(call, c10d::OpType::SCATTER, "securecoll:scatter", opts, parts, outputs);
}

Backend::Handle Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  Call call = begin("all_to_all_single", Collective::all_to_all, opts);
  call.reads(input);
  call.writes(output);
  call.counts_by_edge(parts_of(call, input, input_splits, "input"), parts_of(call, output, output_splits, "output"));
  call.check_overlap(std::nullopt);
  return go(call, c10d::OpType::ALLTOALL_BASE, "securecoll:all_to_all_single", opts, {input}, {output});
}

Backend::Handle Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  Call call = begin("all_to_all", Collective::all_to_all, opts);
  const auto size = static_cast<size_t>(size_);
  call.require(inputs.size() == size && outputs.size() == size, "needs ", size,
               " input and output tensors, one for each rank; ", inputs.size(), " and ", outputs.size(),
               " were given");
  for (const at::Tensor& tensor : inputs) call.reads(tensor);
  for (const at::Tensor& tensor : outputs) call.writes(tensor);
  call.counts_by_edge(sizes_of(inputs), sizes_of(outputs));
  call.check_overlap(std::nullopt);
  return go(call, c10d::OpType::ALLTOALL, "securecoll:all_to_all", opts, inputs, outputs);
}

Backend::Handle Backend::barrier(const c10d::BarrierOptions& opts) {
  Call call = begin("barrier", Collective::barrier, opts);
  return go(call, c10d::OpType::BARRIER, "securecoll:barrier", opts, {}, {});
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  c10d::BarrierOptions blocking = opts;
  blocking.asyncOp = false;
  // A limit of nothing is over at once; elsewhere it means that none is given.
  if (opts.timeout == std::chrono::milliseconds(0)) blocking.timeout = std::chrono::milliseconds(1);
  barrier(blocking);
}

// Messages have no options: send() and recv() of torch wait at once, isend() and irecv() later.
Backend::Handle Backend::message(Call& call, c10d::OpType type, const char* title, std::optional<int> peer, int tag,
                                 const Tensors& tensors) {
  const bool sends = type == c10d::OpType::SEND;
  const at::Tensor& tensor = only(call, tensors);
  if (sends) {
    call.reads(tensor);
  } else {
    call.writes(tensor);
  }
  call.message(peer, tag);
  return launch(call, c10::make_intrusive<Work>(group_, rank_, type, title, tensors, sends ? Tensors() : tensors),
                true);
}

Backend::Handle Backend::send(Tensors& tensors, int dstRank, int tag) {
  group_->check_process();
  Call call("send", Collective::send, rank_, size_, true);
  return message(call, c10d::OpType::SEND, "securecoll:send", dstRank, tag, tensors);
}

Backend::Handle Backend::recv(Tensors& tensors, int srcRank, int tag) {
  group_->check_process();
  Call call("recv", Collective::receive, rank_, size_, true);
  return message(call, c10d::OpType::RECV, "securecoll:recv", srcRank, tag, tensors);
}

Backend::Handle Backend::recvAnysource(Tensors& tensors, int tag) {
  group_->check_process();
  Call call("recv", Collective::receive, rank_, size_, true);
  return message(call, c10d::OpType::RECVANYSOURCE, "securecoll:recvAnySource", std::nullopt, tag, tensors);
}

void Backend::startCoalescing() {
  TORCH_CHECK(!coalescing_, "rank ", rank_, ": calls are coalesced already; end that first");
  coalescing_ = true;
}

Backend::Handle Backend::endCoalescing() {
  TORCH_CHECK(coalescing_, "rank ", rank_, ": no calls are coalesced; start that first");
  coalescing_ = false;
  return c10::make_intrusive<Works>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace securecoll::binding
