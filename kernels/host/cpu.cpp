#include "host/cpu.hpp"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace securecoll::host {
namespace {

#if defined(__x86_64__)
// Extended control register 0: which register states the operating system saves on a context switch.
uint64_t saved_states() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

Cpu detect() {
  Cpu found;
  // Intel SDM vol. 2A, CPUID: bits of leaf 1 ECX, of leaf 7 EBX and ECX, of leaf 80000001h ECX.
  constexpr uint32_t pclmul = 1u << 1, aes = 1u << 25, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr uint32_t avx2 = 1u << 5, bmi2 = 1u << 8;
  constexpr uint32_t avx512f = 1u << 16, avx512dq = 1u << 17, avx512bw = 1u << 30, avx512vl = 1u << 31;
  constexpr uint32_t vaes = 1u << 9, vpclmul = 1u << 10;
  constexpr uint32_t prefetchw = 1u << 8;
  constexpr uint64_t ymm_state = 0x6, zmm_state = 0xe6;  // XMM, YMM; and opmasks, both halves of the ZMM file

  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return found;
  const uint32_t leaf1 = ecx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return found;
  const uint32_t leaf7b = ebx, leaf7c = ecx;
  const bool has_prefetchw = __get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx) && (ecx & prefetchw);

  const auto all = [](uint32_t word, uint32_t bits) { return (word & bits) == bits; };
  const uint64_t states = leaf1 & osxsave ? saved_states() : 0;
  found.aesni = (states & ymm_state) == ymm_state && all(leaf1, avx | aes);
  found.avx2 = (states & ymm_state) == ymm_state && all(leaf1, avx | f16c) && all(leaf7b, avx2 | bmi2);
  found.avx512 =
      found.avx2 && (states & zmm_state) == zmm_state && all(leaf7b, avx512f | avx512dq | avx512bw | avx512vl);
  found.vaes256 = found.avx2 && all(leaf1, aes | pclmul) && all(leaf7c, vaes | vpclmul) && has_prefetchw;
  found.vaes512 = found.vaes256 && found.avx512;
  return found;
}
#else
Cpu detect() { return {}; }
#endif

}  // namespace

const Cpu& cpu() {
  static const Cpu found = detect();
  return found;
}

}  // namespace securecoll::host
