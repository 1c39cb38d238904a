// all_reduce of a sparse tensor, from the all_gathers of dense ones.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>

namespace securecoll::binding {

class Backend;

// Adds up `tensor` (COO layout) over all ranks, which must give equal shapes and dtypes, in place and in rank order:
// all ranks get the same bits. Each rank learns every rank's nonzero elements, so it sends them once and receives all.
// Returns when that is done. Throws the error of what failed.
void sum_sparse(Backend& backend, const at::Tensor& tensor, std::chrono::milliseconds timeout);

}  // namespace securecoll::binding
