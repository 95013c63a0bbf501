// SPDX-License-Identifier: GPL-2.0
/*
 * testhca: an RDMA device without hardware, to test what manages RDMA devices.
 *
 *	rdma link add NAME type testhca netdev NETDEV
 *	rdma link delete NAME
 *
 * For namespaces and sysfs it is what the RDMA half of a NIC function is: a
 * RoCE device, child of the same PCI function as its netdev, that moves
 * between network namespaces in exclusive mode (rdma dev set NAME netns NS)
 * and, like mlx5's, stays while its netdev moves.
 *
 * It has no data path.  User space may open it, query it and allocate
 * protection domains; there are no queue pairs and no memory regions, and a
 * GID table that nobody uses on a wire.
 *
 *	echo 0000:01:00.0 > /sys/module/testhca/parameters/sf
 *	echo > /sys/module/testhca/parameters/sf
 *
 * makes and removes testhca.sf.1, a device of the auxiliary bus below that PCI
 * function, as a scalable function is: with a driver, and a netdev that loses
 * whatever it is to send.  An RDMA device over that netdev is its child.
 *
 *	echo 0000:01:00.0 > /sys/module/testhca/parameters/fatal
 *	echo > /sys/module/testhca/parameters/fatal
 *
 * has devlink say that the firmware of that PCI function has failed, as mlx5
 * does, and that it was recovered.  Meanwhile the function has a switch, with
 * a mode and nothing else.
 */
#if IS_ENABLED(CONFIG_AUXILIARY_BUS)
#include <linux/auxiliary_bus.h>
#endif
#include <linux/etherdevice.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/string.h>
#include <net/addrconf.h>
#include <net/devlink.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_netlink.h>

#include "contexts.h"
#include "older.h"

#define HCA_PORT	1
#define HCA_GIDS	64

struct hca {
	struct ib_device ib;
	struct list_head list;
	/* To recognise it when it comes back; no reference, NULL once gone. */
	struct net_device *netdev;
};

/* Devices, and their netdev fields.  Taken inside RTNL, by the notifier. */
static DEFINE_MUTEX(hcas_lock);
static LIST_HEAD(hcas);

static struct hca *to_hca(struct ib_device *ib)
{
	return container_of(ib, struct hca, ib);
}

/* 7.2's core calls this with no udata at all. */
static int hca_query_device(struct ib_device *ib, struct ib_device_attr *attr,
			    struct ib_udata *udata)
{
	attr->sys_image_guid = ib->node_guid;
	attr->kernel_cap_flags = IBK_ALLOW_USER_UNREG; /* rdma link delete */
	attr->max_pd = 1024;
	attr->max_pkeys = 1;
	attr->page_size_cap = PAGE_SIZE;
	return 0;
}

static bool hca_carrier(struct net_device *netdev)
{
	return netif_running(netdev) && netif_carrier_ok(netdev);
}

/* With a reference, or NULL. */
static struct net_device *hca_netdev(struct ib_device *ib, hca_port_t port)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
	struct net_device *netdev;

	/* It is forgotten before the kernel waits for such readers. */
	rcu_read_lock();
	netdev = READ_ONCE(to_hca(ib)->netdev);
	if (netdev)
		dev_hold(netdev);
	rcu_read_unlock();
	return netdev;
#else
	return ib_device_get_netdev(ib, port);
#endif
}

static int hca_query_port(struct ib_device *ib, hca_port_t port,
			  struct ib_port_attr *attr)
{
	struct net_device *netdev = hca_netdev(ib, port);
	bool active = netdev && hca_carrier(netdev);

	attr->state = active ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = active ? IB_PORT_PHYS_STATE_LINK_UP :
				    IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = netdev ? iboe_get_mtu(netdev->mtu) : IB_MTU_4096;
	attr->active_speed = IB_SPEED_EDR;
	attr->active_width = IB_WIDTH_4X;
	attr->gid_tbl_len = HCA_GIDS;
	attr->pkey_tbl_len = 1;
	if (netdev)
		dev_put(netdev);
	return 0;
}

