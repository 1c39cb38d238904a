// The host kernels for Python: for tests, and for `securecoll doctor`. Collectives do not come through here, and no
// key of a communicator does.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/arena.hpp"
#include "host/aead.hpp"
#include "host/reduce.hpp"
#include "module.hpp"

namespace nb = nanobind;

namespace {

using namespace securecoll;
using namespace securecoll::host;

// A contiguous buffer of a Python object, held while this lives.
class Buffer {
 public:
  Buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

void require_size(const char* what, size_t got, size_t expected) {
  if (got == expected) return;
  throw nb::value_error(
      (std::string(what) + " must have " + std::to_string(expected) + " bytes, not " + std::to_string(got)).c_str());
}

size_t text_bytes(size_t sealed_bytes) {
  if (sealed_bytes < kTagBytes) {
    throw nb::value_error(
        ("a sealed record ends with a tag of 16 bytes, and this one has " + std::to_string(sealed_bytes) + " in all")
            .c_str());
  }
  return sealed_bytes - kTagBytes;
}

const AeadKernels& set_named(const std::string& name) {
  if (const AeadKernels* set = aead_by_name(name.c_str())) return *set;
  throw nb::value_error(("no AEAD kernels \"" + name + "\" on this CPU; see aead_names()").c_str());
}

// "NAME/far" is set NAME with seal_far and open_far in the places of seal and open.
constexpr char kFar[] = "/far";
bool is_far(const std::string& name) {
  const size_t n = sizeof kFar - 1;
  return name.size() > n && name.compare(name.size() - n, n, kFar) == 0;
}
std::string without_far(const std::string& name) {
  return is_far(name) ? name.substr(0, name.size() - (sizeof kFar - 1)) : name;
}

// A key expanded for one set of kernels.
class Aead {
 public:
  Aead(const std::string& set, nb::handle key)
      : set_(set_named(without_far(set))),
        seal_(is_far(set) ? set_.seal_far : set_.seal),
        open_(is_far(set) ? set_.open_far : set_.open),
        key_(sizeof(AeadKey)) {
    if (seal_ == nullptr || open_ == nullptr)
      throw nb::value_error((set + ": these kernels store in one way").c_str());
    const Buffer raw(key, false);
    require_size("the key", raw.size(), kKeyBytes);
    set_.expand(reinterpret_cast<AeadKey*>(key_.data()), raw.data());
  }

  nb::bytes seal(nb::handle nonce, nb::handle aad, nb::handle plain) const {
    const Buffer p(plain, false);
    nb::bytes sealed =
        nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(p.size() + kTagBytes)));
    if (!sealed.is_valid()) throw nb::python_error();
    seal_record(nonce, aad, p, reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(sealed.ptr())));
    return sealed;
  }

  void seal_into(nb::handle nonce, nb::handle aad, nb::handle plain, nb::handle sealed) const {
    const Buffer p(plain, false), out(sealed, true);
    require_size("`sealed`", out.size(), p.size() + kTagBytes);
    seal_record(nonce, aad, p, out.data());
  }

  std::optional<nb::bytes> open(nb::handle nonce, nb::handle aad, nb::handle sealed) const {
    const Buffer s(sealed, false);
    const size_t bytes = text_bytes(s.size());
    nb::bytes plain = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!plain.is_valid()) throw nb::python_error();
    if (!open_record(nonce, aad, s, bytes, reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(plain.ptr()))))
      return std::nullopt;
    return plain;
  }

  bool open_into(nb::handle nonce, nb::handle aad, nb::handle sealed, nb::handle plain) const {
    const Buffer s(sealed, false), out(plain, true);
    const size_t bytes = text_bytes(s.size());
    require_size("`plain`", out.size(), bytes);
    return open_record(nonce, aad, s, bytes, out.data());
  }

 private:
  const AeadKey& key() const { return *reinterpret_cast<const AeadKey*>(key_.data()); }

  void seal_record(nb::handle nonce, nb::handle aad, const Buffer& plain, uint8_t* sealed) const {
    const Buffer n(nonce, false), a(aad, false);
    require_size("the nonce", n.size(), kNonceBytes);
    const nb::gil_scoped_release released;
    seal_(key(), n.data(), a.data(), a.size(), plain.data(), plain.size(), sealed, sealed + plain.size());
  }

  // What did not verify is not left behind.
  bool open_record(nb::handle nonce, nb::handle aad, const Buffer& sealed, size_t bytes, uint8_t* plain) const {
    const Buffer n(nonce, false), a(aad, false);
    require_size("the nonce", n.size(), kNonceBytes);
    const nb::gil_scoped_release released;
    if (open_(key(), n.data(), a.data(), a.size(), sealed.data(), bytes, sealed.data() + bytes, plain, nullptr)) {
      return true;
    }
    std::memset(plain, 0, bytes);
    return false;
  }

  const AeadKernels& set_;
  const decltype(AeadKernels::seal) seal_;
  const decltype(AeadKernels::open) open_;
  Secret key_;
};

