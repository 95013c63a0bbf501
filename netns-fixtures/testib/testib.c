// SPDX-License-Identifier: GPL-2.0
/*
 * testib: an InfiniBand HCA without hardware, to test what manages HCAs.
 *
 *	echo testib >/sys/bus/pci/devices/FUNCTION/driver_override
 *	echo FUNCTION >/sys/bus/pci/drivers/testib/bind
 *
 * A PCI driver for whatever function it is told to drive, a PF or its VFs:
 * the function's RDMA device has InfiniBand for its link layer, and answers
 * the kernel's own clients (ib_mad, ib_sa, ib_ipoib, ib_umad), so that the
 * stock ib_ipoib makes its netdev.  Devices are named testib0, testib1, ...
 *
 * As with mlx5, a VF's GUIDs and link state are kept by the PF, through whose
 * netdev they are set (ip link set ib0 vf N node_guid ...), and a VF has the
 * GUIDs that its PF had for it when its driver was bound: a change takes
 * another bind.  A GUID that was never set reads as zero, and the VF has one
 * of its own then.
 *
 * The wire swallows every packet.  There is no subnet manager, so no netdev
 * ever has a carrier.
 */
#include <linux/delay.h>
#include <linux/if_link.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/version.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_verbs.h>

#include "contexts.h"

#define TIB_PORT	1
#define TIB_PKEYS	4
#define TIB_CQES	4096
#define TIB_MAX_VFS	64
#define TIB_OUI		0x7e57000000000000ULL

/* What firmware that does not answer looks like from outside. */
static unsigned int remove_ms;
module_param(remove_ms, uint, 0644);
MODULE_PARM_DESC(remove_ms, "how long it takes to unbind a VF");

static bool bare;
module_param(bare, bool, 0644);
MODULE_PARM_DESC(bare, "bind without an RDMA device, as mlx5_core does without mlx5_ib");

static unsigned int files_ms;
module_param(files_ms, uint, 0644);
MODULE_PARM_DESC(files_ms, "how long a netdev lacks ib_ipoib's own files");

static bool unplugged;
module_param(unplugged, bool, 0644);
MODULE_PARM_DESC(unplugged, "no port is active, as without a cable");

/* What a PF keeps of a VF. */
struct tib_vf {
	u64 node_guid;
	u64 port_guid;
	u32 link_state;
};

struct tib_dev {
	struct ib_device ib;
	__be64 port_guid;
	struct tib_vf vfs[TIB_MAX_VFS];
};

struct tib_ah {
	struct ib_ah ib;
};

struct tib_cq {
	struct ib_cq ib;
	spinlock_t lock;
	bool armed;
	u32 head, tail;
	struct ib_wc *wc;
};

struct tib_qp {
	struct ib_qp ib;
	spinlock_t lock;
	enum ib_qp_state state;
	u32 head, tail, size;
	u64 *wr_id; /* of what waits to receive, for ever */
};

static struct pci_driver tib_driver;

static struct tib_dev *to_tdev(struct ib_device *ib)
{
	return container_of(ib, struct tib_dev, ib);
}

static struct tib_cq *to_tcq(struct ib_cq *ib)
{
	return container_of(ib, struct tib_cq, ib);
}

static struct tib_qp *to_tqp(struct ib_qp *ib)
{
	return container_of(ib, struct tib_qp, ib);
}

static int tib_query_device(struct ib_device *ib, struct ib_device_attr *attr,
			    struct ib_udata *udata)
{
	bool is_vf = to_pci_dev(ib->dev.parent)->is_virtfn;

	attr->sys_image_guid = ib->node_guid;
	attr->kernel_cap_flags = IBK_LOCAL_DMA_LKEY |
				 (is_vf ? IBK_VIRTUAL_FUNCTION : 0);
	attr->max_mr_size = U64_MAX;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_ah = attr->max_cq = attr->max_mr = attr->max_pd = 1024;
	attr->max_qp = 1024;
	attr->max_qp_wr = attr->max_cqe = TIB_CQES;
	attr->max_recv_sge = attr->max_send_sge = 32;
	attr->max_mcast_grp = attr->max_mcast_qp_attach = 64;
	attr->max_pkeys = TIB_PKEYS;
	return 0;
}

static int tib_query_port(struct ib_device *ib, u32 port,
			  struct ib_port_attr *attr)
{
	attr->state = unplugged ? IB_PORT_DOWN : IB_PORT_ACTIVE;
	attr->phys_state = unplugged ? IB_PORT_PHYS_STATE_POLLING :
				       IB_PORT_PHYS_STATE_LINK_UP;
	attr->max_mtu = attr->active_mtu = IB_MTU_4096;
	attr->active_speed = IB_SPEED_EDR;
	attr->active_width = IB_WIDTH_4X;
	attr->gid_tbl_len = 1;
	attr->pkey_tbl_len = TIB_PKEYS;
	attr->max_msg_sz = 1U << 31;
	attr->max_vl_num = 1;
	attr->lid = attr->sm_lid = 1;
	return 0;
}

