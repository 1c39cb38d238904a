// Reductions between arrays.
#include "reduce.cuh"

using namespace securecoll::cuda;

SC_KERNEL(sc_reduce, ReduceArgs, kThreads, 1) {
  const ReduceArrays arrays{args, args.count};
  if (!apply(args.reduction, arrays)) trap();
}
