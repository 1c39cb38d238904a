#include "arguments.hpp"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "engine.hpp"

namespace securecoll::binding {
namespace {

struct ElementType {
  DType code;  // none: the engine has no such type; it can be moved as bytes, not reduced
  const char* name;
};

ElementType element_type(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return {DType::u8, "torch.uint8"};
    case at::kChar:
      return {DType::i8, "torch.int8"};
    case at::kUInt16:
      return {DType::u16, "torch.uint16"};
    case at::kShort:
      return {DType::i16, "torch.int16"};
    case at::kUInt32:
      return {DType::u32, "torch.uint32"};
    case at::kInt:
      return {DType::i32, "torch.int32"};
    case at::kUInt64:
      return {DType::u64, "torch.uint64"};
    case at::kLong:
      return {DType::i64, "torch.int64"};
    case at::kHalf:
      return {DType::f16, "torch.float16"};
    case at::kBFloat16:
      return {DType::bf16, "torch.bfloat16"};
    case at::kFloat:
      return {DType::f32, "torch.float32"};
    case at::kDouble:
      return {DType::f64, "torch.float64"};
    case at::kComplexFloat:
      return {DType::c64, "torch.complex64"};
    case at::kComplexDouble:
      return {DType::c128, "torch.complex128"};
    case at::kBool:
      return {DType::boolean, "torch.bool"};
    case at::kFloat8_e4m3fn:
      return {DType::f8e4m3fn, "torch.float8_e4m3fn"};
    case at::kFloat8_e5m2:
      return {DType::f8e5m2, "torch.float8_e5m2"};
    case at::kFloat8_e4m3fnuz:
      return {DType::f8e4m3fnuz, "torch.float8_e4m3fnuz"};
    case at::kFloat8_e5m2fnuz:
      return {DType::f8e5m2fnuz, "torch.float8_e5m2fnuz"};
    default:
      return {DType::none, c10::toString(type)};
  }
}

struct Reduction {
  RedOp code;
  const char* name;
};

Reduction reduction_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return {RedOp::sum, "SUM"};
    case c10d::ReduceOp::AVG:
      return {RedOp::avg, "AVG"};
    case c10d::ReduceOp::PRODUCT:
      return {RedOp::product, "PRODUCT"};
    case c10d::ReduceOp::MIN:
      return {RedOp::min, "MIN"};
    case c10d::ReduceOp::MAX:
      return {RedOp::max, "MAX"};
    case c10d::ReduceOp::BAND:
      return {RedOp::band, "BAND"};
    case c10d::ReduceOp::BOR:
      return {RedOp::bor, "BOR"};
    case c10d::ReduceOp::BXOR:
      return {RedOp::bxor, "BXOR"};
    case c10d::ReduceOp::PREMUL_SUM:
      return {RedOp::premul_sum, "PREMUL_SUM"};
    default:
      return {RedOp::none, "UNUSED"};
  }
}

// Whether memory holds exactly the tensor's values, row after row. (A conjugate or negative view does not.)
bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

at::Tensor dense_room(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(tensor.device()));
}

at::Tensor dense_copy(const at::Tensor& tensor) { return dense_room(tensor).copy_(tensor); }

// The engine writes through this only where the segment stands in an output list.
sc_segment segment(const at::Tensor& tensor, bool written) {
  void* data = written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
  return {data, tensor.nbytes()};
}

}  // namespace

void Operands::copy_back() const {
  if (staged.empty()) return;
  const at::AutoDispatchBelowADInplaceOrView raw;  // parameters that require grad are written as by any collective
  for (const auto& [tensor, copy] : staged) tensor.copy_(copy);
}

Call::Call(const char* name, Collective collective, int rank, int size, bool keep)
    : name_(name), rank_(rank), size_(size), keep_(keep) {
  request_.collective = static_cast<uint8_t>(collective);
}

void Call::fail(const std::string& what) const {
  throw Error(ErrorKind::config, c10::str("rank ", rank_, ": ", name_, ": ", what));
}

void Call::timeout(std::chrono::milliseconds limit) {
  request_.timeout_ns =
      limit > std::chrono::milliseconds(0) ? std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count() : 0;
}

void Call::root(int64_t rank) {
  require(rank >= 0 && rank < size_, "the root must be a rank of the group, 0 to ", size_ - 1, ", not ", rank);
  request_.root = static_cast<uint32_t>(rank);
}

