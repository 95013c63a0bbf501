// SPDX-License-Identifier: GPL-2.0
/*
 * testdcb: Data Center Bridging for interfaces whose driver has none, to test
 * what reads it.
 *
 *	insmod testdcb.ko names=rail0,rail1
 *	dcb pfc set dev rail0 prio-pfc 3:on
 *
 * The kernel's own dcbnl answers, and keeps DSCPs and their priorities.  This
 * only keeps which priorities have PFC, as a driver does, and does nothing to
 * any packet.  The interfaces have to stay until the module goes.
 */
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/dcbnl.h>
#include <net/net_namespace.h>

#define TDCB_MOST	8
/* IEEE 802.1Qaz, run by the host. */
#define TDCB_DCBX	(DCB_CAP_DCBX_HOST | DCB_CAP_DCBX_VER_IEEE)

static char *names[TDCB_MOST];
static int found;
module_param_array(names, charp, &found, 0444);
MODULE_PARM_DESC(names, "the interfaces");

static struct tdcb_dev {
	struct net_device *netdev;
	netdevice_tracker tracker;
	u8 pfc;
	u8 trust[2];
	int trusts;
} devs[TDCB_MOST];

static struct tdcb_dev *tdcb_of(struct net_device *netdev)
{
	int i;

	for (i = 0; i < found - 1; i++)
		if (devs[i].netdev == netdev)
			break;
	return &devs[i];
}

static int tdcb_getpfc(struct net_device *netdev, struct ieee_pfc *pfc)
{
	memset(pfc, 0, sizeof(*pfc));
	pfc->pfc_cap = IEEE_8021QAZ_MAX_TCS;
	pfc->pfc_en = tdcb_of(netdev)->pfc;
	return 0;
}

static int tdcb_setpfc(struct net_device *netdev, struct ieee_pfc *pfc)
{
	tdcb_of(netdev)->pfc = pfc->pfc_en;
	return 0;
}

static int tdcb_setapptrust(struct net_device *netdev, u8 *selectors, int count)
{
	struct tdcb_dev *dev = tdcb_of(netdev);

	if (count > (int)sizeof(dev->trust))
		return -EOPNOTSUPP;
	memcpy(dev->trust, selectors, count);
	dev->trusts = count;
	return 0;
}

static int tdcb_getapptrust(struct net_device *netdev, u8 *selectors, int *count)
{
	struct tdcb_dev *dev = tdcb_of(netdev);

	memcpy(selectors, dev->trust, dev->trusts);
	*count = dev->trusts;
	return 0;
}

static u8 tdcb_getdcbx(struct net_device *netdev)
{
	return TDCB_DCBX;
}

static const struct dcbnl_rtnl_ops tdcb_ops = {
	.ieee_getpfc = tdcb_getpfc,
	.ieee_setpfc = tdcb_setpfc,
	.dcbnl_setapptrust = tdcb_setapptrust,
	.dcbnl_getapptrust = tdcb_getapptrust,
	.getdcbx = tdcb_getdcbx,
};

static void tdcb_forget(int count)
{
	rtnl_lock();
	while (count--) {
		devs[count].netdev->dcbnl_ops = NULL;
		netdev_put(devs[count].netdev, &devs[count].tracker);
	}
	rtnl_unlock();
}

static int __init tdcb_init(void)
{
	struct net_device *netdev;
	int i;

	for (i = 0; i < found; i++) {
		netdev = netdev_get_by_name(&init_net, names[i], &devs[i].tracker, GFP_KERNEL);
		if (!netdev || netdev->dcbnl_ops) {
			netdev_put(netdev, &devs[i].tracker);
			tdcb_forget(i);
			return netdev ? -EEXIST : -ENODEV;
		}
		devs[i].netdev = netdev;
		rtnl_lock();
		netdev->dcbnl_ops = &tdcb_ops;
		rtnl_unlock();
	}
	return 0;
}

static void __exit tdcb_exit(void)
{
	tdcb_forget(found);
}

module_init(tdcb_init);
module_exit(tdcb_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("DCB for interfaces whose driver has none");
