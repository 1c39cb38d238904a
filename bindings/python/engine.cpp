// Meshes, communicators and operations for Python, and the function table for other extension modules.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_memory.hpp"
#include "device.hpp"
#include "engine/clock.hpp"
#include "engine/communicator.hpp"
#include "engine/error.hpp"
#include "engine/mesh.hpp"
#include "engine/pool.hpp"
#include "engine/table.hpp"
#include "host/host_memory.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace securecoll;

namespace {

using InputArray = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;
using OutputArray = nb::ndarray<nb::device::cpu, nb::c_contig>;
using DeviceInputArray = nb::ndarray<nb::ro, nb::device::cuda, nb::c_contig>;
using DeviceOutputArray = nb::ndarray<nb::device::cuda, nb::c_contig>;

// DLPack's type codes; the 8-bit float ones came with DLPack 1.1.
DType dtype_of(const nb::dlpack::dtype& t) {
  if (t.lanes != 1) return DType::none;
  switch (t.code) {
    case 0:  // int
      return t.bits == 8    ? DType::i8
             : t.bits == 16 ? DType::i16
             : t.bits == 32 ? DType::i32
             : t.bits == 64 ? DType::i64
                            : DType::none;
    case 1:  // unsigned
      return t.bits == 8    ? DType::u8
             : t.bits == 16 ? DType::u16
             : t.bits == 32 ? DType::u32
             : t.bits == 64 ? DType::u64
                            : DType::none;
    case 2:  // float
      return t.bits == 16 ? DType::f16 : t.bits == 32 ? DType::f32 : t.bits == 64 ? DType::f64 : DType::none;
    case 4:
      return t.bits == 16 ? DType::bf16 : DType::none;
    case 5:  // complex
      return t.bits == 64 ? DType::c64 : t.bits == 128 ? DType::c128 : DType::none;
    case 6:
      return t.bits == 8 ? DType::boolean : DType::none;
    case 10:
      return DType::f8e4m3fn;
    case 11:
      return DType::f8e4m3fnuz;
    case 12:
      return DType::f8e5m2;
    case 13:
      return DType::f8e5m2fnuz;
    default:
      return DType::none;
  }
}

struct Array {
  nb::object keep;  // the exporter, until the operation is final
  sc_segment segment{nullptr, 0};
  uint64_t elements = 0;
  DType dtype = DType::none;
  uint32_t place = 0;  // as in sc_request
  void* stream = nullptr;
};

// What __cuda_array_interface__ calls a dtype. (8-bit floats, which have no name there, come by DLPack; bfloat16 is
// called what ml_dtypes calls it.)
DType dtype_of(const std::string& typestr) {
  static const std::map<std::string, DType> known = {
      {"|u1", DType::u8},  {"|i1", DType::i8},  {"<u2", DType::u16},   {"<i2", DType::i16},     {"<u4", DType::u32},
      {"<i4", DType::i32}, {"<u8", DType::u64}, {"<i8", DType::i64},   {"<f2", DType::f16},     {"<f4", DType::f32},
      {"<f8", DType::f64}, {"<c8", DType::c64}, {"<c16", DType::c128}, {"|b1", DType::boolean}, {"<V2", DType::bf16}};
  const auto found = known.find(typestr);
  return found == known.end() ? DType::none : found->second;
}

uint32_t ordinal_of(const nb::object& array) {
  nb::object device = nb::getattr(array, "device", nb::int_(0));
  for (const char* name : {"id", "index"})
    if (nb::hasattr(device, name)) device = device.attr(name);
  return nb::isinstance<nb::int_>(device) ? nb::cast<uint32_t>(device) : 0;
}

// An array in device memory that says so by __cuda_array_interface__, as CuPy, Numba and torch do.
Array device_array_of(const nb::object& from, const char* name, bool writable) {
  const auto refuse = [&](const std::string& why) -> EngineError {
    return EngineError(ErrorKind::config, std::string(name) + " " + why);
  };
  const auto face = nb::cast<nb::dict>(from.attr("__cuda_array_interface__"));
  const auto data = nb::cast<nb::tuple>(face["data"]);
  Array a;
  a.dtype = dtype_of(nb::cast<std::string>(face["typestr"]));
  if (a.dtype == DType::none) throw refuse("has a dtype that has no collective");
  if (writable && nb::cast<bool>(data[1])) throw refuse("must be writable");
  a.elements = 1;
  const auto shape = nb::cast<nb::tuple>(face["shape"]);
  for (nb::handle n : shape) a.elements *= nb::cast<uint64_t>(n);
  const nb::object strides = face.contains("strides") ? nb::object(face["strides"]) : nb::object(nb::none());
  if (!strides.is_none() && a.elements) {
    const auto given = nb::cast<nb::tuple>(strides);
    auto expected = static_cast<int64_t>(element_bytes(a.dtype));
    for (size_t i = given.size(); i-- > 0;) {
      const auto extent = nb::cast<int64_t>(shape[i]);
      if (extent > 1 && nb::cast<int64_t>(given[i]) != expected) throw refuse("must be C-contiguous");
      expected *= extent;
    }
  }
  const nb::object stream = face.contains("stream") ? nb::object(face["stream"]) : nb::object(nb::none());
  if (!stream.is_none()) {
    const auto handle = nb::cast<uint64_t>(stream);
    a.stream = handle == 1 ? nullptr : reinterpret_cast<void*>(handle);  // 1: the legacy default stream
  }
  a.segment = {reinterpret_cast<void*>(nb::cast<uint64_t>(data[0])), a.elements * element_bytes(a.dtype)};
  a.place = 1 + ordinal_of(from);
  a.keep = from;
  return a;
}

template <class T, class OnDevice>
Array array_of(const nb::object& from, const char* name, const char* wanted) {
  const bool writable = *wanted != 0;
  if (nb::hasattr(from, "__cuda_array_interface__")) return device_array_of(from, name, writable);
  Array a;
  const auto fill = [&](auto view) {
    a.dtype = dtype_of(view.dtype());
    if (a.dtype == DType::none)
      throw EngineError(ErrorKind::config, std::string(name) + " has a dtype that has no collective");
    a.elements = view.size();
    a.segment = {const_cast<void*>(static_cast<const void*>(view.data())), a.elements * element_bytes(a.dtype)};
    a.keep = nb::cast(std::move(view), nb::rv_policy::none);
  };
  // Never converted: a silent copy would receive the result in the caller's place.
  T view;
  if (nb::try_cast<T>(from, view, false)) {
    fill(std::move(view));
    return a;
  }
  OnDevice there;
  if (nb::try_cast<OnDevice>(from, there, false)) {
    a.place = 1 + static_cast<uint32_t>(there.device_id());
    fill(std::move(there));
    return a;
  }
  throw EngineError(ErrorKind::config,
                    std::string(name) + " must be a C-contiguous" + wanted +
                        " array on the CPU (NumPy, the buffer protocol or DLPack) or on a CUDA device "
                        "(__cuda_array_interface__ or DLPack), not " +
                        nb::cast<std::string>(nb::str(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(from.ptr()))))));
}

