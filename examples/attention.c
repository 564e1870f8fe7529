/* Attention in C: 8 query heads share 2 key heads, the log-sum-exp is asked for, and a mistake is
 * made on purpose to see the sentence it gets. */
#include <octavo/octavo.h>
#include <stdio.h>

enum { kHeads = 8, kKeyHeads = 2, kRows = 128, kDim = 64 };
static float q[kHeads * kRows * kDim], k[kKeyHeads * kRows * kDim], v[kKeyHeads * kRows * kDim];
static float out[kHeads * kRows * kDim], lse[kHeads * kRows];

int main(void) {
  octavo_arguments arguments;
  octavo_arguments_init(&arguments);
  for (int i = 0; i < kKeyHeads * kRows * kDim; ++i) v[i] = (float)(i / kDim % kRows);
  arguments.q = octavo_tensor_bhsd(q, OCTAVO_F32, 1, kHeads, kRows, kDim);
  arguments.k = octavo_tensor_bhsd(k, OCTAVO_F32, 1, kKeyHeads, kRows, kDim);
  arguments.v = octavo_tensor_bhsd(v, OCTAVO_F32, 1, kKeyHeads, kRows, kDim);
  arguments.out = octavo_tensor_bhsd(out, OCTAVO_F32, 1, kHeads, kRows, kDim);
  arguments.lse = octavo_tensor_bhsd(lse, OCTAVO_F32, 1, kHeads, kRows, 1);
  if (octavo_attention(&arguments, NULL, "cpu", NULL) != OCTAVO_OK) {
    fprintf(stderr, "%s\n", octavo_last_error());
    return 1;
  }
  /* Queries of zeros see every key alike: the mean row, and ln(128). */
  printf("%.1f %.4f\n", out[0], lse[0]);

  arguments.k.shape[1] = arguments.v.shape[1] = 3; /* does not divide 8 */
  if (octavo_attention(&arguments, NULL, "cpu", NULL) == OCTAVO_OK) return 1;
  printf("%s\n", octavo_last_error());
  return 0;
}
