/* SPDX-License-Identifier: Apache-2.0 */
#include <pmsis.h>

struct pi_default_ram_conf { int id; };
void pi_default_ram_conf_init(struct pi_default_ram_conf *conf);
int pi_ram_open(struct pi_device *device);
int pi_ram_alloc(struct pi_device *device, uint32_t *address, uint32_t size);
void pi_cl_ram_read(struct pi_device *device, uint32_t address, void *data, uint32_t size, pi_cl_ram_req_t *request);
void pi_cl_ram_write(struct pi_device *device, uint32_t address, void *data, uint32_t size, pi_cl_ram_req_t *request);
void pi_cl_ram_copy_wait(pi_cl_ram_req_t *request);
