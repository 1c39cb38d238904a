// All reductions, for the instruction set that the including file selected with `#pragma GCC target`, in the
// namespace it named SC_REDUCE_ISA. Loops are plain enough for the compiler to vectorise; only float16 needs help.
//
// Equal results on every instruction set: no contraction of a*b+c (-ffp-contract=off), no reassociation, and every
// NaN that arithmetic gives is replaced by the positive quiet one, for which of two NaNs an instruction passes on
// depends on the order of its operands, which is the compiler's choice.
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
inline float float_of(uint32_t bits) { return load<float>(&bits, 0); }

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;
template <>
constexpr bool kIsFloat<double> = true;

inline float quiet_nan(float) { return __builtin_nanf(""); }
inline double quiet_nan(double) { return __builtin_nan(""); }

template <class T>
inline T settle(T x) {
  return x == x ? x : quiet_nan(x);
}

// ---- operations on two accumulator elements ----

struct Sum {
  static constexpr bool kDivides = false, kScales = false;
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsFloat<T>)
      return settle(a + b);
    else
      return static_cast<T>(a + b);  // T is unsigned: wraps
  }
};
struct Average : Sum {
  static constexpr bool kDivides = true;
};
struct ScaledSum : Sum {
  static constexpr bool kScales = true;
};
struct Plain {
  static constexpr bool kDivides = false, kScales = false;
};
struct Product : Plain {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsFloat<T>)
      return settle(a * b);
    else
      return static_cast<T>(uint64_t{a} * b);  // through 64 bits: the product of two uint16_t overflows int
  }
};
struct Min : Plain {
  template <class T>
  static T apply(T a, T b) {
    const T least = a < b ? a : b;
    if constexpr (kIsFloat<T>)
      return __builtin_isunordered(a, b) ? quiet_nan(a) : least;
    else
      return least;
  }
};
struct Max : Plain {
  template <class T>
  static T apply(T a, T b) {
    const T greatest = a > b ? a : b;
    if constexpr (kIsFloat<T>)
      return __builtin_isunordered(a, b) ? quiet_nan(a) : greatest;
    else
      return greatest;
  }
};
struct BitAnd : Plain {
  template <class T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct BitOr : Plain {
  template <class T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct BitXor : Plain {
  template <class T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};

// ---- finishing and scaling one accumulator element ----

template <class T>
inline T divide(T x, uint32_t world) {
  if constexpr (kIsFloat<T>) {
    return settle(x / static_cast<T>(world));
  } else if constexpr (sizeof(T) == 8) {
    return x / static_cast<T>(world);
  } else {
    // Exact: the quotient of two 32-bit integers differs from every integer it is not by more than double rounds.
    return static_cast<T>(static_cast<int64_t>(static_cast<double>(x) / world));
  }
}

template <class T>
inline T scale(T x, double factor) {
  if constexpr (kIsFloat<T>) {
    return settle(x * static_cast<T>(factor));
  } else {
    constexpr bool is_signed = static_cast<T>(-1) < 0;
    constexpr T most = static_cast<T>(is_signed ? (uint64_t{1} << (8 * sizeof(T) - 1)) - 1 : ~uint64_t{0});
    constexpr T least = static_cast<T>(~most);
    const double product = static_cast<double>(x) * factor;
    if (product != product) return 0;
    if (product >= static_cast<double>(most)) return most;
    if (product <= static_cast<double>(least)) return least;
    return static_cast<T>(product);
  }
}

// ---- formats: how elements of a dtype become accumulator elements and back ----

template <class T>
struct Native {
  using Acc = T;
  using Element = T;
  static constexpr bool kDirect = true;  // elements are accumulator elements as they lie
  static constexpr bool kWidens = false;
};

struct Boolean {
  using Acc = uint8_t;
  using Element = uint8_t;
  static constexpr bool kDirect = false;
  static constexpr bool kWidens = false;
  static uint8_t widened(uint8_t x) { return x != 0; }
  static uint8_t narrowed(uint8_t x) { return x; }
};

struct BFloat16 {
  using Acc = float;
  using Element = uint16_t;
  static constexpr bool kDirect = false;
  static constexpr bool kWidens = true;
  static float widened(uint16_t x) { return float_of(static_cast<uint32_t>(x) << 16); }
  static uint16_t narrowed(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>(x == x ? rounded : 0x7fc0);
  }
};

// What the conversion instructions of F16C do, in integers.
struct Float16 {
  using Acc = float;
  using Element = uint16_t;
  static constexpr bool kDirect = false;
  static constexpr bool kWidens = true;
  static float widened(uint16_t x) {
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16, magnitude = x & 0x7fff;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = (magnitude << 13 | 0x7f800000) | (magnitude > 0x7c00 ? 0x400000 : 0);
    const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
    return float_of(sign | (magnitude >= 0x7c00 ? special : magnitude < 0x400 ? subnormal : normal));
  }
  static uint16_t narrowed(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    // 0.5 has the unit in the last place of a subnormal float16: the addition rounds.
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : 0x7c00;
    return static_cast<uint16_t>(sign | (magnitude >= 0x47800000  ? special
                                         : magnitude < 0x38800000 ? subnormal
                                                                  : normal));
  }
};

// Float8 as torch converts it: no saturation. Beyond the range lie infinities where the format has them, else NaN.
// `kFnuz` formats have one zero and, where the other's negative one would be, one NaN.
template <int kMantissa, int kBias, bool kInfinite, bool kFnuz>
struct Float8 {
  using Acc = float;
  using Element = uint8_t;
  static constexpr bool kDirect = false;
  static constexpr bool kWidens = true;
  static constexpr uint32_t kNan = kFnuz ? 0x80 : 0x7f;
  static constexpr uint32_t kInfinity = kInfinite ? 0x1f << kMantissa : kNan;
  // As bits of a float32: the power of two one above the greatest exponent, the least normal number, and the power
  // of two whose unit in the last place is that of a subnormal float8.
  static constexpr uint32_t kBeyond =
      static_cast<uint32_t>(127 + (kFnuz || kInfinite ? (0x7f >> kMantissa) - kBias + (kInfinite ? 0 : 1)
                                                      : (0x7f >> kMantissa) - kBias + 1))
      << 23;
  static constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;
  static constexpr uint32_t kMagic = static_cast<uint32_t>(128 - kBias - kMantissa + 23) << 23;

  struct Table {
    uint32_t bits[256];
  };
  static constexpr Table tabulate() {
    Table table{};
    for (uint32_t code = 0; code < 256; ++code) {
      const uint32_t sign = (code & 0x80) << 24, exponent = (code & 0x7f) >> kMantissa;
      uint32_t mantissa = code & ((1u << kMantissa) - 1), shift = 0;
      uint32_t bits = (exponent + 127 - kBias) << 23 | mantissa << (23 - kMantissa);
      if (exponent == 0 && mantissa != 0) {
        for (; !(mantissa >> kMantissa); mantissa <<= 1) ++shift;
        bits = (128 - kBias - shift) << 23 | (mantissa & ((1u << kMantissa) - 1)) << (23 - kMantissa);
      } else if (exponent == 0) {
        bits = 0;
      }
      if (kFnuz ? code == kNan : kInfinite ? (code & 0x7f) > kInfinity : (code & 0x7f) == kNan)
        bits = 0x7fc00000;
      else if (kInfinite && (code & 0x7f) == kInfinity)
        bits = 0x7f800000;
      table.bits[code] = kFnuz && code == kNan ? bits : sign | bits;
    }
    return table;
  }
  static constexpr Table kTable = tabulate();

  static float widened(uint8_t x) { return float_of(kTable.bits[x]); }
  static uint8_t narrowed(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    constexpr uint32_t half = (1u << (22 - kMantissa)) - 1;
    const uint32_t normal =
        (magnitude + half + (magnitude >> (23 - kMantissa) & 1) - (static_cast<uint32_t>(127 - kBias) << 23)) >>
        (23 - kMantissa);
    const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kMagic)) - kMagic;
    const uint32_t special = magnitude > 0x7f800000 ? kNan : kInfinity;
    const uint32_t result = magnitude >= kBeyond ? special : magnitude < kLeastNormal ? subnormal : normal;
    return static_cast<uint8_t>(kFnuz && (result & 0x7f) == 0 ? result : sign | result);
  }
};
using Float8E4M3FN = Float8<3, 7, false, false>;
using Float8E5M2 = Float8<2, 15, true, false>;
using Float8E4M3FNUZ = Float8<3, 8, false, true>;
using Float8E5M2FNUZ = Float8<2, 16, false, true>;

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

#ifdef __F16C__
template <>
SC_LOOP void widen<Float16>(float* out, const void* in, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(load<__m128i_u>(in, i / 8)));
  for (; i < n; ++i) out[i] = Float16::widened(load<uint16_t>(in, i));
}

template <>
SC_LOOP void narrow<Float16>(void* out, const float* in, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    store<__m128i_u>(out, i / 8, _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
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
