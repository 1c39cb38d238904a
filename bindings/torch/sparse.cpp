#include "sparse.hpp"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <vector>

#include "backend.hpp"

namespace securecoll::binding {
namespace {

constexpr int64_t kDimensions = 16;  // that a shape may have here

std::vector<at::Tensor> all_gather(Backend& backend, at::Tensor mine, std::vector<at::Tensor> all,
                                   std::chrono::milliseconds timeout) {
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  options.asyncOp = false;
  std::vector<at::Tensor> inputs{std::move(mine)};
  std::vector<std::vector<at::Tensor>> outputs{std::move(all)};
  backend.allgather(outputs, inputs, options)->wait();
  return std::move(outputs.front());
}

// What all ranks must agree on, and how many elements each has: [dtype, sparse dimensions, elements, dimensions,
// shape].
at::Tensor describe(const at::Tensor& tensor) {
  at::Tensor row = at::zeros({4 + kDimensions}, at::kLong);
  auto* fields = row.mutable_data_ptr<int64_t>();
  fields[0] = static_cast<int64_t>(tensor.scalar_type());
  fields[1] = tensor.sparse_dim();
  fields[2] = tensor._nnz();
  fields[3] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), fields + 4);
  return row;
}

}  // namespace

void sum_sparse(Backend& backend, const at::Tensor& tensor, std::chrono::milliseconds timeout) {
  const int size = backend.getSize();
  const Call call("all_reduce", Collective::all_reduce, backend.getRank(), size, false);
  call.require(tensor.dim() <= kDimensions, "a sparse tensor may have ", kDimensions, " dimensions, not ",
               tensor.dim());
  const at::AutoDispatchBelowADInplaceOrView raw;
  const at::Tensor mine = tensor.coalesce();

  std::vector<at::Tensor> rows;
  for (int r = 0; r < size; ++r) rows.push_back(at::zeros({4 + kDimensions}, at::kLong));
  const at::Tensor row = describe(mine);
  rows = all_gather(backend, row, std::move(rows), timeout);
  std::vector<int64_t> elements;
  for (int r = 0; r < size; ++r) {
    elements.push_back(rows[r][2].item<int64_t>());
    at::Tensor theirs = rows[r].clone();
    theirs[2] = mine._nnz();
    // All ranks see the same rows, so all refuse, and the group goes on.
    call.require(at::equal(theirs, row), "rank ", r,
                 " has a sparse tensor of another shape or dtype than this rank's ", tensor.sizes(), " of ",
                 tensor.dtype());
  }

  std::vector<at::Tensor> indices, values;
  std::vector<int64_t> shape(mine._values().sizes().begin(), mine._values().sizes().end());
  for (const int64_t n : elements) {
    indices.push_back(at::empty({mine.sparse_dim(), n}, mine._indices().options()));
    shape.front() = n;
    values.push_back(at::empty(shape, mine._values().options()));
  }
  indices = all_gather(backend, mine._indices(), std::move(indices), timeout);
  values = all_gather(backend, mine._values(), std::move(values), timeout);
  const at::Tensor where = at::cat(indices, 1), what = at::cat(values, 0);
  at::_validate_sparse_coo_tensor_args(where, what, tensor.sizes());
  const auto sparse = what.options().layout(at::kSparse);
  tensor.copy_(at::_sparse_coo_tensor_unsafe(where, what, tensor.sizes(), sparse).coalesce());
}

}  // namespace securecoll::binding
