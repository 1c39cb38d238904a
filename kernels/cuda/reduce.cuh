// Reductions on device memory, bit for bit those of kernels/host: what is done with one element is the same text.
#pragma once
#include "engine/codes.hpp"
#include "launch.hpp"
#include "reduce_flags.hpp"
#include "text.cuh"

namespace securecoll::cuda {

namespace element {

SC_DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
SC_DEVICE u64 bits_of(double x) { return static_cast<u64>(__double_as_longlong(x)); }
SC_DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
SC_DEVICE double double_of(u64 bits) { return __longlong_as_double(static_cast<long long>(bits)); }

template <class T>
SC_DEVICE bool unordered(T a, T b) {
  return a != a || b != b;
}

#define SC_ELEMENT SC_DEVICE
#include "reduce_element.inl"
#undef SC_ELEMENT

template <class Format>
SC_DEVICE typename Format::Acc widened(typename Format::Element x) {
  if constexpr (Format::kDirect) {
    return x;
  } else {
    return Format::widened(x);
  }
}

template <class Format>
SC_DEVICE typename Format::Element narrowed(typename Format::Acc x) {
  if constexpr (Format::kDirect) {
    return x;
  } else {
    return Format::narrowed(x);
  }
}

// finish(a (+) b), or finish(a) where there is no b. Sums, products and bits of signed integers are those of
// `Wrapping`, the unsigned type.
template <class Op, class Wrapping, class Acc>
SC_DEVICE Acc reduced(const Reduction& r, Acc a, Acc b, bool has_b) {
  if constexpr (Op::kScales) {
    if (r.flags & kScaleA) a = scale(a, r.factor);
    if (has_b && (r.flags & kScaleB)) b = scale(b, r.factor);
  }
  if (has_b) a = static_cast<Acc>(Op::apply(static_cast<Wrapping>(a), static_cast<Wrapping>(b)));
  if constexpr (Op::kDivides) {
    if (r.flags & kFinish) a = divide(a, r.world);
  }
  return a;
}

}  // namespace element

// ---- which type does what ----
//
// apply() calls visitor.run<Format, Op, Wrapping>() for what a Reduction names. A visitor of kind kOnlyFusable gets
// what fusable() names, which keeps its code small. False: no such reduction.

template <class Format, class Visitor>
SC_DEVICE bool apply_floating(RedOp op, const Visitor& visitor) {
  using Acc = typename Format::Acc;
  switch (op) {
    case RedOp::sum:
      return visitor.template run<Format, element::Sum, Acc>();
    case RedOp::avg:
      return visitor.template run<Format, element::Average, Acc>();
    case RedOp::min:
      return visitor.template run<Format, element::Min, Acc>();
    case RedOp::max:
      return visitor.template run<Format, element::Max, Acc>();
    case RedOp::premul_sum:
      return visitor.template run<Format, element::ScaledSum, Acc>();
    case RedOp::product:
      if constexpr (!Visitor::kOnlyFusable) return visitor.template run<Format, element::Product, Acc>();
      return false;
    default:
      return false;
  }
}

template <class T, class Unsigned, class Visitor>
SC_DEVICE bool apply_integer(RedOp op, const Visitor& visitor) {
  using Format = element::Native<T>;
  switch (op) {
    case RedOp::sum:
      return visitor.template run<Format, element::Sum, Unsigned>();
    case RedOp::min:
      return visitor.template run<Format, element::Min, T>();
    case RedOp::max:
      return visitor.template run<Format, element::Max, T>();
    default:
      break;
  }
  if constexpr (!Visitor::kOnlyFusable) {
    switch (op) {
      case RedOp::avg:
        return visitor.template run<Format, element::Average, Unsigned>();
      case RedOp::product:
        return visitor.template run<Format, element::Product, Unsigned>();
      case RedOp::band:
        return visitor.template run<Format, element::BitAnd, Unsigned>();
      case RedOp::bor:
        return visitor.template run<Format, element::BitOr, Unsigned>();
      case RedOp::bxor:
        return visitor.template run<Format, element::BitXor, Unsigned>();
      case RedOp::premul_sum:
        return visitor.template run<Format, element::ScaledSum, Unsigned>();
      default:
        break;
    }
  }
  return false;
}

template <class Visitor>
SC_DEVICE bool apply_boolean(RedOp op, const Visitor& visitor) {
  switch (op) {
    case RedOp::sum:
    case RedOp::max:
    case RedOp::bor:
      return visitor.template run<element::Boolean, element::BitOr, u8>();
    case RedOp::product:
    case RedOp::min:
    case RedOp::band:
      return visitor.template run<element::Boolean, element::BitAnd, u8>();
    case RedOp::bxor:
      return visitor.template run<element::Boolean, element::BitXor, u8>();
    default:
      return false;
  }
}

// A complex number is two components for all that works on each alone.
template <class T, class Visitor>
SC_DEVICE bool apply_complex(RedOp op, const Visitor& visitor) {
  switch (op) {
    case RedOp::sum:
    case RedOp::avg:
    case RedOp::premul_sum:
      return apply_floating<element::Native<T>>(op, visitor.components());
    case RedOp::product:
      return visitor.template run_complex_product<T>();
    default:
      return false;
  }
}

template <class Visitor>
SC_DEVICE bool apply(const Reduction& reduction, const Visitor& visitor) {
  const auto dtype = static_cast<DType>(reduction.dtype);
  const auto op = static_cast<RedOp>(reduction.op);
  switch (dtype) {
    case DType::f16:
      return apply_floating<element::Float16>(op, visitor);
    case DType::bf16:
      return apply_floating<element::BFloat16>(op, visitor);
    case DType::f32:
      return apply_floating<element::Native<float>>(op, visitor);
    case DType::f64:
      return apply_floating<element::Native<double>>(op, visitor);
    case DType::i32:
      return apply_integer<int32_t, uint32_t>(op, visitor);
    case DType::i64:
      return apply_integer<int64_t, uint64_t>(op, visitor);
    default:
      break;
  }
  if constexpr (!Visitor::kOnlyFusable) {
    switch (dtype) {
      case DType::u8:
        return apply_integer<uint8_t, uint8_t>(op, visitor);
      case DType::i8:
        return apply_integer<int8_t, uint8_t>(op, visitor);
      case DType::u16:
        return apply_integer<uint16_t, uint16_t>(op, visitor);
      case DType::i16:
        return apply_integer<int16_t, uint16_t>(op, visitor);
      case DType::u32:
        return apply_integer<uint32_t, uint32_t>(op, visitor);
      case DType::u64:
        return apply_integer<uint64_t, uint64_t>(op, visitor);
      case DType::c64:
        return apply_complex<float>(op, visitor);
      case DType::c128:
        return apply_complex<double>(op, visitor);
      case DType::boolean:
        return apply_boolean(op, visitor);
      case DType::f8e4m3fn:
        return apply_floating<element::Float8E4M3FN>(op, visitor);
      case DType::f8e5m2:
        return apply_floating<element::Float8E5M2>(op, visitor);
      case DType::f8e4m3fnuz:
        return apply_floating<element::Float8E4M3FNUZ>(op, visitor);
      case DType::f8e5m2fnuz:
        return apply_floating<element::Float8E5M2FNUZ>(op, visitor);
      default:
        break;
    }
  }
  return false;
}

// ---- from memory to memory ----

// Element i of an array of T, which lies at a multiple of its size.
template <class T>
SC_DEVICE T& element_at(u64 array, u64 i) {
  return pointer_to<T>(array)[i];
}

// Reduces whole arrays, each thread an element at a time.
struct ReduceArrays {
  static constexpr bool kOnlyFusable = false;
  const ReduceArgs& args;
  u64 count;