// Whether the interpreter ends: a thread that then waits for its lock is ended where it stands.
bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// A Python object that any thread may drop.
std::shared_ptr<nb::object> shared(nb::object o) {
  return std::shared_ptr<nb::object>(new nb::object(std::move(o)), [](nb::object* p) {
    if (!Py_IsInitialized() || finalizing()) return;  // at the very end there is nobody left to give it to
    if (PyGILState_Check()) {
      delete p;
      return;
    }
    // The interpreter may begin to end while this thread waits for its lock. So it does not wait: the main thread
    // drops the object when it next can, and nobody does where there is no next time.
    Py_AddPendingCall(
        [](void* object) {
          delete static_cast<nb::object*>(object);
          return 0;
        },
        p);
  });
}

std::vector<Secret> secrets_of(const nb::list& list) {
  std::vector<Secret> secrets;
  for (nb::handle h : list) secrets.push_back(h.is_none() ? Secret() : std::move(nb::cast<Secret&>(h)));
  return secrets;
}

// (op, length, block_buffer or -1, block_offset, stream_writer or -1, stream_reader, record, scale, finish, after,
// lanes, sources), as securecoll.plan.ir.encode makes it.
Plan plan_of(const nb::tuple& encoded) {
  Plan plan;
  plan.chunk = nb::cast<uint32_t>(encoded[0]);
  plan.wave = nb::cast<uint32_t>(encoded[1]);
  plan.blocks = nb::cast<uint64_t>(encoded[2]);
  for (nb::handle h : nb::cast<nb::tuple>(encoded[4])) {
    const auto t = nb::cast<nb::tuple>(h);
    PlanStep step;
    step.op = static_cast<StepOp>(nb::cast<uint8_t>(t[0]));
    step.length = nb::cast<uint64_t>(t[1]);
    step.block_buffer = nb::cast<int32_t>(t[2]);
    step.block_offset = nb::cast<uint64_t>(t[3]);
    step.stream_writer = nb::cast<int32_t>(t[4]);
    step.stream_reader = nb::cast<int32_t>(t[5]);
    step.record = nb::cast<uint32_t>(t[6]);
    step.scale = nb::cast<bool>(t[7]);
    step.finish = nb::cast<bool>(t[8]);
    step.after = nb::cast<std::vector<uint32_t>>(t[9]);
    step.lanes = nb::cast<std::vector<uint32_t>>(t[10]);
    for (nb::handle s : nb::cast<nb::tuple>(t[11])) {
      const auto source = nb::cast<nb::tuple>(s);
      PlanSource out{};
      out.is_record = nb::cast<int>(source[0]) == 1;
      if (out.is_record) {
        out.lane = nb::cast<uint32_t>(source[1]);
        out.writer = nb::cast<uint32_t>(source[2]);
        out.reader = nb::cast<int32_t>(source[3]);
        out.record = nb::cast<uint32_t>(source[4]);
      } else {
        out.buffer = nb::cast<uint32_t>(source[1]);
        out.offset = nb::cast<uint64_t>(source[2]);
      }
      step.sources.push_back(out);
    }
    plan.steps.push_back(std::move(step));
  }
  return plan;
}

