// Linux only: the three products that MLX takes from a BLAS, found here first (blas.py).
//
// Most are handed on to OpenBLAS. Those of few rows are not. A BLAS library first packs the whole right-hand matrix, which pays
// when many rows share it; a single sentence has one row a step, or one a hypothesis, and mostly
// waits for memory. Its products are computed here, from the matrix as it lies.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

// A product of a BLAS: numbers of type T, factors alpha and beta of type Factor.
template <typename T, typename Factor = T>
using Gemm = void(int order, int trans_a, int trans_b, int m, int n, int k, Factor alpha,
                  const T* a, int lda, const T* b, int ldb, Factor beta, T* c, int ldc);

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
constexpr int PARTS = 4, PLACES = 8, WIDTH = 16;
constexpr int PATIENCE = 200;  // how often a thread looks for work before it sleeps

typedef float Wide __attribute__((vector_size(WIDTH * sizeof(float)), aligned(4), may_alias));

Gemm<float>* sgemm;
Gemm<double>* dgemm;
Gemm<void, const void*>* cgemm;  // complex numbers, which are only passed on

// The sum of A (m,k) B (k,n) in PARTS, each over its share of k. From one number of A to the next of
// its row it is `step`, to the next row `row`.
struct Product {
  int m, n, k;
  const float* a;
  long row, step;
  const float* b;
  long ldb;
  std::vector<float> sums;

  // Rows a power of two apart would drive each other out of the cache.
  long stride() const { return n + WIDTH; }
  float* part(int p) { return sums.data() + p * m * stride(); }
};

// sums (m,n) += x (rows, m, PLACES) B (PLACES * rows, n)
//
// B is read in eight places at once, an eighth of it apart, which is how x is sorted: the processor
// fetches ahead of each of them, and one core reads twice as fast as it does row after row.
VECTORISED void multiply(int m, int n, int rows, const float* x, const float* b, long ldb,
                         float* sums, long stride) {
  for (int row = 0; row < rows; ++row, b += ldb, x += m * PLACES)
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

void compute(Product& product, int part) {
  const int depth = product.k / PARTS, rows = depth / PLACES;
  const float* a = product.a + long(part) * depth * product.step;
  thread_local std::vector<float> x;
  x.resize(long(product.m) * depth);
  float* next = x.data();
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < product.m; ++i)
      for (int p = 0; p < PLACES; ++p)
        *next++ = a[i * product.row + (p * rows + r) * product.step];
  multiply(product.m, product.n, rows, x.data(), product.b + long(part) * depth * product.ldb,
           product.ldb, product.part(part), product.stride());
}

// Threads take the parts of a product as they come: one that has no core at the moment takes none,
// and nobody waits for it. The parts are added up in their order, whoever computed them.
struct Team {
  std::mutex in_use;
  Product product;
  std::atomic<unsigned> ticket{PARTS};  // 256 * number of the product + the next part to take
  std::atomic<int> missing{0};          // parts

  Team() {
    cpu_set_t cores;
    const int count = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
    try {
      for (int i = 1; i < std::min(count, PARTS); ++i) std::thread([this] { help(); }).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: those there are will do.
    }
  }

  void work() {
    unsigned mine = ticket.load();
    while (mine % 256 < PARTS)
      if (ticket.compare_exchange_weak(mine, mine + 1)) {
        compute(product, mine % 256);
        --missing;
        mine = ticket.load();
      }
  }

  void help() {
    for (;;) {
      unsigned seen = ticket.load();
      for (int i = 0; i < PATIENCE && seen % 256 >= PARTS; ++i) {
        std::this_thread::yield();
        seen = ticket.load();
      }
      if (seen % 256 >= PARTS) ticket.wait(seen);
      work();
    }
  }

  void compute_all() {
    product.sums.assign(PARTS * product.m * product.stride(), 0);
    missing = PARTS;
    ticket = ticket.load() / 256 * 256 + 256;
    ticket.notify_all();
    work();
    while (missing > 0) std::this_thread::yield();
  }
};

// C (m,n) = alpha * A B + beta * C
void few_rows(int m, int n, int k, float alpha, const float* a, long row, long step,
              const float* b, long ldb, float beta, float* c, long ldc) {
  static Team& team = *new Team;  // never destroyed: its threads end with the process
  const std::lock_guard lock(team.in_use);
  Product& product = team.product;
  product.m = m, product.n = n, product.k = k;
  product.a = a, product.row = row, product.step = step;
  product.b = b, product.ldb = ldb;
  team.compute_all();
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int p = 0; p < PARTS; ++p) sum += product.part(p)[i * product.stride() + j];
      float& value = c[i * ldc + j];
      value = alpha * sum + (beta == 0 ? 0 : beta * value);
    }
}
}  // namespace

extern "C" void mlx_transformer_use_blas(Gemm<float>* s, Gemm<double>* d,
                                         Gemm<void, const void*>* c) {
  sgemm = s, dgemm = d, cgemm = c;
}

extern "C" void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha,
                            const double* a, int lda, const double* b, int ldb, double beta,
                            double* c, int ldc) {
  dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

extern "C" void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k,
                            const void* alpha, const void* a, int lda, const void* b, int ldb,
                            const void* beta, void* c, int ldc) {
  cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float* a, int lda, const float* b, int ldb, float beta, float* c,
                            int ldc) {
  const bool few = order == ROW_MAJOR && trans_b == NO_TRANS && m <= FEW && n >= WIDTH &&
                   long(n) * k >= SMALL && k % (PARTS * PLACES) == 0;
  const int whole = few ? n - n % WIDTH : 0;  // columns; the rest is for the BLAS library
  if (few && trans_a == NO_TRANS)
    few_rows(m, whole, k, alpha, a, lda, 1, b, ldb, beta, c, ldc);
  else if (few)
    few_rows(m, whole, k, alpha, a, 1, lda, b, ldb, beta, c, ldc);
  if (whole < n)
    sgemm(order, trans_a, trans_b, m, n - whole, k, alpha, a, lda, b + whole, ldb, beta, c + whole,
          ldc);
}
