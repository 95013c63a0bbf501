/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Contexts and protection domains of user space, for devices without hardware:
 * the core demands these operations, and there is nothing to do for them.
 * Include it after rdma/ib_verbs.h.  testib/contexts.h is a link to this file.
 */
struct test_ucontext {
	struct ib_ucontext ib;
};

struct test_pd {
	struct ib_pd ib;
};

static int test_alloc_ucontext(struct ib_ucontext *context,
			       struct ib_udata *udata)
{
	return 0;
}

static void test_dealloc_ucontext(struct ib_ucontext *context)
{
}

/*
 * Nothing is mapped, so nothing is unmapped.  But without this operation the
 * core waits for user space to close the device before it may go or move.
 */
static void test_disassociate_ucontext(struct ib_ucontext *context)
{
}

static int test_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int test_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

/* Members of a struct ib_device_ops. */
#define TEST_CONTEXT_OPS \
	.alloc_pd = test_alloc_pd, \
	.alloc_ucontext = test_alloc_ucontext, \
	.dealloc_pd = test_dealloc_pd, \
	.dealloc_ucontext = test_dealloc_ucontext, \
	.disassociate_ucontext = test_disassociate_ucontext, \
	INIT_RDMA_OBJ_SIZE(ib_pd, test_pd, ib), \
	INIT_RDMA_OBJ_SIZE(ib_ucontext, test_ucontext, ib)