nb::object counts_of(const uint64_t* counts, uint32_t n) {
  if (!counts) return nb::none();
  nb::list list;
  for (uint32_t i = 0; i < n; i++) list.append(counts[i]);
  return nb::tuple(list);
}

// Handed to its communicator once the handshake is over and everyone was met.
struct PyMesh {
  std::unique_ptr<Mesh> mesh;
  Mesh& get() const {
    if (!mesh) throw EngineError(ErrorKind::closed, "this mesh belongs to a communicator now, or is closed");
    return *mesh;
  }
};

class PyOperation {
 public:
  // `stream`: the caller's, for device memory.
  PyOperation(std::shared_ptr<Communicator> owner, Operation* op, std::vector<nb::object> keep, bool on_device,
              void* stream)
      : owner_(std::move(owner)), op_(op), keep_(std::move(keep)), on_device_(on_device), stream_(stream) {}
  PyOperation(PyOperation&& o) noexcept
      : owner_(std::move(o.owner_)),
        op_(std::exchange(o.op_, nullptr)),
        keep_(std::move(o.keep_)),
        on_device_(o.on_device_),
        stream_(o.stream_) {}
  PyOperation& operator=(PyOperation&& o) noexcept {
    std::swap(owner_, o.owner_);
    std::swap(op_, o.op_);
    std::swap(keep_, o.keep_);
    std::swap(on_device_, o.on_device_);
    std::swap(stream_, o.stream_);
    return *this;
  }
  ~PyOperation() {
    if (!op_) return;
    // The engine may still write into the arrays: they live as long as it may.
    if (!op_->final()) {
      nb::gil_scoped_release free;
      try {
        owner_->wait(*op_, 0);
      } catch (const EngineError&) {  // a forked child's: the parent's threads do not exist here
      }
    }
    Communicator::release(op_);
  }
  // Raises the operation's error, or a timeout when `seconds` passed first. For device memory returns when all of it
  // was handed to the device, and the caller's stream goes on behind it.
  void wait(std::optional<double> seconds) {
    bool reached;
    {
      nb::gil_scoped_release free;
      const int64_t until = seconds ? std::max<int64_t>(1, now_ns() + static_cast<int64_t>(*seconds * 1e9)) : 0;
      reached = owner_->wait(*op_, until, on_device_ ? Communicator::Until::handed : Communicator::Until::final);
      if (reached && on_device_ && op_->state.load() != kFailed) owner_->resume(*op_, stream_);
    }
    if (!reached)
      throw EngineError(ErrorKind::timeout,
                        "rank " + std::to_string(owner_->rank()) + ": " + op_->call.text() +
                            " is still in flight after the given wait; it goes on, and can be waited for again");
    if (op_->state.load() == kFailed) throw EngineError(op_->error);
    if (op_->final()) keep_.clear();
  }
  bool done() const { return op_->final(); }
  uint64_t sequence() const { return op_->sequence; }
  std::string text() const { return op_->call.text(); }
  std::optional<uint32_t> source() const {
    if (op_->call.collective != Collective::receive || op_->state.load() != kDone) return std::nullopt;
    return op_->source;
  }

