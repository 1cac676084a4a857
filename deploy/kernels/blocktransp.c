/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

/* arguments */
struct blocktransp {
    const float *X;
    float *Y;
    int filter_s[3], co, ci, hk, wk, hwc, own_first, own_group, met_first, met_group, fetched;
};
/* end */

/* Weights [co, ci, window] to rows [co, window] (HWC: [window, co]) of every input channel, windows reversed: output
 * channels over the cores. Of several groups each input channel has the `co` output channels of its own. */
void blocktransp(const void *args)
{
    PT_ARGUMENTS(blocktransp, g);
    const int window = g->hk * g->wk, of_channel = g->hwc ? 1 : window, of_tap = g->hwc ? g->co : 1;
    const struct pt_range own = pt_own(g->co);
    for (int o = own.start; o < own.stop; o++)
        for (int i = 0; i < g->ci; i++) {
            const int target = g->met_first + (g->own_first + i) / g->own_group * g->met_group + o;
            const int source = (g->own_first + i) % g->own_group - g->fetched;
            PT_POINTER x = g->X + target * g->filter_s[0] + source * g->filter_s[1];
            PT_POINTER y = g->Y + i * g->co * window + o * of_channel;
            for (int e = 0; e < window; e++)
                PT_STORE(y, (window - 1 - e) * of_tap, PT_LOAD(x, e * g->filter_s[2]));
        }
}