// Seconds that one call of `work` takes: the least mean over slices of a run of about `seconds`.
template <class Work>
double best_seconds(double seconds, const Work& work) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  auto start = Clock::now();
  work();  // brings code and data into the caches
  constexpr int slices = 10;
  const int calls = std::max(1, static_cast<int>(seconds / slices / std::max(since(start), 1e-8)));
  double best = seconds;
  start = Clock::now();
  do {
    const auto slice = Clock::now();
    for (int i = 0; i < calls; ++i) work();
    best = std::min(best, since(slice) / calls);
  } while (since(start) < seconds);
  return best;
}

std::pair<double, double> aead_rate(const std::string& name, size_t bytes, double seconds) {
  const AeadKernels& set = set_named(name);
  if (bytes == 0 || !(seconds > 0 && seconds <= 60)) {
    throw nb::value_error("aead_rate() needs bytes > 0 and 0 < seconds <= 60");
  }
  const nb::gil_scoped_release released;
  AeadKey key;
  const uint8_t raw[kKeyBytes] = {1}, nonce[kNonceBytes] = {}, aad[32] = {};
  set.expand(&key, raw);
  std::vector<uint8_t> plain(bytes), sealed(bytes + kTagBytes);
  const double seal = best_seconds(seconds / 2, [&] {
    set.seal(key, nonce, aad, sizeof aad, plain.data(), bytes, sealed.data(), sealed.data() + bytes);
  });
  bool verified = true;
  const double open = best_seconds(seconds / 2, [&] {
    verified =
        set.open(key, nonce, aad, sizeof aad, sealed.data(), bytes, sealed.data() + bytes, plain.data(), nullptr) &&
        verified;
  });
  if (!verified) throw std::runtime_error("a record that was just sealed does not open");
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  return {gigabytes / seal, gigabytes / open};
}

ReduceFn reduction(const std::string& isa, int dtype, int op) {
  if (dtype < 0 || dtype >= kDTypes || op < 0 || op >= kRedOps) return nullptr;
  return reduce_kernel_for(isa.c_str(), static_cast<DType>(dtype), static_cast<RedOp>(op));
}

void reduce(const std::string& isa, int dtype, int op, nb::handle dst, nb::handle a, std::optional<nb::handle> b,
            size_t count, double factor, uint32_t world, uint32_t flags) {
  const ReduceFn kernel = reduction(isa, dtype, op);
  if (kernel == nullptr) throw nb::value_error("no such reduction, or no such instruction set on this CPU");
  if (world == 0) throw nb::value_error("world must be at least 1");
  const size_t element = element_bytes(static_cast<DType>(dtype)), wide = accumulator_bytes(static_cast<DType>(dtype));
  const Buffer out(dst, true), left(a, false);
  std::optional<Buffer> right;
  if (b) right.emplace(*b, false);
  require_size("`dst`", out.size(), count * (flags & kOutIsAccumulator ? wide : element));
  require_size("`a`", left.size(), count * (flags & kAIsAccumulator ? wide : element));
  if (right) require_size("`b`", right->size(), count * element);
  const nb::gil_scoped_release released;
  kernel({out.data(), left.data(), right ? right->data() : nullptr, count, factor, world, flags});
}

}  // namespace

