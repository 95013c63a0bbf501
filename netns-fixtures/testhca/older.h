/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What older kernels call otherwise, down to Linux 5.10.  They have no
 * auxiliary bus before 5.11, and so no scalable functions.
 */
#include <linux/netdevice.h>
#include <linux/version.h>
#include <net/devlink.h>
#include <rdma/ib_verbs.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 14, 0)
typedef u8 hca_port_t;
#else
typedef u32 hca_port_t;
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 0, 0)
#define kernel_cap_flags device_cap_flags
#define IBK_ALLOW_USER_UNREG IB_DEVICE_ALLOW_USER_UNREG
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
/* These rename nothing without udev. */
#define ib_mark_name_assigned_by_user(ib)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 15, 0)
#define devlink_alloc(ops, size, parent) devlink_alloc(ops, size)
#define DEVLINK_REGISTER(devlink, parent) devlink_register(devlink, parent)
#else
#define DEVLINK_REGISTER(devlink, parent) devlink_register(devlink)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 18, 0)
#define devlink_health_reporter_create(devlink, ops, priv) \
	devlink_health_reporter_create(devlink, ops, 0, priv)
#endif
