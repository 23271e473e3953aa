#include "lockstep/autograd/matmul.h"

#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

// The operands as batches of matrices.
struct Batches {
  Shape a, b, c;
};

// Saved: a, b.
class MatmulNode : public Node {
 public:
  MatmulNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Batches& shapes, const MatmulOptions& options)
      : Node(std::move(inputs), std::move(saved)), shapes_(shapes), options_(options) {}
  const char* name() const override { return "matmul"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"transpose_a", std::int64_t{options_.transpose_a}},
                      {"transpose_b", std::int64_t{options_.transpose_b}}};
  }

  // For c = op(a) * op(b), the gradient of op(a) is c_grad * op(b)^T, and that of op(b) is op(a)^T * c_grad; for a
  // transposed operand it is transposed.
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    const bool flip_a = options_.transpose_a, flip_b = options_.transpose_b;
    const InputView a = in_shape(saved(0), shapes_.a), b = in_shape(saved(1), shapes_.b),
                    grad = in_shape(result_grad, shapes_.c);
    if (targets[0]) {
      const OutputView a_grad = out_shape(targets[0], shapes_.a);
      flip_a ? kernels.matmul(b, flip_b, grad, true, a_grad, stream)
             : kernels.matmul(grad, false, b, !flip_b, a_grad, stream);
    }
    if (targets[1]) {
      const OutputView b_grad = out_shape(targets[1], shapes_.b);
      flip_b ? kernels.matmul(grad, true, a, flip_a, b_grad, stream)
             : kernels.matmul(a, !flip_a, grad, false, b_grad, stream);
    }
  }

 private:
  Batches shapes_;
  MatmulOptions options_;
};

[[noreturn]] void throw_mismatch(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  throw InvalidArgument(
      "matmul: {} {}{} and {} {}{} do not match: (..., M, K) and (..., K, N) with equal leading dimensions expected, "
      "or a single matrix b "
      "and a not transposed",
      name_argument("a", a), a.shape().text(), options.transpose_a ? " transposed" : "", name_argument("b", b),
      b.shape().text(), options.transpose_b ? " transposed" : "");
}

Batches check_operands(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  const std::size_t a_dims = a.shape().dims(), b_dims = b.shape().dims();
  if (a_dims < 2 || b_dims < 2) throw_mismatch(a, b, options);
  const std::int64_t a_rows = a.shape()[a_dims - 2], a_columns = a.shape()[a_dims - 1], b_rows = b.shape()[b_dims - 2],
                     b_columns = b.shape()[b_dims - 1], batch = count_of_first(a.shape(), a_dims - 2);
  const std::int64_t m = options.transpose_a ? a_columns : a_rows, k = options.transpose_a ? a_rows : a_columns,
                     n = options.transpose_b ? b_rows : b_columns;
  if ((options.transpose_b ? b_columns : b_rows) != k) throw_mismatch(a, b, options);
  if (b_dims == 2 && (a_dims == 2 || !options.transpose_a))
    return {{1, batch * a_rows, a_columns}, {1, b_rows, b_columns}, {1, batch * m, n}};
  if (a_dims != b_dims || Shape(a.shape().extents().first(a_dims - 2)) != Shape(b.shape().extents().first(b_dims - 2)))
    throw_mismatch(a, b, options);
  return {{batch, a_rows, a_columns}, {batch, b_rows, b_columns}, {batch, m, n}};
}

}  // namespace

Tensor matmul(const Tensor& left, const Tensor& right, const MatmulOptions& options) {
  check_activation("matmul", "a", left);
  check_activation("matmul", "b", right, kAnyDims, &left.device());
  Tensor a = left, b = right;
  autocast_together({&a, &b});
  check_alike("matmul", "b", b, a);
  const Batches shapes = check_operands(left, right, options);
  std::vector<std::int64_t> extents(a.shape().extents().begin(), a.shape().extents().end());
  extents[extents.size() - 2] = options.transpose_a ? extents.back() : extents[extents.size() - 2];
  extents.back() = shapes.c[2];
  const Tensor c = empty_like(a, Shape(extents));
  kernels_of(a).matmul(in_shape(a, shapes.a), options.transpose_a, in_shape(b, shapes.b), options.transpose_b,
                       out_shape(c, shapes.c), stream_of(a));
  record<MatmulNode>(c, {a, b}, std::vector{a, b}, shapes, options);
  return c;
}

}  // namespace lockstep
