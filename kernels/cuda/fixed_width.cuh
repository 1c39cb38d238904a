// The fixed-width names of <cstdint>, for NVRTC, which brings no standard headers. The widths hold on every platform
// that CUDA runs on; the choice of `long` for 64 bits is glibc's, so that host and device mean the same types.
#pragma once

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