static int hca_query_pkey(struct ib_device *ib, hca_port_t port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static enum rdma_link_layer hca_get_link_layer(struct ib_device *ib, hca_port_t port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int hca_get_port_immutable(struct ib_device *ib, hca_port_t port,
				  struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_CAP_PROT_ROCE |
				    RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP;
	immutable->gid_tbl_len = HCA_GIDS;
	immutable->pkey_tbl_len = 1;
	return 0;
}

static void hca_dealloc_driver(struct ib_device *ib)
{
	mutex_lock(&hcas_lock);
	list_del_init(&to_hca(ib)->list);
	mutex_unlock(&hcas_lock);
}

static const struct ib_device_ops hca_ops = {
	.owner = THIS_MODULE,
	/* libibverbs opens siw's with nothing but what is here. */
	.driver_id = RDMA_DRIVER_SIW,
	.uverbs_abi_ver = 1,

	TEST_CONTEXT_OPS,
	.dealloc_driver = hca_dealloc_driver,
	.get_link_layer = hca_get_link_layer,
	.get_port_immutable = hca_get_port_immutable,
	.query_device = hca_query_device,
	.query_pkey = hca_query_pkey,
	.query_port = hca_query_port,
};

static int hca_newlink(const char *name, struct net_device *netdev)
{
	struct ib_device *other;
	struct hca *hca;
	int err;

	if (netdev->type != ARPHRD_ETHER)
		return -EINVAL;
	other = ib_device_get_by_netdev(netdev, RDMA_DRIVER_UNKNOWN);
	if (other) {
		ib_device_put(other);
		return -EEXIST;
	}

	hca = ib_alloc_device(hca, ib);
	if (!hca)
		return -ENOMEM;
	INIT_LIST_HEAD(&hca->list);
	hca->netdev = netdev;
	hca->ib.dev.parent = netdev->dev.parent;
	hca->ib.node_type = RDMA_NODE_IB_CA;
	hca->ib.phys_port_cnt = 1;
	hca->ib.num_comp_vectors = 1;
	strscpy(hca->ib.node_desc, KBUILD_MODNAME, sizeof(hca->ib.node_desc));
	addrconf_addr_eui48((u8 *)&hca->ib.node_guid, netdev->dev_addr);
	ib_set_device_ops(&hca->ib, &hca_ops);
	/* Or the rules of rdma-core would rename it. */
	ib_mark_name_assigned_by_user(&hca->ib);

	err = ib_device_set_netdev(&hca->ib, netdev, HCA_PORT);
	if (err)
		goto err_dealloc;
	mutex_lock(&hcas_lock);
	list_add_tail(&hca->list, &hcas);
	mutex_unlock(&hcas_lock);
	err = ib_register_device(&hca->ib, name, NULL);
	if (err)
		goto err_dealloc;
	return 0;

err_dealloc:
	ib_dealloc_device(&hca->ib); /* calls hca_dealloc_driver() */
	return err;
}

static struct rdma_link_ops hca_link_ops = {
	.type = "testhca",
	.newlink = hca_newlink,
};

static void hca_port_event(struct hca *hca, struct net_device *netdev)
{
	struct ib_event event = {
		.device = &hca->ib,
		.element.port_num = HCA_PORT,
		.event = hca_carrier(netdev) ? IB_EVENT_PORT_ACTIVE :
					       IB_EVENT_PORT_ERR,
	};

	ib_dispatch_event(&event);
}

static void hca_follow(struct hca *hca, struct net_device *netdev,
		       unsigned long event)
{
	switch (event) {
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		hca_port_event(hca, netdev);
		break;
	case NETDEV_REGISTER: /* in another namespace */
		ib_device_set_netdev(&hca->ib, netdev, HCA_PORT);
		break;
	case NETDEV_UNREGISTER:
		if (netdev->reg_state == NETREG_REGISTERED) {
			/* It moves, and is registered again there. */
			ib_device_set_netdev(&hca->ib, NULL, HCA_PORT);
		} else {
			hca->netdev = NULL;
			ib_unregister_device_queued(&hca->ib);
		}
		break;
	}
}

static int hca_netdev_event(struct notifier_block *nb, unsigned long event,
			    void *ptr)
{
	struct net_device *netdev = netdev_notifier_info_to_dev(ptr);
	struct hca *hca;

	mutex_lock(&hcas_lock);
	list_for_each_entry(hca, &hcas, list) {
		/* Not those that are not registered yet, or no longer. */
		if (hca->netdev == netdev && ib_device_try_get(&hca->ib)) {
			hca_follow(hca, netdev, event);
			ib_device_put(&hca->ib);
		}
	}
	mutex_unlock(&hcas_lock);
	return NOTIFY_DONE;
}

/* Before the core's own, which gives a netdev that came back its GIDs. */
static struct notifier_block hca_netdev_notifier = {
	.notifier_call = hca_netdev_event,
	.priority = 1,
};

/*
 * What a parameter names is unmade, and made of another function if one is
 * named.
 */
static int set_function(const char *value, void (*unmake)(void),
			int (*make)(struct pci_dev *function))
{
	unsigned int domain, bus, slot, number;
	struct pci_dev *function;
	int err;

	unmake();
	if (sscanf(value, "%x:%x:%x.%x", &domain, &bus, &slot, &number) != 4)
		return 0;
	function = pci_get_domain_bus_and_slot(domain, bus,
					       PCI_DEVFN(slot, number));
	if (!function)
		return -ENODEV;
	err = make(function);
	pci_dev_put(function);
	return err;
}

#if IS_ENABLED(CONFIG_AUXILIARY_BUS)
static netdev_tx_t sf_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops sf_netdev_ops = {
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_start_xmit = sf_xmit,
	.ndo_validate_addr = eth_validate_addr,
};

static int sf_probe(struct auxiliary_device *sf,
		    const struct auxiliary_device_id *id)
{
	struct net_device *netdev = alloc_etherdev(0);
	int err;

	if (!netdev)
		return -ENOMEM;
	SET_NETDEV_DEV(netdev, &sf->dev);
	eth_hw_addr_random(netdev);
	netdev->netdev_ops = &sf_netdev_ops;
	netdev->max_mtu = 9000;
	err = register_netdev(netdev);
	if (err) {
		free_netdev(netdev);
		return err;
	}
	auxiliary_set_drvdata(sf, netdev);
	return 0;
}

static void sf_remove(struct auxiliary_device *sf)
{
	struct net_device *netdev = auxiliary_get_drvdata(sf);

	unregister_netdev(netdev);
	free_netdev(netdev);
}

static const struct auxiliary_device_id sf_ids[] = {
	{ .name = KBUILD_MODNAME ".sf" },
	{}
};

static struct auxiliary_driver sf_driver = {
	.name = "sf",
	.id_table = sf_ids,
	.probe = sf_probe,
	.remove = sf_remove,
};

/* The one there is; param_lock is the kernel's, for each write. */
static struct auxiliary_device *the_sf;

static void sf_release(struct device *dev)
{
	kfree(to_auxiliary_dev(dev));
}

static int sf_make(struct pci_dev *function)
{
	struct auxiliary_device *sf = kzalloc(sizeof(*sf), GFP_KERNEL);
	int err;

	if (!sf)
		return -ENOMEM;
	sf->name = "sf";
	sf->id = 1;
	sf->dev.parent = &function->dev;
	sf->dev.release = sf_release;
	err = auxiliary_device_init(sf);
	if (err) {
		kfree(sf);
		return err;
	}
	err = auxiliary_device_add(sf);
	if (err) {
		auxiliary_device_uninit(sf);
		return err;
	}
	the_sf = sf;
	return 0;
}

static void sf_unmake(void)
{
	if (the_sf) {
		auxiliary_device_delete(the_sf);
		auxiliary_device_uninit(the_sf);
		the_sf = NULL;
	}
}

static int sf_set(const char *value, const struct kernel_param *kp)
{
	return set_function(value, sf_unmake, sf_make);
}

static const struct kernel_param_ops sf_param_ops = { .set = sf_set };

module_param_cb(sf, &sf_param_ops, NULL, 0200);

static int sf_init(void)
{
	return auxiliary_driver_register(&sf_driver);
}

static void sf_exit(void)
{
	sf_unmake();
	auxiliary_driver_unregister(&sf_driver);
}
#else
static int sf_init(void)
{
	return 0;
}

static void sf_exit(void)
{
}
#endif

static u16 switch_mode;

static int switch_mode_get(struct devlink *devlink, u16 *mode)
{
	*mode = switch_mode;
	return 0;
}

static int switch_mode_set(struct devlink *devlink, u16 mode,
			   struct netlink_ext_ack *extack)
{
	switch_mode = mode;
	return 0;
}

static const struct devlink_ops fatal_devlink_ops = {
	.eswitch_mode_get = switch_mode_get,
	.eswitch_mode_set = switch_mode_set,
};

static const struct devlink_health_reporter_ops fatal_reporter_ops = {
	.name = "fw_fatal",
};

/* The one there is, and its reporter. */
static struct devlink *the_devlink;
static struct devlink_health_reporter *the_reporter;

static void fatal_unmake(void)
{
	if (!the_devlink)
		return;
	devlink_health_reporter_state_update(the_reporter,
			DEVLINK_HEALTH_REPORTER_STATE_HEALTHY);
	devlink_unregister(the_devlink);
	devlink_health_reporter_destroy(the_reporter);
	devlink_free(the_devlink);
	the_devlink = NULL;
}

static int fatal_make(struct pci_dev *function)
{
	the_devlink = devlink_alloc(&fatal_devlink_ops, sizeof(long),
				    &function->dev);
	if (!the_devlink)
		return -ENOMEM;
	the_reporter = devlink_health_reporter_create(the_devlink,
						      &fatal_reporter_ops, NULL);
	if (IS_ERR(the_reporter)) {
		devlink_free(the_devlink);
		the_devlink = NULL;
		return PTR_ERR(the_reporter);
	}
	DEVLINK_REGISTER(the_devlink, &function->dev);
	devlink_health_report(the_reporter, "on request", NULL);
	return 0;
}

static int fatal_set(const char *value, const struct kernel_param *kp)
{
	return set_function(value, fatal_unmake, fatal_make);
}

static const struct kernel_param_ops fatal_param_ops = { .set = fatal_set };

module_param_cb(fatal, &fatal_param_ops, NULL, 0200);

static int __init hca_init(void)
{
	int err = register_netdevice_notifier(&hca_netdev_notifier);

	if (err)
		return err;
	err = sf_init();
	if (err) {
		unregister_netdevice_notifier(&hca_netdev_notifier);
		return err;
	}
	rdma_link_register(&hca_link_ops);
	return 0;
}

static void __exit hca_exit(void)
{
	fatal_unmake();
	sf_exit();
	rdma_link_unregister(&hca_link_ops);
	unregister_netdevice_notifier(&hca_netdev_notifier);
	ib_unregister_driver(RDMA_DRIVER_SIW);
}

module_init(hca_init);
module_exit(hca_exit);

MODULE_ALIAS_RDMA_LINK("testhca");
MODULE_DESCRIPTION("RDMA device without hardware, for tests");
MODULE_LICENSE("GPL");
