// All reductions, for the instruction set that the including file selected with `#pragma GCC target`, in the
// namespace it named SC_REDUCE_ISA. Loops are plain enough for the compiler to vectorise; only float16 is better off
// with instructions of its own, if the file says that it may use those of F16C: SC_REDUCE_F16C.
//
// What is done with one element, and why results are equal on every instruction set, stands in reduce_element.inl.
//
// Nothing here may be merged with code for another instruction set: no function of the standard library, all in an
// unnamed namespace.

namespace securecoll::host::SC_REDUCE_ISA {
namespace {

template <class T>
inline T load(const void* p, size_t i) {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
inline void store(void* p, size_t i, T value) {
  __builtin_memcpy(static_cast<char*>(p) + i * sizeof(T), &value, sizeof(T));
}

inline uint32_t bits_of(float x) { return load<uint32_t>(&x, 0); }
inline uint64_t bits_of(double x) { return load<uint64_t>(&x, 0); }
inline float float_of(uint32_t bits) { return load<float>(&bits, 0); }
inline double double_of(uint64_t bits) { return load<double>(&bits, 0); }

template <class T>
inline bool unordered(T a, T b) {
  return __builtin_isunordered(a, b);
}

#define SC_ELEMENT inline
#include "reduce_element.inl"
#undef SC_ELEMENT

// Loops over elements stand alone, not inlined: the functions made below share them.
#define SC_LOOP __attribute__((noinline))

template <class Format>
SC_LOOP void widen(typename Format::Acc* out, const void* in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = Format::widened(load<typename Format::Element>(in, i));
}

template <class Format>
SC_LOOP void narrow(void* out, const typename Format::Acc* in, size_t n) {
  for (size_t i = 0; i < n; ++i) store(out, i, Format::narrowed(in[i]));
}

#ifdef SC_REDUCE_F16C
inline __m256 settle(__m256 x) {
  return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

template <>
SC_LOOP void widen<Float16>(float* out, const void* in, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, settle(_mm256_cvtph_ps(load<__m128i_u>(in, i / 8))));
  for (; i < n; ++i) out[i] = Float16::widened(load<uint16_t>(in, i));
}

template <>
SC_LOOP void narrow<Float16>(void* out, const float* in, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = settle(_mm256_loadu_ps(in + i));
    store<__m128i_u>(out, i / 8, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < n; ++i) store(out, i, Float16::narrowed(in[i]));
}
#endif

// Outputs may be inputs, exactly: no iteration reads what another writes.

template <class Op, class T>
SC_LOOP void combine(void* dst, const void* a, const void* b, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) store(dst, i, Op::apply(load<T>(a, i), load<T>(b, i)));
}

template <class T>
SC_LOOP void divide_all(void* p, size_t n, uint32_t world) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) store(p, i, divide(load<T>(p, i), world));
}

template <class T>
SC_LOOP void scale_all(T* out, const void* in, size_t n, double factor) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = scale(load<T>(in, i), factor);
}

// ---- one block after another ----

// Elements converted at a time, through buffers that stay in the L1 cache.
constexpr size_t kBlock = 512;

// `n` accumulator elements of one operand: where they lie, if they can be used from there, else in `buffer`.
template <class Format, class Op>
const void* operand(const void* from, size_t start, size_t n, bool accumulator, bool scaled, double factor,
                    typename Format::Acc* buffer) {
  using Acc = typename Format::Acc;
  const bool direct = Format::kDirect || (Format::kWidens && accumulator);
  const size_t element = direct ? sizeof(Acc) : sizeof(typename Format::Element);
  const void* p = static_cast<const char*>(from) + start * element;
  if (direct && !(Op::kScales && scaled)) return p;
  if constexpr (!Format::kDirect) {
    if (!direct) widen<Format>(buffer, p, n);
  }
  if constexpr (Op::kScales) {
    if (scaled) scale_all<Acc>(buffer, direct ? p : buffer, n, factor);
  }
  return buffer;
}

template <class Format, class Op, class Unsigned = typename Format::Acc>
void reduce(const ReduceArgs& r) {
  using Acc = typename Format::Acc;
  const bool scale_a = r.flags & kScaleA, scale_b = r.flags & kScaleB, finish = Op::kDivides && (r.flags & kFinish);
  if (Format::kDirect && r.b != nullptr && !finish && !(Op::kScales && (scale_a || scale_b))) {
    return combine<Op, Unsigned>(r.dst, r.a, r.b, r.count);
  }
  const bool wide_a = r.flags & kAIsAccumulator, wide_out = Format::kWidens && (r.flags & kOutIsAccumulator);
  const bool direct_out = Format::kDirect || wide_out;
  alignas(64) Acc left[kBlock], right[kBlock];
  for (size_t start = 0; start < r.count; start += kBlock) {
    const size_t n = r.count - start < kBlock ? r.count - start : kBlock;
    const void* a = operand<Format, Op>(r.a, start, n, wide_a, scale_a, r.factor, left);
    char* dst = static_cast<char*>(r.dst) + start * (wide_out ? sizeof(Acc) : sizeof(typename Format::Element));
    // Where the result is made: in place, if it stays in this form.
    void* result = direct_out ? static_cast<void*>(dst) : left;
    if (r.b != nullptr) {
      combine<Op, Unsigned>(result, a, operand<Format, Op>(r.b, start, n, false, scale_b, r.factor, right), n);
    } else if (result != a) {
      __builtin_memmove(result, a, n * sizeof(Acc));
    }
    if constexpr (Op::kDivides) {
      if (finish) divide_all<Acc>(result, n, r.world);
    }
    if constexpr (!Format::kDirect) {
      if (!direct_out) narrow<Format>(dst, left, n);
    }
  }
}

