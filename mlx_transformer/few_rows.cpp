// Linux only: the cblas_sgemm that MLX finds before that of the BLAS library (blas.py).
//
// MLX knows no other product. OpenBLAS first packs the whole right-hand matrix, which pays when
// many rows share it; a single sentence has one row a step, or one a hypothesis, and waits for
// memory alone. Its products go to sgemv instead, which reads the matrix as it lies.

using Gemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
using Gemv = void(int order, int trans, int rows, int columns, float alpha,
                  const float* matrix, int ld, const float* x, int step_x, float beta, float* y,
                  int step_y);

namespace {
constexpr int ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112;
constexpr int FEW = 4;             // rows: more are worth the packing
constexpr long SMALL = 128 * 128;  // numbers: such a matrix lies in the cache, packed or not

Gemm* gemm;
Gemv* gemv;
}  // namespace

extern "C" void mlx_transformer_use_blas(Gemm* gemm_of_blas, Gemv* gemv_of_blas) {
  gemm = gemm_of_blas;
  gemv = gemv_of_blas;
}

// C (m,n) = alpha * A (m,k) B (k,n) + beta * C
extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float* a, int lda, const float* b, int ldb, float beta, float* c,
                            int ldc) {
  if (order != ROW_MAJOR || m > FEW || long(n) * k < SMALL) {
    gemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  const bool across = trans_a == NO_TRANS;  // a row of A lies in one piece
  for (int row = 0; row < m; ++row) {
    const float* x = a + row * (across ? lda : 1);
    const int step = across ? 1 : lda;
    if (trans_b == NO_TRANS)
      gemv(order, TRANS, k, n, alpha, b, ldb, x, step, beta, c + row * ldc, 1);
    else
      gemv(order, NO_TRANS, n, k, alpha, b, ldb, x, step, beta, c + row * ldc, 1);
  }
}