 private:
  std::shared_ptr<Communicator> owner_;
  Operation* op_;
  std::vector<nb::object> keep_;
  bool on_device_;
  void* stream_;
};

// The communicator as a Python object: closes what a script forgot.
class PyCommunicator {
 public:
  PyCommunicator(uint32_t rank, uint32_t size, uint32_t slot_bytes, double timeout, uint64_t budget_blocks,
                 bool crowded, std::unique_ptr<Mesh> mesh, Roots roots, nb::object planner, nb::object devices,
                 uint8_t suite, const std::optional<std::string>& kernels) {
    Memory* memory = host::memory(host::Suite{suite}, kernels ? kernels->c_str() : nullptr);
    if (!memory)
      throw EngineError(ErrorKind::config, "this CPU has no kernels " + (kernels ? "named " + *kernels + ' ' : "") +
                                               "of suite " + std::to_string(suite));
    auto call = shared(std::move(planner));
    const Planner plan = [call, rank, size, slot_bytes](const sc_request& r, uint8_t algorithm) {
      nb::gil_scoped_acquire gil;
      try {
        nb::object made = (*call)(r.collective, r.dtype, r.redop, r.root, r.count, counts_of(r.send_counts, size),
                                  counts_of(r.recv_counts, size), algorithm);
        const auto parts = nb::cast<nb::tuple>(made);
        auto prepared = std::make_shared<Prepared>();
        prepared->plan = plan_of(nb::cast<nb::tuple>(parts[0]));
        prepared->plan.finish(rank, size, slot_bytes);
        prepared->sealed_descriptor = nb::cast<std::vector<uint64_t>>(parts[1]);
        prepared->opened_descriptor = nb::cast<std::vector<uint64_t>>(parts[2]);
        if (prepared->sealed_descriptor.size() != size || prepared->opened_descriptor.size() != size)
          throw EngineError(ErrorKind::config, "plan refused: one descriptor for each peer is needed");
        return std::shared_ptr<const Prepared>(prepared);
      } catch (nb::python_error& e) {
        throw EngineError(ErrorKind::config, std::string("rank ") + std::to_string(rank) + ": no plan: " + e.what());
      }
    };
    CommunicatorOptions options{rank, size, slot_bytes, static_cast<int64_t>(timeout * 1e9), budget_blocks, crowded};
    communicator_ = std::make_shared<Communicator>(options, std::move(mesh), std::move(roots), memory, plan,
                                                   device_source(std::move(devices), rank, slot_bytes));
  }
  ~PyCommunicator() { sc_release_exported(); }
  PyCommunicator(const PyCommunicator&) = delete;