void bind_host(nb::module_& m) {
  m.def(
      "aead_name",
      [](uint8_t suite) {
        if (const AeadKernels* chosen = aead(Suite{suite})) return std::string(chosen->name);
        throw nb::value_error(("this CPU has no kernels of suite " + std::to_string(suite)).c_str());
      },
      nb::arg("suite") = 1, "The kernels that seal and open records of a suite on this CPU.");
  m.def(
      "aead_names",
      [](uint8_t suite) {
        std::vector<std::string> names;
        for (const char* const* name = aead_names(Suite{suite}); *name != nullptr; ++name) names.emplace_back(*name);
        return names;
      },
      nb::arg("suite") = 1,
      "All kernels of a suite that this CPU runs, fastest first; their known answers were checked.");
  m.def("aead_rate", aead_rate, nb::arg("name"), nb::arg("bytes"), nb::arg("seconds") = 0.1,
        "GB/s (1e9 bytes) at which records of `bytes` are sealed and opened in cache on one core, measured for "
        "about `seconds` in all.");

  nb::class_<Aead>(m, "Aead", "The AEAD of a set of kernels under one key, for tests and measurements.")
      .def(nb::init<const std::string&, nb::handle>(), nb::arg("name"), nb::arg("key"))
      .def("seal", &Aead::seal, nb::arg("nonce"), nb::arg("aad"), nb::arg("plain"),
           "ciphertext || tag. The nonce has 12 bytes.")
      .def("open", &Aead::open, nb::arg("nonce"), nb::arg("aad"), nb::arg("sealed"),
           nb::sig("def open(self, nonce, aad, sealed) -> bytes | None"),
           "The plaintext, or None when the tag, the last 16 bytes of `sealed`, does not verify.")
      .def("seal_into", &Aead::seal_into, nb::arg("nonce"), nb::arg("aad"), nb::arg("plain"), nb::arg("sealed"),
           "Seals into a buffer of 16 bytes more than `plain`, without the GIL; `sealed` may be shared memory.")
      .def(
          "open_into", &Aead::open_into, nb::arg("nonce"), nb::arg("aad"), nb::arg("sealed"), nb::arg("plain"),
          "Opens into a buffer of 16 bytes less than `sealed`, without the GIL; `sealed` may be shared memory. False, "
          "and zeros, when the tag does not verify.");

  m.def("reduce_isa", [] { return std::string(reduce_isa()); }, "The instruction set that reductions run with.");
  m.def(
      "reducible", [](const std::string& isa, int dtype, int op) { return reduction(isa, dtype, op) != nullptr; },
      nb::arg("isa"), nb::arg("dtype"), nb::arg("op"),
      "Whether elements of `dtype` can be reduced by `op` (codes.DType, codes.ReduceOp) with `isa` on this CPU.");
  m.def(
      "accumulator_bytes", [](uint8_t dtype) { return accumulator_bytes(static_cast<DType>(dtype)); },
      nb::arg("dtype"), "Bytes of an accumulator element of a dtype.");
  m.def("reduce", reduce, nb::arg("isa"), nb::arg("dtype"), nb::arg("op"), nb::arg("dst"), nb::arg("a"),
        nb::arg("b").none(), nb::arg("count"), nb::arg("factor") = 1.0, nb::arg("world") = 1, nb::arg("flags") = 0,
        "One reduction over buffers of `count` elements, without the GIL; for tests. `flags` as in reduce.hpp.");
}
