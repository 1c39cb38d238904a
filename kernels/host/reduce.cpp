#include "host/reduce.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "host/cpu.hpp"
#include "host/reduce_sets.hpp"

namespace securecoll::host {
namespace {

struct Isa {
  const char* name;
  ReduceFn (*kernel)(DType, RedOp);
  bool Cpu::* needs;  // null: nothing
};

// Fastest first; the last runs everywhere.
constexpr Isa kIsas[] = {
#if defined(__x86_64__)
    {"avx512", avx512::kernel, &Cpu::avx512},
    {"avx2", avx2::kernel, &Cpu::avx2},
#endif
    {"generic", generic::kernel, nullptr},
};

bool runs(const Isa& isa) { return isa.needs == nullptr || cpu().*isa.needs; }

const Isa& best() {
  static const Isa* chosen = std::find_if(std::begin(kIsas), std::end(kIsas), runs);
  return *chosen;
}

}  // namespace

ReduceFn reduce_kernel(DType dtype, RedOp op) { return best().kernel(dtype, op); }

size_t accumulator_bytes(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3fn:
    case DType::f8e5m2:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2fnuz:
      return sizeof(float);
    default:
      return element_bytes(dtype);
  }
}

const char* reduce_isa() { return best().name; }

ReduceFn reduce_kernel_for(const char* isa, DType dtype, RedOp op) {
  for (const Isa& candidate : kIsas) {
    if (std::strcmp(candidate.name, isa) == 0) return runs(candidate) ? candidate.kernel(dtype, op) : nullptr;
  }
  return nullptr;
}

}  // namespace securecoll::host