  SC_DEVICE ReduceArrays components() const { return {args, 2 * count}; }
  SC_DEVICE u64 first() const { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }
  SC_DEVICE u64 stride() const { return static_cast<u64>(gridDim.x) * blockDim.x; }

  template <class Format, class Op, class Wrapping>
  SC_DEVICE bool run() const {
    using Acc = typename Format::Acc;
    using Element = typename Format::Element;
    const Reduction& r = args.reduction;
    const bool wide_a = Format::kWidens && (r.flags & kAIsAccumulator);
    const bool wide_out = Format::kWidens && (r.flags & kOutIsAccumulator);
    for (u64 i = first(); i < count; i += stride()) {
      Acc a, b{};
      a = wide_a ? element_at<Acc>(args.a, i) : element::widened<Format>(element_at<Element>(args.a, i));
      if (args.b != 0) b = element::widened<Format>(element_at<Element>(args.b, i));
      a = element::reduced<Op, Wrapping>(r, a, b, args.b != 0);
      if (wide_out) {
        element_at<Acc>(args.out, i) = a;
      } else {
        element_at<Element>(args.out, i) = element::narrowed<Format>(a);
      }
    }
    return true;
  }

  template <class T>
  SC_DEVICE bool run_complex_product() const {
    for (u64 i = first(); i < count; i += stride()) {
      const T ar = element_at<T>(args.a, 2 * i), ai = element_at<T>(args.a, 2 * i + 1);
      T re = ar, im = ai;
      if (args.b != 0) {
        const T br = element_at<T>(args.b, 2 * i), bi = element_at<T>(args.b, 2 * i + 1);
        re = element::settle(ar * br - ai * bi);
        im = element::settle(ar * bi + ai * br);
      }
      element_at<T>(args.out, 2 * i) = re;
      element_at<T>(args.out, 2 * i + 1) = im;
    }
    return true;
  }
};

// ---- from a block of plaintext in registers ----

SC_DEVICE u32 word_of(const uint4& block, u32 i) {
  return i == 0 ? block.x : i == 1 ? block.y : i == 2 ? block.z : block.w;
}
SC_DEVICE u32& word_of(uint4& block, u32 i) {
  return i == 0 ? block.x : i == 1 ? block.y : i == 2 ? block.z : block.w;
}

// Element i of a block. Indices are constants once loops are unrolled.
template <class T>
SC_DEVICE T element_of(const uint4& block, u32 i) {
  if constexpr (sizeof(T) == 8) {
    const u64 bits = word_of(block, 2 * i) | static_cast<u64>(word_of(block, 2 * i + 1)) << 32;
    if constexpr (element::kIsFloat<T>) {
      return element::double_of(bits);
    } else {
      return static_cast<T>(bits);
    }
  } else if constexpr (element::kIsFloat<T>) {
    return element::float_of(word_of(block, i));
  } else {
    constexpr u32 kInWord = 4 / sizeof(T);
    return static_cast<T>(word_of(block, i / kInWord) >> 8 * sizeof(T) * (i % kInWord));
  }
}

// Puts an element where zeros are.
template <class T>
SC_DEVICE void put_element(uint4& block, u32 i, T x) {
  if constexpr (sizeof(T) == 8) {
    u64 bits;
    if constexpr (element::kIsFloat<T>) {
      bits = element::bits_of(x);
    } else {
      bits = static_cast<u64>(x);
    }
    word_of(block, 2 * i) = static_cast<u32>(bits);
    word_of(block, 2 * i + 1) = static_cast<u32>(bits >> 32);
  } else if constexpr (element::kIsFloat<T>) {
    word_of(block, i) = element::bits_of(x);
  } else {
    constexpr u32 kInWord = 4 / sizeof(T);
    word_of(block, i / kInWord) |= static_cast<u32>(x) << 8 * sizeof(T) * (i % kInWord);
  }
}

// Reduces a block, or the start of one, with its place in the operand, and stores the result in its place in `out`.
struct ReduceBlock {
  static constexpr bool kOnlyFusable = true;
  const Reduction& r;
  uint4 plain;
  u64 operand, out;  // arrays; absent if zero
  i32 index;         // of the block
  u32 bytes;         // of plaintext in it
  uint4& result;     // in elements of the dtype, if the result is that

