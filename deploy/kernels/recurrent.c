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
        PT_STORE(a->Y, i, tanhf(PT_LOAD(a->P, i) + PT_LOAD(a->Q, i)));
}

/* (dy + carry) (1 - y^2), y in X. */
void rnn_cell_bw(const void *args)
{
    PT_ARGUMENTS(rnn_cell_bw, a);
    const struct pt_range own = pt_own(a->elements);
    for (int i = own.start; i < own.stop; i++)
        PT_STORE(a->Y, i,
                 (PT_LOAD(a->G, i) + PT_LOAD(a->D, i)) * (1.0f - PT_LOAD(a->X, i)) * (1.0f + PT_LOAD(a->X, i)));
}

/* Gates reset, update, new in place of the projection P; Q = h Wh; N keeps the part of `new` that reset multiplies. */
void gru_cell_fw(const void *args)
{
    PT_ARGUMENTS(gru_cell_fw, a);
    const struct pt_range own = pt_own(a->elements);
    PT_POINTER to_reset = a->P;
    PT_POINTER to_update = to_reset + a->elements;
    PT_POINTER to_new = to_update + a->elements;
    PT_POINTER of_reset = a->Q;
    PT_POINTER of_update = of_reset + a->elements;
    PT_POINTER of_new = of_update + a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float reset = pt_logistic(PT_LOAD(to_reset, i) + PT_LOAD(of_reset, i)),
            update = pt_logistic(PT_LOAD(to_update, i) + PT_LOAD(of_update, i));
        const float new = tanhf(PT_LOAD(to_new, i) + reset * PT_LOAD(of_new, i));
        PT_STORE(to_reset, i, reset);
        PT_STORE(to_update, i, update);
        PT_STORE(to_new, i, new);
        PT_STORE(a->N, i, PT_LOAD(of_new, i));
        PT_STORE(a->Y, i, new + update * (PT_LOAD(a->H, i) - new));
    }
}

/* Gradients at both products, Y at x Wx and Z at h Wh, and E, what goes around the gates. */
void gru_cell_bw(const void *args)
{
    PT_ARGUMENTS(gru_cell_bw, a);
    const struct pt_range own = pt_own(a->elements);
    const int n = a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float reset = PT_LOAD(a->P, i), update = PT_LOAD(a->P, n + i), new = PT_LOAD(a->P, 2 * n + i);
        const float gradient = PT_LOAD(a->G, i) + PT_LOAD(a->D, i);
        const float to_new = gradient * (1.0f - update) * (1.0f - new) * (1.0f + new);
        const float to_update = gradient * (PT_LOAD(a->H, i) - new) * update * (1.0f - update);
        const float to_reset = to_new * PT_LOAD(a->N, i) * reset * (1.0f - reset);
        PT_STORE(a->Z, i, to_reset);
        PT_STORE(a->Y, i, to_reset);
        PT_STORE(a->Z, n + i, to_update);
        PT_STORE(a->Y, n + i, to_update);
        PT_STORE(a->Y, 2 * n + i, to_new);
        PT_STORE(a->Z, 2 * n + i, to_new * reset);
        PT_STORE(a->E, i, gradient * update);
    }
}

/* Gates input, forget, candidate, output in place of P; cell C becomes D, the state is Y. */
void lstm_cell_fw(const void *args)
{
    PT_ARGUMENTS(lstm_cell_fw, a);
    const struct pt_range own = pt_own(a->elements);
    const int n = a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float let_in = pt_logistic(PT_LOAD(a->P, i) + PT_LOAD(a->Q, i));
        const float keep = pt_logistic(PT_LOAD(a->P, n + i) + PT_LOAD(a->Q, n + i));
        const float candidate = tanhf(PT_LOAD(a->P, 2 * n + i) + PT_LOAD(a->Q, 2 * n + i));
        const float let_out = pt_logistic(PT_LOAD(a->P, 3 * n + i) + PT_LOAD(a->Q, 3 * n + i));
        const float cell = keep * PT_LOAD(a->C, i) + let_in * candidate;
        PT_STORE(a->P, i, let_in);
        PT_STORE(a->P, n + i, keep);
        PT_STORE(a->P, 2 * n + i, candidate);
        PT_STORE(a->P, 3 * n + i, let_out);
        PT_STORE(a->D, i, cell);
        PT_STORE(a->Y, i, let_out * tanhf(cell));
    }
}

/* Gradients of the gates Y, and of the cell before in place of that of the cell after, Z; C and X are cells after and before. */
void lstm_cell_bw(const void *args)
{
    PT_ARGUMENTS(lstm_cell_bw, a);
    const struct pt_range own = pt_own(a->elements);
    const int n = a->elements;
    for (int i = own.start; i < own.stop; i++) {
        const float let_in = PT_LOAD(a->P, i), keep = PT_LOAD(a->P, n + i), candidate = PT_LOAD(a->P, 2 * n + i),
            let_out = PT_LOAD(a->P, 3 * n + i);
        const float gradient = PT_LOAD(a->G, i) + PT_LOAD(a->D, i), squashed = tanhf(PT_LOAD(a->C, i));
        const float at_cell = PT_LOAD(a->Z, i) + gradient * let_out * (1.0f - squashed) * (1.0f + squashed);
        PT_STORE(a->Y, i, at_cell * candidate * let_in * (1.0f - let_in));
        PT_STORE(a->Y, n + i, at_cell * PT_LOAD(a->X, i) * keep * (1.0f - keep));
        PT_STORE(a->Y, 2 * n + i, at_cell * let_in * (1.0f - candidate) * (1.0f + candidate));
        PT_STORE(a->Y, 3 * n + i, gradient * squashed * let_out * (1.0f - let_out));
        PT_STORE(a->Z, i, at_cell * keep);
    }
}