static int tib_query_gid(struct ib_device *ib, u32 port, int index,
			 union ib_gid *gid)
{
	if (index)
		return -EINVAL;
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
	gid->global.interface_id = to_tdev(ib)->port_guid;
	return 0;
}

static int tib_query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	if (index >= TIB_PKEYS)
		return -EINVAL;
	*pkey = index ? 0x8000 + index : IB_DEFAULT_PKEY_FULL;
	return 0;
}

static enum rdma_link_layer tib_get_link_layer(struct ib_device *ib, u32 port)
{
	return IB_LINK_LAYER_INFINIBAND;
}

static int tib_get_port_immutable(struct ib_device *ib, u32 port,
				  struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	immutable->gid_tbl_len = 1;
	immutable->pkey_tbl_len = TIB_PKEYS;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static int tib_modify_port(struct ib_device *ib, u32 port, int mask,
			   struct ib_port_modify *props)
{
	return 0;
}

static int tib_create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *attr,
			 struct ib_udata *udata)
{
	return 0;
}

static int tib_destroy_ah(struct ib_ah *ah, u32 flags)
{
	return 0;
}

static int tib_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid)
{
	return 0;
}

/*
 * Never called, for the kernel has its local DMA lkey and user space no queue
 * pairs; but the core takes a device that lacks them for one without verbs.
 */
static struct ib_mr *tib_get_dma_mr(struct ib_pd *pd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
static struct ib_mr *tib_reg_user_mr(struct ib_pd *pd, u64 start, u64 length,
				     u64 virt_addr, int access,
				     struct ib_dmah *dmah,
				     struct ib_udata *udata)
#else
static struct ib_mr *tib_reg_user_mr(struct ib_pd *pd, u64 start, u64 length,
				     u64 virt_addr, int access,
				     struct ib_udata *udata)
#endif
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int tib_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	return 0;
}

static int tib_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
			 struct uverbs_attr_bundle *attrs)
{
	struct tib_cq *cq = to_tcq(ib);

	cq->wc = kvcalloc(TIB_CQES, sizeof(*cq->wc), GFP_KERNEL);
	if (!cq->wc)
		return -ENOMEM;
	spin_lock_init(&cq->lock);
	ib->cqe = TIB_CQES;
	return 0;
}

static int tib_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	kvfree(to_tcq(ib)->wc);
	return 0;
}

static void tib_complete(struct ib_cq *ib, struct ib_qp *qp, u64 wr_id,
			 enum ib_wc_opcode opcode, enum ib_wc_status status)
{
	struct tib_cq *cq = to_tcq(ib);
	unsigned long flags;
	bool armed;

	spin_lock_irqsave(&cq->lock, flags);
	if (cq->head - cq->tail < TIB_CQES)
		cq->wc[cq->head++ % TIB_CQES] = (struct ib_wc){
			.wr_id = wr_id,
			.qp = qp,
			.opcode = opcode,
			.status = status,
		};
	armed = cq->armed;
	cq->armed = false;
	spin_unlock_irqrestore(&cq->lock, flags);
	if (armed && ib->comp_handler)
		ib->comp_handler(ib, ib->cq_context);
}

static int tib_poll_cq(struct ib_cq *ib, int count, struct ib_wc *wc)
{
	struct tib_cq *cq = to_tcq(ib);
	unsigned long flags;
	int n;

	spin_lock_irqsave(&cq->lock, flags);
	for (n = 0; n < count && cq->tail != cq->head; n++)
		wc[n] = cq->wc[cq->tail++ % TIB_CQES];
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

static int tib_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags notify)
{
	struct tib_cq *cq = to_tcq(ib);
	unsigned long flags;
	int missed;

	spin_lock_irqsave(&cq->lock, flags);
	cq->armed = true;
	missed = (notify & IB_CQ_REPORT_MISSED_EVENTS) && cq->head != cq->tail;
	spin_unlock_irqrestore(&cq->lock, flags);
	return missed;
}

static int tib_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *attr,
			 struct ib_udata *udata)
{
	static atomic_t number = ATOMIC_INIT(16);
	struct tib_qp *qp = to_tqp(ib);