// A complex number is two components for all that works on each alone.
template <ReduceFn kOnComponents>
void componentwise(const ReduceArgs& r) {
  ReduceArgs twice = r;
  twice.count *= 2;
  kOnComponents(twice);
}

template <class T>
void complex_product(const ReduceArgs& r) {
  if (r.b == nullptr) {
    if (r.dst != r.a) __builtin_memmove(r.dst, r.a, r.count * 2 * sizeof(T));
    return;
  }
#pragma GCC ivdep
  for (size_t i = 0; i < r.count; ++i) {
    const T ar = load<T>(r.a, 2 * i), ai = load<T>(r.a, 2 * i + 1);
    const T br = load<T>(r.b, 2 * i), bi = load<T>(r.b, 2 * i + 1);
    store(r.dst, 2 * i, settle(ar * br - ai * bi));
    store(r.dst, 2 * i + 1, settle(ar * bi + ai * br));
  }
}

// ---- which function does what ----

template <class Format>
ReduceFn floating(RedOp op) {
  switch (op) {
    case RedOp::sum:
      return reduce<Format, Sum>;
    case RedOp::avg:
      return reduce<Format, Average>;
    case RedOp::product:
      return reduce<Format, Product>;
    case RedOp::min:
      return reduce<Format, Min>;
    case RedOp::max:
      return reduce<Format, Max>;
    case RedOp::premul_sum:
      return reduce<Format, ScaledSum>;
    default:
      return nullptr;
  }
}

template <class T>
ReduceFn complex(RedOp op) {
  switch (op) {
    case RedOp::sum:
      return componentwise<reduce<Native<T>, Sum>>;
    case RedOp::avg:
      return componentwise<reduce<Native<T>, Average>>;
    case RedOp::product:
      return complex_product<T>;
    case RedOp::premul_sum:
      return componentwise<reduce<Native<T>, ScaledSum>>;
    default:
      return nullptr;
  }
}

// Sums, products and bits of signed integers are those of the unsigned type: defined where they wrap.
template <class T, class Unsigned>
ReduceFn integer(RedOp op) {
  switch (op) {
    case RedOp::sum:
      return reduce<Native<Unsigned>, Sum>;
    case RedOp::avg:
      return reduce<Native<T>, Average, Unsigned>;
    case RedOp::product:
      return reduce<Native<Unsigned>, Product>;
    case RedOp::min:
      return reduce<Native<T>, Min>;
    case RedOp::max:
      return reduce<Native<T>, Max>;
    case RedOp::band:
      return reduce<Native<Unsigned>, BitAnd>;
    case RedOp::bor:
      return reduce<Native<Unsigned>, BitOr>;
    case RedOp::bxor:
      return reduce<Native<Unsigned>, BitXor>;
    case RedOp::premul_sum:
      return reduce<Native<T>, ScaledSum, Unsigned>;
    default:
      return nullptr;
  }
}

ReduceFn boolean(RedOp op) {
  switch (op) {
    case RedOp::sum:
    case RedOp::max:
    case RedOp::bor:
      return reduce<Boolean, BitOr>;
    case RedOp::product:
    case RedOp::min:
    case RedOp::band:
      return reduce<Boolean, BitAnd>;
    case RedOp::bxor:
      return reduce<Boolean, BitXor>;
    default:
      return nullptr;
  }
}

}  // namespace

ReduceFn kernel(DType dtype, RedOp op) {
  switch (dtype) {
    case DType::u8:
      return integer<uint8_t, uint8_t>(op);
    case DType::i8:
      return integer<int8_t, uint8_t>(op);
    case DType::u16:
      return integer<uint16_t, uint16_t>(op);
    case DType::i16:
      return integer<int16_t, uint16_t>(op);
    case DType::u32:
      return integer<uint32_t, uint32_t>(op);
    case DType::i32:
      return integer<int32_t, uint32_t>(op);
    case DType::u64:
      return integer<uint64_t, uint64_t>(op);
    case DType::i64:
      return integer<int64_t, uint64_t>(op);
    case DType::f16:
      return floating<Float16>(op);
    case DType::bf16:
      return floating<BFloat16>(op);
    case DType::f32:
      return floating<Native<float>>(op);
    case DType::f64:
      return floating<Native<double>>(op);
    case DType::c64:
      return complex<float>(op);
    case DType::c128:
      return complex<double>(op);
    case DType::boolean:
      return boolean(op);
    case DType::f8e4m3fn:
      return floating<Float8E4M3FN>(op);
    case DType::f8e5m2:
      return floating<Float8E5M2>(op);
    case DType::f8e4m3fnuz:
      return floating<Float8E4M3FNUZ>(op);
    case DType::f8e5m2fnuz:
      return floating<Float8E5M2FNUZ>(op);
    case DType::none:
      break;
  }
  return nullptr;
}

}  // namespace securecoll::host::SC_REDUCE_ISA
