// What a reduction does with one element, for host and device alike: kernels/host/reduce_kernels.inl and
// kernels/cuda/reduce.cuh include this, each into a namespace of its own.
//
// Equal results on every processor: no contraction of a*b+c (-ffp-contract=off, -fmad=false), no reassociation, and
// every NaN that arithmetic or a conversion gives is replaced by one, positive, quiet and without payload: which of
// two NaNs an instruction passes on depends on the order of its operands, which is the compiler's choice.
//
// Uses no function of the standard library. The including file defines SC_ELEMENT, which stands before each function,
// and declares bits_of(float), bits_of(double), float_of(uint32_t), double_of(uint64_t), which change a type and no
// bit, and unordered(a, b): whether a or b is a NaN.

// condition ? a : b, without a branch: the compiler would move floating-point operations into one, and not vectorise.
template <class Bits>
SC_ELEMENT Bits select(bool condition, Bits a, Bits b) {
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
SC_ELEMENT float settle(float x, bool bad) { return float_of(select(bad, 0x7fc00000u, bits_of(x))); }
SC_ELEMENT double settle(double x, bool bad) {
  return double_of(select(bad, uint64_t{0x7ff8000000000000}, bits_of(x)));
}
template <class T>
SC_ELEMENT T settle(T x) {
  return settle(x, x != x);
}

// ---- operations on two accumulator elements ----

struct Sum {
  static constexpr bool kDivides = false, kScales = false;
  template <class T>
  SC_ELEMENT static T apply(T a, T b) {
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
  SC_ELEMENT static T apply(T a, T b) {
    if constexpr (kIsFloat<T>)
      return settle(a * b);
    else
      return static_cast<T>(uint64_t{a} * b);  // through 64 bits: the product of two uint16_t overflows int
  }
};
struct Min : Plain {
  template <class T>
  SC_ELEMENT static T apply(T a, T b) {
    const T least = a < b ? a : b;
    if constexpr (kIsFloat<T>)
      return settle(least, unordered(a, b));
    else
      return least;
  }
};
struct Max : Plain {
  template <class T>
  SC_ELEMENT static T apply(T a, T b) {
    const T greatest = a > b ? a : b;
    if constexpr (kIsFloat<T>)
      return settle(greatest, unordered(a, b));
    else
      return greatest;
  }
};
struct BitAnd : Plain {
  template <class T>
  SC_ELEMENT static T apply(T a, T b) {
    return a & b;
  }
};
struct BitOr : Plain {
  template <class T>
  SC_ELEMENT static T apply(T a, T b) {
    return a | b;
  }
};
struct BitXor : Plain {
  template <class T>
  SC_ELEMENT static T apply(T a, T b) {
    return a ^ b;
  }
};

// ---- finishing and scaling one accumulator element ----

template <class T>
SC_ELEMENT T divide(T x, uint32_t world) {
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
SC_ELEMENT T scale(T x, double factor) {
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
  SC_ELEMENT static uint8_t widened(uint8_t x) { return x != 0; }
  SC_ELEMENT static uint8_t narrowed(uint8_t x) { return x; }
};

struct BFloat16 {
  using Acc = float;
  using Element = uint16_t;
  static constexpr bool kDirect = false;
  static constexpr bool kWidens = true;
  SC_ELEMENT static float widened(uint16_t x) { return settle(float_of(static_cast<uint32_t>(x) << 16)); }
  SC_ELEMENT static uint16_t narrowed(float x) {
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
  SC_ELEMENT static constexpr float least() {
    float x = 1;
    for (int i = 1; i < kBias + kMantissa; ++i) x /= 2;
    return x;
  }
  static constexpr float kLeast = least();

  SC_ELEMENT static float widened(Code code) {
    const uint32_t sign = (code & kSign) << (32 - 8 * sizeof(Code)), magnitude = code & (kSign - 1);
    const uint32_t normal = (magnitude << kShift) + kRebias;
    const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * kLeast);
    const uint32_t finite = select(magnitude < 1u << kMantissa, subnormal, normal);
    const uint32_t number = select(kInfinite && magnitude == kOverflow, 0x7f800000u, finite);
    const bool nan = kFnuz ? code == kNan : kInfinite ? magnitude > kOverflow : magnitude == kNan;
    return float_of(select(nan, 0x7fc00000u, sign | number));
  }

  SC_ELEMENT static Code narrowed(float x) {
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