	qp->size = attr->cap.max_recv_wr + 1;
	qp->wr_id = kvcalloc(qp->size, sizeof(*qp->wr_id), GFP_KERNEL);
	if (!qp->wr_id)
		return -ENOMEM;
	spin_lock_init(&qp->lock);
	switch (attr->qp_type) {
	case IB_QPT_SMI:
		ib->qp_num = 0;
		break;
	case IB_QPT_GSI:
		ib->qp_num = 1;
		break;
	default:
		ib->qp_num = atomic_inc_return(&number);
	}
	return 0;
}

static int tib_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	kvfree(to_tqp(ib)->wr_id);
	return 0;
}

static bool tib_take_recv(struct tib_qp *qp, u64 *wr_id)
{
	unsigned long flags;
	bool taken;

	spin_lock_irqsave(&qp->lock, flags);
	taken = qp->tail != qp->head;
	if (taken)
		*wr_id = qp->wr_id[qp->tail++ % qp->size];
	spin_unlock_irqrestore(&qp->lock, flags);
	return taken;
}

/* A client that closes a queue pair waits for what it posted to be flushed. */
static int tib_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
			 struct ib_udata *udata)
{
	struct tib_qp *qp = to_tqp(ib);
	u64 wr_id;

	if (!(mask & IB_QP_STATE))
		return 0;
	qp->state = attr->qp_state;
	if (qp->state == IB_QPS_ERR)
		while (tib_take_recv(qp, &wr_id))
			tib_complete(ib->recv_cq, ib, wr_id, IB_WC_RECV,
				     IB_WC_WR_FLUSH_ERR);
	if (qp->state == IB_QPS_RESET)
		while (tib_take_recv(qp, &wr_id))
			;
	return 0;
}

static int tib_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
			struct ib_qp_init_attr *init_attr)
{
	attr->qp_state = to_tqp(ib)->state;
	return 0;
}

static int tib_post_send(struct ib_qp *ib, const struct ib_send_wr *wr,
			 const struct ib_send_wr **bad_wr)
{
	bool flush = to_tqp(ib)->state == IB_QPS_ERR;

	for (; wr; wr = wr->next)
		tib_complete(ib->send_cq, ib, wr->wr_id, IB_WC_SEND,
			     flush ? IB_WC_WR_FLUSH_ERR : IB_WC_SUCCESS);
	return 0;
}

static int tib_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad_wr)
{
	struct tib_qp *qp = to_tqp(ib);
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&qp->lock, flags);
	for (; wr; wr = wr->next) {
		if (qp->head - qp->tail >= qp->size) {
			*bad_wr = wr;
			err = -ENOMEM;
			break;
		}
		qp->wr_id[qp->head++ % qp->size] = wr->wr_id;
	}
	spin_unlock_irqrestore(&qp->lock, flags);
	return err;
}

static struct tib_vf *tib_vf(struct ib_device *ib, int vf)
{
	if (vf >= pci_num_vf(to_pci_dev(ib->dev.parent)) || vf >= TIB_MAX_VFS)
		return NULL;
	return &to_tdev(ib)->vfs[vf];
}

static int tib_get_vf_config(struct ib_device *ib, int vf, u32 port,
			     struct ifla_vf_info *info)
{
	struct tib_vf *state = tib_vf(ib, vf);

	if (!state)
		return -EINVAL;
	memset(info, 0, sizeof(*info));
	info->linkstate = state->link_state;
	return 0;
}

static int tib_set_vf_link_state(struct ib_device *ib, int vf, u32 port,
				 int link_state)
{
	struct tib_vf *state = tib_vf(ib, vf);

	if (!state)
		return -EINVAL;
	state->link_state = link_state;
	return 0;
}

static int tib_get_vf_stats(struct ib_device *ib, int vf, u32 port,
			    struct ifla_vf_stats *stats)
{
	return 0;
}

static int tib_get_vf_guid(struct ib_device *ib, int vf, u32 port,
			   struct ifla_vf_guid *node_guid,
			   struct ifla_vf_guid *port_guid)
{
	struct tib_vf *state = tib_vf(ib, vf);

	if (!state)
		return -EINVAL;
	node_guid->guid = state->node_guid;
	port_guid->guid = state->port_guid;
	return 0;
}

static int tib_set_vf_guid(struct ib_device *ib, int vf, u32 port, u64 guid,
			   int type)
{
	struct tib_vf *state = tib_vf(ib, vf);

	if (!state)
		return -EINVAL;
	if (type == IFLA_VF_IB_NODE_GUID)
		state->node_guid = guid;
	else
		state->port_guid = guid;
	return 0;
}

/* ib_ipoib asks also between its netdev's registration and its own files. */
static int tib_netdev_params(struct ib_device *ib, u32 port,
			     enum rdma_netdev_t type,
			     struct rdma_netdev_alloc_params *params)
{
	msleep(files_ms);
	return -EOPNOTSUPP;
}