  // Where the block's share of an array lies whose elements are `spread` times as wide as those of the plaintext.
  SC_DEVICE u64 place(u64 array, u32 spread) const {
    return array + static_cast<u64>(kBlockBytes * spread) * static_cast<u32>(index);
  }
  SC_DEVICE u32 bytes_in(u32 part, u32 spread) const {
    const u32 rest = beyond(bytes * spread, kBlockBytes * part);
    return rest < kBlockBytes ? rest : kBlockBytes;
  }

  template <class Format, class Op, class Wrapping>
  SC_DEVICE bool run() const {
    using Acc = typename Format::Acc;
    using Element = typename Format::Element;
    constexpr u32 kSpread = sizeof(Acc) / sizeof(Element), kPerPart = kBlockBytes / sizeof(Acc);
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    const bool wide_operand = Format::kWidens && (r.flags & kAIsAccumulator);
    const bool wide_out = Format::kWidens && (r.flags & kOutIsAccumulator);
    uint4 other[kSpread], wide_result[kSpread];
    SC_UNROLL for (u32 p = 0; p < kSpread; ++p) other[p] = wide_result[p] = zeros;
    if (operand != 0) {
      const u32 spread = wide_operand ? kSpread : 1;
      SC_UNROLL for (u32 p = 0; p < kSpread; ++p) {
        if (p < spread) other[p] = load_bytes(place(operand, spread) + kBlockBytes * p, bytes_in(p, spread));
      }
    }
    result = zeros;
    SC_UNROLL for (u32 i = 0; i < kSpread * kPerPart; ++i) {
      const Acc opened = element::widened<Format>(element_of<Element>(plain, i));
      Acc x = opened, y{};
      if (operand != 0) {
        const Acc given = wide_operand ? element_of<Acc>(other[i / kPerPart], i % kPerPart)
                                       : element::widened<Format>(element_of<Element>(other[0], i));
        x = r.opened_is_a ? opened : given;
        y = r.opened_is_a ? given : opened;
      }
      x = element::reduced<Op, Wrapping>(r, x, y, operand != 0);
      if (wide_out) {
        put_element(wide_result[i / kPerPart], i % kPerPart, x);
      } else {
        put_element(result, i, element::narrowed<Format>(x));
      }
    }
    if (out == 0) return true;
    if (wide_out) {
      SC_UNROLL for (u32 p = 0; p < kSpread; ++p) {
        store_bytes(place(out, kSpread) + kBlockBytes * p, wide_result[p], bytes_in(p, kSpread));
      }
    } else {
      store_bytes(place(out, 1), result, bytes);
    }
    return true;
  }
};

}  // namespace securecoll::cuda
