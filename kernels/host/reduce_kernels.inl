// All reductions, for the instruction set that the including file selected with `#pragma GCC target`, in the
// namespace it named SC_REDUCE_ISA. Loops are plain enough for the compiler to vectorise; only float16 is better off
// with instructions of its own, if the file says that it may use those of F16C: SC_REDUCE_F16C.
//
// Equal results on every instruction set: no contraction of a*b+c (-ffp-contract=off), no reassociation, and every
// NaN that arithmetic or a conversion gives is replaced by one, positive, quiet and without payload: which of two NaNs
// an instruction passes on depends on the order of its operands, which is the compiler's choice.
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

// condition ? a : b, without a branch: the compiler would move floating-point operations into one, and not vectorise.
template <class Bits>
inline Bits select(bool condition, Bits a, Bits b) {
  const Bits mask = Bits{0} - static_cast<Bits>(condition);
  return (a & mask) | (b & ~mask);
}

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;
template <>
constexpr bool kIsFloat<double> = true;

// x, or our NaN where `bad`.
inline float settle(float x, bool bad) { return float_of(select(bad, 0x7fc00000u, bits_of(x))); }
inline double settle(double x, bool bad) {
  const uint64_t bits = select(bad, uint64_t{0x7ff8000000000000}, load<uint64_t>(&x, 0));
  return load<double>(&bits, 0);
}
template <class T>
inline T settle(T x) {
  return settle(x, x != x);
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
      return settle(least, __builtin_isunordered(a, b));
    else
      return least;
  }
};
struct Max : Plain {
  template <class T>
  static T apply(T a, T b) {
    const T greatest = a > b ? a : b;
    if constexpr (kIsFloat<T>)
      return settle(greatest, __builtin_isunordered(a, b));
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
  static float widened(uint16_t x) { return settle(float_of(static_cast<uint32_t>(x) << 16)); }
  static uint16_t narrowed(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>(x == x ? rounded : 0x7fc0);
  }
};

// A float of 16 or 8 bits, converted as torch 2.13 does. kNan is the code of NaN, kOverflow that of what lies above
// the range: infinity, the greatest number (float8_e4m3fn saturates), or NaN. The fnuz formats have one zero, and in
// place of the negative one their only NaN.
template <class Code, int kMantissa, int kBias, uint32_t kNan, uint32_t kOverflow>
struct SmallFloat {
  using Acc = float;
  using Element = Code;
  static constexpr bool kDirect = false;
  static constexpr bool kWidens = true;
  static constexpr uint32_t kSign = 1u << (8 * sizeof(Code) - 1);
  static constexpr bool kFnuz = kNan == kSign;
  static constexpr bool kInfinite = !kFnuz && kOverflow % (1u << kMantissa) == 0;
  // To float32: the mantissa moves up, the exponent's bias grows.
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;

  // 2^(1 - kBias - kMantissa), the least number above zero.
  static constexpr float least() {
    float x = 1;
    for (int i = 1; i < kBias + kMantissa; ++i) x /= 2;
    return x;
  }
  static constexpr float kLeast = least();

  static float widened(Code code) {
    const uint32_t sign = (code & kSign) << (32 - 8 * sizeof(Code)), magnitude = code & (kSign - 1);
    const uint32_t normal = (magnitude << kShift) + kRebias;
    const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * kLeast);
    const uint32_t finite = select(magnitude < 1u << kMantissa, subnormal, normal);
    const uint32_t number = select(kInfinite && magnitude == kOverflow, 0x7f800000u, finite);
    const bool nan = kFnuz ? code == kNan : kInfinite ? magnitude > kOverflow : magnitude == kNan;
    return float_of(select(nan, 0x7fc00000u, sign | number));
  }

  static Code narrowed(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> (32 - 8 * sizeof(Code)) & kSign, magnitude = bits & 0x7fffffff;
    // The code to nearest even, were there codes enough.
    const uint32_t normal = (magnitude + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1) - kRebias) >> kShift;
    // A number whose unit in the last place is kLeast: the addition rounds.
    constexpr float magic = kLeast * 0x1p23f;
    const uint32_t subnormal = bits_of(float_of(magnitude) + magic) - bits_of(magic);
    const uint32_t rounded = select(float_of(magnitude) < kLeast * (1 << kMantissa), subnormal, normal);
    const uint32_t number = select(rounded > kOverflow, kOverflow, rounded);
    const uint32_t code = number | select(kFnuz && number == 0, 0u, sign);
    return static_cast<Code>(select(magnitude > 0x7f800000, kNan, code));
  }
};
using Float16 = SmallFloat<uint16_t, 10, 15, 0x7e00, 0x7c00>;
using Float8E4M3FN = SmallFloat<uint8_t, 3, 7, 0x7f, 0x7e>;
using Float8E5M2 = SmallFloat<uint8_t, 2, 15, 0x7f, 0x7c>;
using Float8E4M3FNUZ = SmallFloat<uint8_t, 3, 8, 0x80, 0x80>;
using Float8E5M2FNUZ = SmallFloat<uint8_t, 2, 16, 0x80, 0x80>;

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
