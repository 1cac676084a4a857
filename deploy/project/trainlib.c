/* Matmuls of PULP-TrainLib, where it is linked. */
#ifdef PT_TRAINLIB
#include "pulp_train.h"

/* theirs */

#include "kernels.h"

static void bridge(void (*theirs)(void *), void (*ours)(const void *), const void *args)
{
    const struct matmul *g = args;
    const int plain = g->trans_b ? g->B_s[0] == 1 && g->B_s[1] == g->K : g->B_s[0] == g->M && g->B_s[1] == 1;
    const int rows = g->A_s[0] == g->K && g->A_s[1] == 1 && g->C_s[0] == g->M && g->C_s[1] == 1;
    if (!plain || !rows || g->accumulate) {
        ours(args);
        return;
    }
    struct matMul_args call = {.A = (float *)g->A, .B = (float *)g->B, .C = g->C};
    call.N = g->N, call.K = g->K, call.M = g->M, call.trans_B = g->trans_b;
    theirs(&call);
}

/* bridges */
#else
typedef int pt_not_linked;
#endif
