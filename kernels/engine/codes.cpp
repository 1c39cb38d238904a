#include "engine/codes.hpp"

namespace securecoll {

const char* name_of(Collective c) {
  switch (c) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce:
      return "reduce";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::barrier:
      return "barrier";
    case Collective::send:
      return "send";
    case Collective::receive:
      return "recv";
  }
  return "unknown collective";
}

const char* name_of(DType t) {
  static constexpr const char* names[kDTypes] = {
      "none",       "uint8", "int8",          "uint16",      "int16",           "uint32",         "int32",
      "uint64",     "int64", "float16",       "bfloat16",    "float32",         "float64",        "complex64",
      "complex128", "bool",  "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"};
  const auto i = static_cast<unsigned>(t);
  return i < static_cast<unsigned>(kDTypes) ? names[i] : "unknown dtype";
}

const char* name_of(RedOp op) {
  static constexpr const char* names[kRedOps] = {"none", "sum",  "avg", "product", "min",
                                                 "max",  "band", "bor", "bxor",    "premul_sum"};
  const auto i = static_cast<unsigned>(op);
  return i < static_cast<unsigned>(kRedOps) ? names[i] : "unknown reduction";
}

}  // namespace securecoll