static const struct ib_device_ops tib_ops = {
	.owner = THIS_MODULE,
	.uverbs_abi_ver = 1,

	TEST_CONTEXT_OPS,
	.attach_mcast = tib_mcast,
	.create_ah = tib_create_ah,
	.create_cq = tib_create_cq,
	.create_qp = tib_create_qp,
	.dereg_mr = tib_dereg_mr,
	.destroy_ah = tib_destroy_ah,
	.destroy_cq = tib_destroy_cq,
	.destroy_qp = tib_destroy_qp,
	.detach_mcast = tib_mcast,
	.get_dma_mr = tib_get_dma_mr,
	.get_link_layer = tib_get_link_layer,
	.get_port_immutable = tib_get_port_immutable,
	.modify_port = tib_modify_port,
	.modify_qp = tib_modify_qp,
	.poll_cq = tib_poll_cq,
	.post_recv = tib_post_recv,
	.post_send = tib_post_send,
	.query_device = tib_query_device,
	.query_gid = tib_query_gid,
	.query_pkey = tib_query_pkey,
	.query_port = tib_query_port,
	.rdma_netdev_get_params = tib_netdev_params,
	.query_qp = tib_query_qp,
	.reg_user_mr = tib_reg_user_mr,
	.req_notify_cq = tib_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, tib_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, tib_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, tib_qp, ib),
};

/* Of a VF these fail with EINVAL, and ib_ipoib does not offer them. */
static const struct ib_device_ops tib_pf_ops = {
	.get_vf_config = tib_get_vf_config,
	.get_vf_guid = tib_get_vf_guid,
	.get_vf_stats = tib_get_vf_stats,
	.set_vf_guid = tib_set_vf_guid,
	.set_vf_link_state = tib_set_vf_link_state,
};

static void tib_name_ports(struct tib_dev *tdev, struct pci_dev *pdev)
{
	u64 own = TIB_OUI | (u64)pci_domain_nr(pdev->bus) << 16 |
		  pci_dev_id(pdev);
	struct tib_dev *pf = pdev->is_virtfn ?
		pci_iov_get_pf_drvdata(pdev, &tib_driver) : NULL;
	struct tib_vf given = {};

	if (!IS_ERR_OR_NULL(pf) && pci_iov_vf_id(pdev) < TIB_MAX_VFS)
		given = pf->vfs[pci_iov_vf_id(pdev)];
	tdev->ib.node_guid = cpu_to_be64(given.node_guid ?: own);
	tdev->port_guid = cpu_to_be64(given.port_guid ?: own);
}

static int tib_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct tib_dev *tdev;
	int err;

	err = pci_enable_device(pdev);
	if (err || bare)
		return err;
	err = -ENOMEM;
	tdev = ib_alloc_device(tib_dev, ib);
	if (!tdev)
		goto err_disable;
	tdev->ib.dev.parent = &pdev->dev;
	tdev->ib.node_type = RDMA_NODE_IB_CA;
	tdev->ib.phys_port_cnt = TIB_PORT;
	tdev->ib.num_comp_vectors = 1;
	strscpy(tdev->ib.node_desc, KBUILD_MODNAME, sizeof(tdev->ib.node_desc));
	tib_name_ports(tdev, pdev);
	ib_set_device_ops(&tdev->ib, &tib_ops);
	if (!pdev->is_virtfn)
		ib_set_device_ops(&tdev->ib, &tib_pf_ops);

	/* Before there is a netdev through which VFs are asked for. */
	pci_set_drvdata(pdev, tdev);
	err = ib_register_device(&tdev->ib, "testib%d", NULL);
	if (err)
		goto err_dealloc;
	return 0;

err_dealloc:
	ib_dealloc_device(&tdev->ib);
err_disable:
	pci_disable_device(pdev);
	return err;
}

static void tib_remove(struct pci_dev *pdev)
{
	struct tib_dev *tdev = pci_get_drvdata(pdev);

	if (pdev->is_virtfn)
		msleep(remove_ms);
	else
		pci_disable_sriov(pdev);
	if (tdev) {
		ib_unregister_device(&tdev->ib);
		ib_dealloc_device(&tdev->ib);
	}
	pci_disable_device(pdev);
}

static struct pci_driver tib_driver = {
	.name = KBUILD_MODNAME,
	.probe = tib_probe,
	.remove = tib_remove,
	.sriov_configure = pci_sriov_configure_simple,
};
module_pci_driver(tib_driver);

MODULE_DESCRIPTION("InfiniBand HCA without hardware, for tests");
MODULE_LICENSE("GPL");
