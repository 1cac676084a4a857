/* SPDX-License-Identifier: Apache-2.0
 *
 * One time step of the recurrent cells, units over the cores; gates lie one behind the other, `elements` units each. */
#include "kernels.h"
#include "elementary.h"

/* arguments */
struct rnn_cell_fw { const float *P, *Q; float *Y; int elements; };
struct rnn_cell_bw { const float *X, *G, *D; float *Y; int elements; };
struct gru_cell_fw { float *P; const float *Q, *H; float *Y, *N; int elements; };
struct gru_cell_bw { const float *P, *N, *H, *G, *D; float *Y, *Z, *E; int elements; };
struct lstm_cell_fw { float *P; const float *Q, *C; float *D, *Y; int elements; };
struct lstm_cell_bw { const float *P, *C, *X, *G, *D; float *Z, *Y; int elements; };
/* end */

/* y = tanh(p + q). */
void rnn_cell_fw(const void *args)
{
    PT_ARGUMENTS(rnn_cell_fw, a);
    const struct pt_range own = pt_own(a->elements);
    for (int i = own.start; i < own.stop; i++)
        a->Y[i] = tanhf(a->P[i] + a->Q[i]);
}

/* (dy + carry) (1 - y^2), y in X. */
void rnn_cell_bw(const void *args)
{
    PT_ARGUMENTS(rnn_cell_bw, a);
    const struct pt_range own = pt_own(a->elements);
    for (int i = own.start; i < own.stop; i++)
        a->Y[i] = (a->G[i] + a->D[i]) * (1.0f - a->X[i]) * (1.0f + a->X[i]);
}

/* Gates reset, update, new in place of the projection P; Q = h Wh; N keeps the part of `new` that reset multiplies. */
void gru_cell_fw(const void *args)
{
    PT_ARGUMENTS(gru_cell_fw, a);
    const struct pt_range own = pt_own(a->elements);
    float *to_reset = a->P, *to_update = to_reset + a->elements, *to_new = to_update + a->elements;
    const float *of_reset = a->Q, *of_update = of_reset + a->elements, *of_new = of_update + a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float reset = pt_logistic(to_reset[i] + of_reset[i]), update = pt_logistic(to_update[i] + of_update[i]);
        const float new = tanhf(to_new[i] + reset * of_new[i]);
        to_reset[i] = reset;
        to_update[i] = update;
        to_new[i] = new;
        a->N[i] = of_new[i];
        a->Y[i] = new + update * (a->H[i] - new);
    }
}

/* Gradients at both products, Y at x Wx and Z at h Wh, and E, what goes around the gates. */
void gru_cell_bw(const void *args)
{
    PT_ARGUMENTS(gru_cell_bw, a);
    const struct pt_range own = pt_own(a->elements);
    const int n = a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float reset = a->P[i], update = a->P[n + i], new = a->P[2 * n + i];
        const float gradient = a->G[i] + a->D[i];
        const float to_new = gradient * (1.0f - update) * (1.0f - new) * (1.0f + new);
        const float to_update = gradient * (a->H[i] - new) * update * (1.0f - update);
        const float to_reset = to_new * a->N[i] * reset * (1.0f - reset);
        a->Y[i] = a->Z[i] = to_reset;
        a->Y[n + i] = a->Z[n + i] = to_update;
        a->Y[2 * n + i] = to_new;
        a->Z[2 * n + i] = to_new * reset;
        a->E[i] = gradient * update;
    }
}

/* Gates input, forget, candidate, output in place of P; cell C becomes D, the state is Y. */
void lstm_cell_fw(const void *args)
{
    PT_ARGUMENTS(lstm_cell_fw, a);
    const struct pt_range own = pt_own(a->elements);
    const int n = a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float let_in = pt_logistic(a->P[i] + a->Q[i]), keep = pt_logistic(a->P[n + i] + a->Q[n + i]);
        const float candidate = tanhf(a->P[2 * n + i] + a->Q[2 * n + i]);
        const float let_out = pt_logistic(a->P[3 * n + i] + a->Q[3 * n + i]);
        const float cell = keep * a->C[i] + let_in * candidate;
        a->P[i] = let_in;
        a->P[n + i] = keep;
        a->P[2 * n + i] = candidate;
        a->P[3 * n + i] = let_out;
        a->D[i] = cell;
        a->Y[i] = let_out * tanhf(cell);
    }
}

/* Gradients of the gates Y, and of the cell before in place of that of the cell after, Z; C and X are cells after and before. */
void lstm_cell_bw(const void *args)
{
    PT_ARGUMENTS(lstm_cell_bw, a);
    const struct pt_range own = pt_own(a->elements);
    const int n = a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float let_in = a->P[i], keep = a->P[n + i], candidate = a->P[2 * n + i], let_out = a->P[3 * n + i];
        const float gradient = a->G[i] + a->D[i], squashed = tanhf(a->C[i]);
        const float at_cell = a->Z[i] + gradient * let_out * (1.0f - squashed) * (1.0f + squashed);
        a->Y[i] = at_cell * candidate * let_in * (1.0f - let_in);
        a->Y[n + i] = at_cell * a->X[i] * keep * (1.0f - keep);
        a->Y[2 * n + i] = at_cell * let_in * (1.0f - candidate) * (1.0f + candidate);
        a->Y[3 * n + i] = gradient * squashed * let_out * (1.0f - let_out);
        a->Z[i] = at_cell * keep;
    }
}
