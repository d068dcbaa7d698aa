// Linux only: the cblas_sgemm that MLX finds before that of the BLAS library (blas.py).
//
// MLX knows no other product. A BLAS library first packs the whole right-hand matrix, which pays
// when many rows share it; a single sentence has one row a step, or one a hypothesis, and mostly
// waits for memory. Its products are computed here, from the matrix as it lies.

#include <vector>

using Gemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);

// Compiled for several processors: the one that runs it need not be the one that built it.
#ifdef __x86_64__
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif

namespace {
constexpr int ROW_MAJOR = 101, NO_TRANS = 111;
constexpr int FEW = 16;            // rows: more are worth the packing
constexpr long SMALL = 128 * 128;  // numbers: such a matrix lies in the cache, packed or not
constexpr int PLACES = 8, WIDTH = 16;

typedef float Wide __attribute__((vector_size(WIDTH * sizeof(float)), aligned(4), may_alias));

Gemm* gemm;

// sums (m,n) = x (k / PLACES, m, PLACES) B (k,n); rows of sums are `stride` apart.
//
// B is read in eight places at once, an eighth of it apart, which is how x is sorted: the processor
// fetches ahead of each of them, and one core gets almost all of the memory's speed. Reading row
// after row it gets half.
VECTORISED void multiply(int m, int n, int k, const float* x, const float* b, long ldb, float* sums,
                         long stride) {
  const long rows = k / PLACES;
  for (long row = 0; row < rows; ++row, b += ldb, x += m * PLACES)
    for (int j = 0; j < n; j += WIDTH) {
      Wide places[PLACES];
#pragma GCC unroll 8
      for (int p = 0; p < PLACES; ++p) places[p] = *(const Wide*)(b + p * rows * ldb + j);
      for (int i = 0; i < m; ++i) {
        Wide sum = *(const Wide*)(sums + i * stride + j);
#pragma GCC unroll 8
        for (int p = 0; p < PLACES; ++p) sum += x[i * PLACES + p] * places[p];
        *(Wide*)(sums + i * stride + j) = sum;
      }
    }
}

// C (m,n) = alpha * A (m,k) B (k,n) + beta * C. From one number of A to the next of its row it is
// `step`, to the next row `row`.
void few_rows(int m, int n, int k, float alpha, const float* a, long row, long step,
              const float* b, long ldb, float beta, float* c, long ldc) {
  thread_local std::vector<float> x, sums;
  x.resize(long(m) * k);
  float* next = x.data();
  for (int l = 0; l < k / PLACES; ++l)
    for (int i = 0; i < m; ++i)
      for (int p = 0; p < PLACES; ++p)
        *next++ = alpha * a[i * row + (p * (k / PLACES) + l) * step];
  // Rows a power of two apart would drive each other out of the cache.
  const long stride = n + WIDTH;
  sums.assign(m * stride, 0);
  multiply(m, n, k, x.data(), b, ldb, sums.data(), stride);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float& value = c[i * ldc + j];
      value = sums[i * stride + j] + (beta == 0 ? 0 : beta * value);
    }
}
}  // namespace

extern "C" void mlx_transformer_use_blas(Gemm* gemm_of_blas) { gemm = gemm_of_blas; }

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float* a, int lda, const float* b, int ldb, float beta, float* c,
                            int ldc) {
  const bool few = order == ROW_MAJOR && trans_b == NO_TRANS && m <= FEW && n >= WIDTH &&
                   long(n) * k >= SMALL && k % PLACES == 0;
  const int whole = few ? n - n % WIDTH : 0;  // columns; the rest is for the BLAS library
  if (few && trans_a == NO_TRANS)
    few_rows(m, whole, k, alpha, a, lda, 1, b, ldb, beta, c, ldc);
  else if (few)
    few_rows(m, whole, k, alpha, a, 1, lda, b, ldb, beta, c, ldc);
  if (whole < n)
    gemm(order, trans_a, trans_b, m, n - whole, k, alpha, a, lda, b + whole, ldb, beta, c + whole,
         ldc);
}