void Call::check(const at::Tensor& tensor) {
  require(tensor.defined(), "a tensor is undefined");
  require(tensor.layout() == at::kStrided && !tensor.is_nested(), "tensors must be dense, not ",
          tensor.is_nested() ? c10::str("nested") : c10::str(tensor.layout()));
  const c10::Device device = tensor.device();
  if (C10_UNLIKELY(device_ != device)) {
    require(device.is_cpu() || device.is_cuda(), "tensors must be on the CPU or on a CUDA device, but one is on ",
            device, "; call .cpu() on it");
    require(!device_.has_value(), "all tensors must be on the same device, but one is on ", device, " and another on ",
            device_.value_or(device));
    device_ = device;
    request_.place = device.is_cpu() ? 0 : 1 + static_cast<uint32_t>(device.index());
  }
  const at::ScalarType type = tensor.scalar_type();
  if (C10_LIKELY(type_ == type)) return;
  require(!type_.has_value(), "all tensors must have the same dtype, but one has ",
          type_ ? element_type(*type_).name : "", " and another ", element_type(type).name);
  require(!c10::isQIntType(type), "quantized tensors are not supported; send int_repr() and the parameters");
  type_ = type;
  DType code = element_type(type).code;
  if (code == DType::none) {
    code = DType::u8;
    units_ = tensor.itemsize();
  }
  request_.dtype = static_cast<uint8_t>(code);
}

void Call::reduction(const c10d::ReduceOp& op) {
  const Reduction reduction = reduction_of(op.op_);
  const ElementType element = element_type(*type_);
  const auto code = static_cast<uint8_t>(reduction.code);
  require(element.code != DType::none && reduction.code != RedOp::none &&
              engine().reducible(static_cast<uint8_t>(element.code), code) != 0,
          reduction.name, " is not defined for ", element.name);
  request_.redop = code;
  request_.factor = 1;
  if (reduction.code == RedOp::premul_sum) {
    // The name that torch 2.11 has for it, and later ones keep.
    const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    require(supplement != nullptr, "PREMUL_SUM needs a factor");
    if (supplement->tensor_factor.defined()) {
      require(!supplement->tensor_factor.is_complex(), "the factor of PREMUL_SUM must be real");
      request_.factor = supplement->tensor_factor.item<double>();
    } else {
      request_.factor = supplement->double_factor;
    }
  }
}

void Call::reads(const at::Tensor& tensor) {
  check(tensor);
  if (C10_LIKELY(is_dense(tensor))) {
    operands_.input.push_back(segment(tensor, false));
    if (keep_ || request_.place) operands_.held.push_back(tensor);
  } else {
    const at::AutoDispatchBelowADInplaceOrView raw;
    operands_.held.push_back(dense_copy(tensor));
    operands_.input.push_back(segment(operands_.held.back(), false));
  }
}

void Call::writes(const at::Tensor& tensor) {
  check(tensor);
  if (C10_LIKELY(is_dense(tensor))) {
    operands_.output.push_back(segment(tensor, true));
    if (keep_ || request_.place) operands_.held.push_back(tensor);
  } else {
    // A copy back would have to find a stream of its own when nobody waits.
    require(!request_.place, "an output on a CUDA device must be contiguous; call .contiguous() on it");
    require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes && !tensor._is_zerotensor(),
            "an output is an expanded tensor, whose elements share memory; call .contiguous() on it");
    const at::AutoDispatchBelowADInplaceOrView raw;
    operands_.staged.emplace_back(tensor, dense_room(tensor));
    operands_.output.push_back(segment(operands_.staged.back().second, true));
  }
}

void Call::updates(const at::Tensor& tensor) {
  const size_t staged = operands_.staged.size();
  writes(tensor);
  if (operands_.staged.size() != staged) {
    const at::AutoDispatchBelowADInplaceOrView raw;
    operands_.staged.back().second.copy_(tensor);
  }
  operands_.input.push_back(operands_.output.back());
}

void Call::interleave(Segments& whole) const {
  Segments parts;
  for (int r = 0; r < size_; ++r) {
    for (const sc_segment& s : whole) {
      const uint64_t bytes = s.bytes / static_cast<uint64_t>(size_);
      auto* data = static_cast<uint8_t*>(s.data);
      parts.push_back({bytes == 0 ? nullptr : data + static_cast<uint64_t>(r) * bytes, bytes});
    }
  }
  whole = std::move(parts);
}