  std::optional<PyOperation> run(uint8_t collective, const nb::object& input, const nb::object& output, uint8_t redop,
                                 uint32_t root, double factor, const std::optional<std::vector<uint64_t>>& send_counts,
                                 const std::optional<std::vector<uint64_t>>& recv_counts, double timeout,
                                 uint8_t algorithm, bool blocking) {
    Communicator& c = *communicator_;
    const auto what = [&] {
      return "rank " + std::to_string(c.rank()) + ": " + name_of(static_cast<Collective>(collective)) + ": ";
    };  // worded only when there is an error
    Array in, out;
    try {
      if (!input.is_none()) in = array_of<InputArray, DeviceInputArray>(input, "the input", "");
      if (!output.is_none()) out = array_of<OutputArray, DeviceOutputArray>(output, "the output", ", writable");
    } catch (EngineError& e) {
      throw EngineError(e.error().kind, what() + e.error().message);
    }
    if (in.dtype != DType::none && out.dtype != DType::none && in.dtype != out.dtype)
      throw EngineError(ErrorKind::config,
                        what() + "the input is " + name_of(in.dtype) + " and the output " + name_of(out.dtype));
    for (const auto* counts : {&send_counts, &recv_counts})
      if (*counts && (*counts)->size() != c.size())
        throw EngineError(ErrorKind::config,
                          what() + "counts need one entry for each of " + std::to_string(c.size()) + " ranks");
    sc_request r{};
    r.collective = collective;
    r.dtype = static_cast<uint8_t>(in.dtype != DType::none ? in.dtype : out.dtype);
    r.redop = redop;
    r.blocking = blocking;
    r.root = root;
    switch (static_cast<Collective>(collective)) {
      case Collective::reduce_scatter:
      case Collective::scatter:
        r.count = out.elements;
        break;
      case Collective::broadcast:
        r.count = output.is_none() ? in.elements : out.elements;
        break;
      case Collective::all_to_all:
        r.count = in.elements / c.size();
        if (!send_counts && in.elements % c.size())
          throw EngineError(ErrorKind::config, what() + std::to_string(in.elements) +
                                                   " elements do not divide among " + std::to_string(c.size()) +
                                                   " ranks; give counts");
        break;
      default:
        r.count = in.elements;
    }
    if (!input.is_none() && !output.is_none() && in.place != out.place)
      throw EngineError(ErrorKind::config, what() + "the input and the output lie on different devices");
    refuse_overlap(what, r, in, out);
    r.place = std::max(in.place, out.place);
    r.stream = out.stream ? out.stream : in.stream;
    r.factor = factor;
    r.input = &in.segment;
    r.inputs = input.is_none() ? 0 : 1;
    r.output = &out.segment;
    r.outputs = output.is_none() ? 0 : 1;
    r.send_counts = send_counts ? send_counts->data() : nullptr;
    r.recv_counts = recv_counts ? recv_counts->data() : nullptr;
    r.timeout_ns = timeout > 0 ? static_cast<int64_t>(timeout * 1e9) : 0;
    Operation* op;
    {
      nb::gil_scoped_release free;
      op = c.submit(r, algorithm);
      if (blocking && !r.place) c.wait(*op, 0);
    }
    if (!blocking || r.place) {
      PyOperation started(communicator_, op, {std::move(in.keep), std::move(out.keep)}, r.place != 0, r.stream);
      if (!blocking) return started;
      started.wait(std::nullopt);
      lent_.erase(std::remove_if(lent_.begin(), lent_.end(), [](const PyOperation& o) { return o.done(); }),
                  lent_.end());
      if (!started.done()) lent_.push_back(std::move(started));  // the device still works on its arrays
      return std::nullopt;
    }
    Error error;
    if (op->state.load() == kFailed) error = op->error;
    Communicator::release(op);
    if (error) throw EngineError(std::move(error));
    return std::nullopt;
  }

  // Sends `array`, or receives into it; with `blocking` returns the source, else an operation.
  nb::object exchange(bool sends, const nb::object& array, std::optional<uint32_t> peer, uint64_t tag, double timeout,
                      bool blocking) {
    Communicator& c = *communicator_;
    const auto direction = sends ? Collective::send : Collective::receive;
    Array a;
    try {
      a = sends ? array_of<InputArray, DeviceInputArray>(array, "the data", "")
                : array_of<OutputArray, DeviceOutputArray>(array, "the buffer", ", writable");
    } catch (EngineError& e) {
      throw EngineError(e.error().kind,
                        "rank " + std::to_string(c.rank()) + ": " + name_of(direction) + ": " + e.error().message);
    }
    sc_message m{};
    m.dtype = static_cast<uint8_t>(a.dtype);
    m.blocking = blocking;
    m.peer = peer.value_or(kAnySource);
    m.tag = tag;
    m.segments = &a.segment;
    m.count = 1;
    m.place = a.place;
    m.timeout_ns = timeout > 0 ? static_cast<int64_t>(timeout * 1e9) : 0;
    Operation* op;
    {
      nb::gil_scoped_release free;
      op = c.exchange(m, direction);
    }
    PyOperation started(communicator_, op, {std::move(a.keep)}, false, nullptr);
    if (!blocking) return nb::cast(std::move(started));
    started.wait(std::nullopt);
    return nb::cast(started.source());
  }

  nb::object capsule() {
    if (!exported_) exported_ = export_communicator(communicator_);
    engine_table().retain(exported_);
    return nb::steal(PyCapsule_New(exported_, SC_COMMUNICATOR_CAPSULE, [](PyObject* o) {
      engine_table().release(static_cast<sc_communicator*>(PyCapsule_GetPointer(o, SC_COMMUNICATOR_CAPSULE)));
    }));
  }

