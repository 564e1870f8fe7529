// SPDX-License-Identifier: Apache-2.0
/* Attention in C: 8 query heads share 2 KV heads, the log-sum-exp is computed too, and a deliberate
 * mistake shows an error message. */
#include <octavo/octavo.h>
#include <stdio.h>

enum { kHeads = 8, kHeadsKv = 2, kSeqlen = 128, kDim = 64 };
static float q[kHeads * kSeqlen * kDim], k[kHeadsKv * kSeqlen * kDim], v[kHeadsKv * kSeqlen * kDim];
static float out[kHeads * kSeqlen * kDim], lse[kHeads * kSeqlen];

int main(void) {
  octavo_arguments arguments;
  octavo_arguments_init(&arguments);
  for (int i = 0; i < kHeadsKv * kSeqlen * kDim; ++i) v[i] = (float)(i / kDim % kSeqlen);
  arguments.q = octavo_tensor_bhsd(q, OCTAVO_F32, 1, kHeads, kSeqlen, kDim);
  arguments.k = octavo_tensor_bhsd(k, OCTAVO_F32, 1, kHeadsKv, kSeqlen, kDim);
  arguments.v = octavo_tensor_bhsd(v, OCTAVO_F32, 1, kHeadsKv, kSeqlen, kDim);
  arguments.out = octavo_tensor_bhsd(out, OCTAVO_F32, 1, kHeads, kSeqlen, kDim);
  arguments.lse = octavo_tensor_bhsd(lse, OCTAVO_F32, 1, kHeads, kSeqlen, 1);
  if (octavo_attention(&arguments, NULL, "cpu", NULL) != OCTAVO_OK) {
    fprintf(stderr, "%s\n", octavo_last_error());
    return 1;
  }
  /* Zero queries weight all keys equally: the output is the mean of V, and the LSE is ln(128). */
  printf("%.1f %.4f\n", out[0], lse[0]);

  arguments.k.shape[1] = arguments.v.shape[1] = 3; /* does not divide 8 */
  if (octavo_attention(&arguments, NULL, "cpu", NULL) == OCTAVO_OK) return 1;
  printf("%s\n", octavo_last_error());
  return 0;
}