void Call::count(int64_t elements) { request_.count = static_cast<uint64_t>(elements) * units_; }

void Call::send_counts(std::vector<uint64_t> elements) {
  if (std::all_of(elements.begin(), elements.end(), [&](uint64_t n) { return n == elements.front(); })) {
    request_.count = elements.front() * units_;
    return;
  }
  sent_ = std::move(elements);
  for (uint64_t& n : sent_) n *= units_;
}

void Call::counts_by_edge(std::vector<uint64_t> sent, std::vector<uint64_t> received) {
  require(sent[rank_] == received[rank_], "this rank sends itself ", sent[rank_], " elements but receives ",
          received[rank_], " from itself");
  sent_ = std::move(sent);
  received_ = std::move(received);
  for (uint64_t& n : sent_) n *= units_;
  for (uint64_t& n : received_) n *= units_;
}

void Call::check_overlap(std::optional<int64_t> input_shift) {
  struct Range {
    uintptr_t begin, end;
    int64_t position;  // of its first byte in the run of bytes that the list stands for
    bool written;
  };
  c10::SmallVector<Range, 8> ranges;
  const auto add = [&](const auto& segments, bool written, int64_t position) {
    for (const sc_segment& s : segments) {
      const auto begin = reinterpret_cast<uintptr_t>(s.data);
      if (s.bytes != 0) ranges.push_back({begin, begin + s.bytes, position, written});
      position += static_cast<int64_t>(s.bytes);
    }
  };
  add(operands_.input, false, input_shift.value_or(0));
  add(operands_.output, true, 0);
  // Outputs first where both begin: two outputs in one place are named as such, not as an input and an output.
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.written > b.written;
  });
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& a = ranges[i];
    for (size_t j = i + 1; j < ranges.size() && ranges[j].begin < a.end; ++j) {
      const Range& b = ranges[j];
      if (!a.written && !b.written) continue;
      require(a.written != b.written, "two outputs share memory");
      // In place: the shared bytes have the same position in both runs.
      const bool in_place = a.position + static_cast<int64_t>(b.begin - a.begin) == b.position;
      require(input_shift.has_value() && in_place, "an input and an output share memory",
              input_shift.has_value() ? " other than this rank's own part" : "");
    }
  }
}

void Call::message(std::optional<int> peer, int tag) {
  if (peer) {
    require(*peer >= 0 && *peer < size_, "the other rank must be one of the group, 0 to ", size_ - 1, ", not ", *peer);
    require(*peer != rank_, "a rank has no messages with itself; copy the tensor");
  }
  require(tag >= 0, "a tag must not be negative, and is ", tag);
  require(!request_.place, "messages are sent from and received in CPU memory only; call .cpu() on the tensor");
  peer_ = peer ? static_cast<uint32_t>(*peer) : SC_ANY_SOURCE;
  tag_ = static_cast<uint64_t>(tag);
}

sc_operation* Call::start(sc_communicator* communicator, const Operands& operands, const Start& how,
                          sc_error* error) const noexcept {
  const auto collective = static_cast<Collective>(request_.collective);
  if (collective == Collective::send || collective == Collective::receive) {
    const Segments& data = collective == Collective::send ? operands.input : operands.output;
    sc_message message{};
    message.dtype = request_.dtype;
    message.blocking = how.blocking;
    message.peer = peer_;
    message.tag = tag_;
    message.segments = data.data();
    message.count = static_cast<uint32_t>(data.size());
    message.done = how.done;
    message.context = how.context;
    return (collective == Collective::send ? engine().send : engine().receive)(communicator, &message, error);
  }
  sc_request request = request_;
  request.blocking = how.blocking;
  request.stream = how.stream;
  request.input = operands.input.data();
  request.inputs = static_cast<uint32_t>(operands.input.size());
  request.output = operands.output.data();
  request.outputs = static_cast<uint32_t>(operands.output.size());
  request.send_counts = sent_.empty() ? nullptr : sent_.data();
  request.recv_counts = received_.empty() ? nullptr : received_.data();
  request.done = how.done;
  request.context = how.context;
  return engine().submit(communicator, &request, error);
}

}  // namespace securecoll::binding