  void close() {
    {
      nb::gil_scoped_release free;
      communicator_->close();
    }
    lent_.clear();
  }
  void abort(const std::string& reason) {
    nb::gil_scoped_release free;
    communicator_->abort(reason);
  }
  std::shared_ptr<Communicator> communicator_;

 private:
  void sc_release_exported() {
    if (exported_) engine_table().release(exported_);
  }

  // In place means exactly in place: the same memory, or the own part of the larger side.
  static bool overlaps(const Array& a, const Array& b) {
    const auto x = reinterpret_cast<uintptr_t>(a.segment.data), y = reinterpret_cast<uintptr_t>(b.segment.data);
    return a.segment.bytes && b.segment.bytes && x < y + b.segment.bytes && y < x + a.segment.bytes;
  }
  template <class What>
  void refuse_overlap(const What& what, const sc_request& r, const Array& in, const Array& out) const {
    if (!overlaps(in, out)) return;
    const auto x = reinterpret_cast<uintptr_t>(in.segment.data), y = reinterpret_cast<uintptr_t>(out.segment.data);
    const uint64_t part = r.count * element_bytes(static_cast<DType>(r.dtype)) * communicator_->rank();
    bool fine = false;
    switch (static_cast<Collective>(r.collective)) {
      case Collective::all_gather:
      case Collective::gather:
        fine = x == y + part;
        break;
      case Collective::reduce_scatter:
      case Collective::scatter:
        fine = y == x + part;
        break;
      case Collective::all_to_all:
        break;
      default:
        fine = x == y;
    }
    if (!fine)
      throw EngineError(ErrorKind::config,
                        what() + "the input and the output overlap, and not as in-place operation allows");
  }

  // Asks Python for the device, and says how it is used.
  static DeviceSource device_source(nb::object devices, uint32_t rank, uint32_t slot_bytes) {
    if (devices.is_none()) return nullptr;
    auto call = shared(std::move(devices));
    return [call, rank, slot_bytes](uint32_t ordinal, const Mesh* mesh) {
      nb::gil_scoped_acquire gil;
      try {
        nb::object made = (*call)(ordinal);
        cuda::DeviceMemoryOptions options;
        options.slot_bytes = slot_bytes;
        options.mapped = nb::cast<bool>(made.attr("mapped"));
        options.copies_block = nb::cast<bool>(made.attr("copies_block"));
        if (mesh) options.ranges = mesh->ranges();
        const auto device = nb::cast<PyDevice&>(made.attr("engine")).device;
        std::unique_ptr<Memory> memory;
        {
          nb::gil_scoped_release free;
          memory = cuda::device_memory(device, options);
        }
        made.attr("started")(rank, cuda::device_mode(*memory));
        return memory;
      } catch (nb::python_error& e) {
        throw EngineError(ErrorKind::config, "rank " + std::to_string(rank) +
                                                 ": no device: " + nb::cast<std::string>(nb::str(e.value())));
      } catch (EngineError& e) {
        throw EngineError(e.error().kind, "rank " + std::to_string(rank) + ": " + e.error().message);
      }
    };
  }

  std::vector<PyOperation> lent_;
  sc_communicator* exported_ = nullptr;
};

}  // namespace

