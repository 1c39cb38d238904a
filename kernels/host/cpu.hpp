// What this CPU and its operating system can run.
#pragma once

namespace securecoll::host {

// Each true only if CPUID names every instruction of the group and the operating system saves the registers it
// needs (XGETBV). All false on other architectures.
struct Cpu {
  bool avx2 = false;     // AVX2, F16C, BMI2
  bool avx512 = false;   // AVX-512 F, BW, DQ, VL on top of avx2
  bool aesni = false;    // AES-NI, AVX
  bool vaes256 = false;  // avx2, AES-NI, PCLMULQDQ, VAES, VPCLMULQDQ, PREFETCHW
  bool vaes512 = false;  // vaes256 and avx512
};

const Cpu& cpu();

}  // namespace securecoll::host