void bind_engine(nb::module_& m) {
  // Every engine error becomes its class of securecoll.errors.
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const EngineError& e) {
      nb::object error = nb::module_::import_("securecoll.errors")
                             .attr("from_kind")(static_cast<int>(e.error().kind), e.error().message);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    }
  });

  nb::class_<PyMesh>(m, "Mesh", "What connects a rank with its peers: shared memory and sockets.")
      .def(
          "__init__",
          [](PyMesh* self, uint32_t rank, uint32_t size, uint32_t slot_bytes, uint32_t depth, bool shared,
             const std::vector<std::string>& addresses) {
            if (size < 2 || rank >= size || slot_bytes == 0 || slot_bytes % 64 || depth == 0)
              throw EngineError(ErrorKind::config,
                                "a mesh needs 0 <= rank < size, 2 <= size, slots of a multiple of 64 bytes");
            nb::gil_scoped_release free;
            std::vector<Address> listen;
            for (const std::string& a : addresses) listen.push_back(Address::parse(a));
            new (self) PyMesh{std::make_unique<Mesh>(rank, SegmentShape{size, slot_bytes, depth}, shared, listen)};
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("slot_bytes"), nb::arg("depth"), nb::arg("shared"),
          nb::arg("addresses"))
      .def(
          "endpoint",
          [](const PyMesh& m) {
            const auto e = m.get().endpoint();
            return nb::bytes(e.data(), e.size());
          },
          "What peers need to reach this rank: goes into the authenticated handshake.")
      .def(
          "connect",
          [](PyMesh& m, const nb::list& endpoints, uint32_t slot_bytes) {
            std::vector<std::string> texts;
            for (nb::handle h : endpoints) {
              const auto b = nb::cast<nb::bytes>(h);
              texts.emplace_back(b.c_str(), b.size());
            }
            Mesh& mesh = m.get();
            nb::gil_scoped_release free;
            mesh.connect(texts, slot_bytes);
          },
          nb::arg("endpoints"), nb::arg("slot_bytes"),
          "Before this rank confirms: looks which peers share memory with it.")
      .def(
          "agree",
          [](PyMesh& m, const nb::list& conn_tx, const nb::list& conn_rx, std::vector<uint32_t> hosts) {
            m.get().agree(secrets_of(conn_tx), secrets_of(conn_rx), std::move(hosts));
          },
          nb::arg("conn_tx"), nb::arg("conn_rx"), nb::arg("hosts"),
          "Once everyone confirmed: settles who does. Takes over the roots of connections, by peer.")
      .def(
          "meet",
          [](PyMesh& m, double seconds) {
            Mesh& mesh = m.get();
            nb::gil_scoped_release free;
            return mesh.meet(now_ns() + static_cast<int64_t>(seconds * 1e9));
          },
          nb::arg("seconds"), "Meets the peers that do not, for so long at most. Whether all were met.")
      .def(
          "missing", [](const PyMesh& m) { return m.get().missing(); }, "Who was not met, and why.")
      .def(
          "strangers", [](const PyMesh& m) { return nb::make_tuple(m.get().strangers(), m.get().last_stranger()); },
          "Connections so far that proved nothing, and what is to be said of the last.")
      .def(
          "is_shared", [](const PyMesh& m, uint32_t peer) { return m.get().is_shared(peer); }, nb::arg("peer"))
      .def(
          "why_not_shared", [](const PyMesh& m, uint32_t peer) { return m.get().why_not_shared(peer); },
          nb::arg("peer"))
      .def("close", [](PyMesh& m) { m.mesh.reset(); }, "Gives everything back, when joining failed.");
  m.def(
      "interfaces",
      [] {
        nb::list found;
        for (const Interface& i : interfaces()) found.append(nb::make_tuple(i.name, i.address, i.loopback));
        return found;
      },
      "Name, address and whether it is a loopback, of each address of the interfaces that are up.");
  m.def("neighbours", &Mesh::neighbours, nb::arg("rank"), nb::arg("size"),
        "The ranks that a rank has sockets with from the start, but for those that share memory with it.");
  m.def(
      "segment_bytes",
      [](uint32_t size, uint32_t slot_bytes, uint32_t depth, uint32_t here) {
        return SegmentShape{size, slot_bytes, depth}.needed(here);
      },
      nb::arg("size"), nb::arg("slot_bytes"), nb::arg("depth"), nb::arg("here"),
      "Bytes that one rank's segment takes where `here` of the ranks share memory, but for messages.");

  nb::class_<PyOperation>(m, "Operation", "One collective in flight.")
      .def("wait", &PyOperation::wait, nb::arg("timeout") = nb::none())
      .def("done", &PyOperation::done)
      .def_prop_ro("sequence", &PyOperation::sequence)
      .def_prop_ro("source", &PyOperation::source)
      .def("__repr__", [](const PyOperation& op) {
        return "<Operation " + op.text() + (op.done() ? ", final>" : ", in flight>");
      });

  nb::class_<PyCommunicator>(m, "Communicator", "One rank's end of a group; use securecoll.Communicator.")
      .def(
          "__init__",
          [](PyCommunicator* self, uint32_t rank, uint32_t size, uint32_t slot_bytes, double timeout,
             uint64_t budget_blocks, bool crowded, PyMesh* mesh, const nb::list& link_tx, const nb::list& link_rx,
             const nb::list& p2p_tx, const nb::list& p2p_rx, const nb::list& control_tx, const nb::list& control_rx,
             const nb::list& sender, nb::object planner, nb::object devices, uint8_t suite,
             const std::optional<std::string>& kernels) {
            Roots roots{secrets_of(link_tx),    secrets_of(link_rx),    secrets_of(p2p_tx), secrets_of(p2p_rx),
                        secrets_of(control_tx), secrets_of(control_rx), secrets_of(sender)};
            new (self) PyCommunicator(rank, size, slot_bytes, timeout, budget_blocks, crowded,
                                      mesh ? std::move(mesh->mesh) : nullptr, std::move(roots), std::move(planner),
                                      std::move(devices), suite, kernels);
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("slot_bytes"), nb::arg("timeout"), nb::arg("budget_blocks"),
          nb::arg("crowded"), nb::arg("mesh").none(), nb::arg("link_tx"), nb::arg("link_rx"), nb::arg("p2p_tx"),
          nb::arg("p2p_rx"), nb::arg("control_tx"), nb::arg("control_rx"), nb::arg("sender"), nb::arg("planner"),
          nb::arg("devices").none(), nb::arg("suite") = 1, nb::arg("kernels") = nb::none())
      .def("run", &PyCommunicator::run, nb::arg("collective"), nb::arg("input").none(), nb::arg("output").none(),
           nb::arg("redop") = 0, nb::arg("root") = 0, nb::arg("factor") = 1.0, nb::arg("send_counts") = nb::none(),
           nb::arg("recv_counts") = nb::none(), nb::arg("timeout") = 0.0, nb::arg("algorithm") = 0,
           nb::arg("blocking") = true)
      .def("exchange", &PyCommunicator::exchange, nb::arg("sends"), nb::arg("array"), nb::arg("peer").none(),
           nb::arg("tag"), nb::arg("timeout") = 0.0, nb::arg("blocking") = true)
      .def_prop_ro("capsule", &PyCommunicator::capsule)
      .def(
          "drain",
          [](const PyCommunicator& c, double seconds) {
            nb::gil_scoped_release free;
            return c.communicator_->drain(now_ns() + static_cast<int64_t>(seconds * 1e9));
          },
          nb::arg("seconds"), "Whether nothing is in flight any more, after so long at most.")
      .def("close", &PyCommunicator::close)
      .def("abort", &PyCommunicator::abort)
      .def(
          "error",
          [](const PyCommunicator& c) -> nb::object {
            const Error e = c.communicator_->error();
            if (!e) return nb::none();
            return nb::module_::import_("securecoll.errors").attr("from_kind")(static_cast<int>(e.kind), e.message);
          },
          "The first error, or None while usable.")
      .def("set_timeout",
           [](PyCommunicator& c, double s) { c.communicator_->set_timeout(static_cast<int64_t>(s * 1e9)); })
      .def_prop_ro("epoch", [](const PyCommunicator& c) { return c.communicator_->epoch(); })
      .def_prop_ro("sequence", [](const PyCommunicator& c) { return c.communicator_->last_sequence(); })
      .def_prop_ro("mapped_bytes", [](const PyCommunicator& c) { return c.communicator_->mapped_bytes(); })
      .def("strangers",
           [](const PyCommunicator& c) {
             const auto [count, last] = c.communicator_->strangers();
             return nb::make_tuple(count, last);
           })
      .def_prop_ro("reached", [](const PyCommunicator& c) { return c.communicator_->reached(); })
      .def("counters", [](const PyCommunicator& c) {
        const Counters& k = c.communicator_->counters();
        return nb::make_tuple(k.bytes_sealed.load(), k.bytes_opened.load(), k.records_sealed.load(),
                              k.records_opened.load(), k.records_far.load(),
                              static_cast<double>(k.waiting_ns.load()) / 1e9, k.operations.load());
      });

  m.def("set_threads", &pool::set_threads, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
        "Progress threads of this process, at least 1.");
  // The address of a constant: the capsule owns nothing.
  m.attr("table") = nb::steal(PyCapsule_New(const_cast<sc_table*>(&engine_table()), SC_TABLE_CAPSULE, nullptr));
}
