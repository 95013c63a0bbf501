# Targets keep downloads in $XDG_CACHE_HOME/hpn-cni (default ~/.cache/hpn-cni), and write dist/ and build/ in the tree.

.PHONY: help docs protocols demo unit test check soak loaded plain lab cluster lint binary deb bench bench-lab bench-cluster bench-blocks bench-traffic bench-rails bench-size bench-slices clean root
.DEFAULT_GOAL := help

# CI requires every tier, so that no run passes by skipping one; see tests/*/conftest.py.
ifeq ($(CI),true)
export HPN_REQUIRE ?= unit,netns,system,attack,lab,cluster
endif

SOURCES := Makefile $(shell find base hardware cni ipam agent node ctl -name '*.py') pyproject.toml $(wildcard packaging/*.py packaging/startup/*.py packaging/launcher/* packaging/systemd/*) packaging/hpn.spec

# These targets unpack dist/hpn here; an installed hpn unpacks itself into /var/lib/cni/hpn/program.
export HPN_PROGRAM_DIR := $(CURDIR)/build/unpacked

# ARCH=arm64 on x86-64 builds dist/arm64/hpn from the files that packaging/foreign downloads.
HERE := $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(shell uname -m)))
FOREIGN := $(filter-out $(HERE),$(ARCH))
$(if $(filter-out arm64,$(FOREIGN)),$(error ARCH=$(ARCH): this machine builds for $(sort $(HERE) arm64)))

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: root binary ## as root: attach two pods with cnitool, ping, draw them, detach, and check that nothing remains
	@netns-fixtures/setup net
	@peers=$$(netns-fixtures/peers) && \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers packaging/venv python netns-fixtures/demo.py

# Everything is installed before the first test, because some tests compare /etc before and after, and apt writes there.
NEEDS := go cxx tls freeze launcher shell qemu guest module disk verbs mpi systemd traffic cluster seccomp browser

unit: ## in seconds: run the tests of T=tests/unit/..., or all that need neither root nor a build; PYTEST_ARGS for others of pytest's arguments
	@packaging/venv pytest $(or $(T),tests/unit) $(PYTEST_ARGS)

# The builds that the tests named in PYTEST_ARGS need: side_by_side.py's WITHOUT_BINARY, and only the system tier has
# peers.  Words that name no tests, such as -k, can stand for all of them.
NAMED := $(filter tests%,$(patsubst ./%,%,$(subst ",,$(subst ',,$(PYTEST_ARGS)))))
UNBUILT := tests/unit% tests/netns% $(addsuffix %,$(filter-out tests/test_lab.py tests/test_power_cut.py,$(wildcard tests/test_*.py)))
UNPEERED := $(UNBUILT) tests/attack% tests/lab% tests/cluster% tests/test_lab.py% tests/test_power_cut.py%
BUILT := $(if $(PYTEST_ARGS),$(if $(NAMED),$(filter-out $(UNBUILT),$(NAMED)),all))
PEERED := $(if $(NAMED),$(filter-out $(UNPEERED),$(NAMED)),all)

# PYTEST_ARGS runs one pytest process with these arguments; JUNIT names a file for the report.  Without PYTEST_ARGS,
# side_by_side.py builds the binary beside the first tests, and the target plain later.
test: $(if $(BUILT)$(FOREIGN),binary) ## run every tier and lint, and half of the guests; without root, tiers that need it are skipped (with CI=true they fail)
ifneq ($(FOREIGN),)
	@peers=$$(HPN_ARCH=$(FOREIGN) netns-fixtures/peers) && HPN_BINARY=$(CURDIR)/$(BINARY) HPN_PEERS=$$peers \
	netns-fixtures/arm64 $(BINARY) python3 -m pytest -p no:cacheprovider $(or $(PYTEST_ARGS),tests/unit tests/netns tests/system)
else
	@[ "$$(id -u)" != 0 ] || netns-fixtures/setup net
	@$(if $(PYTEST_ARGS),:,[ "$$(id -u)" != 0 ] || for need in $(NEEDS); do netns-fixtures/setup $$need || true; done)
	@peers=$(if $(PEERED),$$(netns-fixtures/peers)) && \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers packaging/venv \
	$(if $(PYTEST_ARGS),pytest,python tests/harness/side_by_side.py $(if $(JOBS),-j $(JOBS))) $(if $(JUNIT),--junitxml=$(JUNIT)) $(PYTEST_ARGS)
endif

# Use the binary only if it is current: building it takes half of the time.
check: ## before each commit: lint, and the tests that the change touches, in five minutes; BASE=COMMIT sets the base
	@[ "$$(id -u)" != 0 ] || netns-fixtures/setup net
	@! $(MAKE) --no-print-directory -q $(BINARY) 2>/dev/null || export HPN_BINARY=$(CURDIR)/$(BINARY); \
	BASE=$(BASE) packaging/venv python tests/harness/check.py

plain: ## as root: build without start-up optimizations (docs/develop/packaging.md), and run a part of the system tier with that build
	@$(MAKE) --no-print-directory binary PLAIN=1
	@netns-fixtures/setup net
	@peers=$$(netns-fixtures/peers) && HPN_BINARY=$(CURDIR)/dist/plain/hpn HPN_PEERS=$$peers \
	packaging/venv pytest $(addprefix tests/system/test_,verbs.py binary.py supply.py traceback.py) $(PYTEST_ARGS)

soak: root ## as root: print what is missing of every drawn case and every guard, and run it for hours, in several sittings; WRITE=1 updates docs/develop/testing.md
	@packaging/venv python tests/harness/soak.py --missing
	@$(MAKE) --no-print-directory binary
	@netns-fixtures/setup net
	@for need in $(NEEDS); do netns-fixtures/setup $$need || true; done
	@peers=$$(netns-fixtures/peers) && HPN_REQUIRE=unit,netns,system,attack,lab,cluster \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers packaging/venv python tests/harness/soak.py $(if $(WRITE),--write)

loaded: root binary ## as root: run the whole suite N times (1) beside eight busy loops; takes hours, resumes after an interrupt; WRITE=1 updates docs/develop/testing.md
	@netns-fixtures/setup net
	@for need in $(NEEDS); do netns-fixtures/setup $$need || true; done
	@peers=$$(netns-fixtures/peers) && HPN_REQUIRE=unit,netns,system,attack,lab,cluster \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers packaging/venv python tests/harness/loaded.py $(if $(WRITE),--write) $(N)

# Resolved here, because the guest has no network to install a virtual environment.
lab: binary ## as root: boot two kernels in QEMU, and draw VFs with RDMA devices in pods, then RDMA traffic between pods
ifneq ($(FOREIGN),)
	@netns-fixtures/arm64 $(BINARY)
else
	@netns-fixtures/setup net
	@python=$$(packaging/venv python -c 'import sys; print(sys.executable)') && peers=$$(netns-fixtures/peers) && \
	show() { part=$$1 && shift && netns-fixtures/lab "$$@" "$$python" netns-fixtures/lab_demo.py $$part dist/hpn "$$peers"; } && \
	show vf && show roce --kernel trixie --rdma shared --vfs 1
endif

cluster: root binary ## as root: boot two Kubernetes nodes with a pod each, ping over hpn0, cut a node's power, and check the recovery
	@netns-fixtures/setup net
	@programs=$$(netns-fixtures/cluster/build) && packaging/venv python netns-fixtures/cluster_demo.py "$$programs" dist/hpn

lint: ## run ruff, mypy, Vale for the English, and shellcheck if it is installed
	packaging/venv ruff check .
	packaging/venv ruff format --check .
	packaging/venv mypy
	@vale=$$(netns-fixtures/vale) && packaging/venv python tests/harness/prose.py "$$vale"
	@! command -v shellcheck >/dev/null || shellcheck .ci/run packaging/venv packaging/foreign packaging/wheels $(addprefix packaging/deb/,preinst postinst prerm postrm) $(addprefix netns-fixtures/,setup suite golang helm multus peers prometheus vale kernel lab arm64 arm64-kernel arm64-debian bare cluster/build gokubelet/build workloads/in_pod) netns-fixtures/guest/* findings/*.sh

docs: ## generate the tables of keys in docs/ from the models, and a picture
	packaging/venv python -m docs.keys
	packaging/venv python -m docs.blocks

protocols: ## generate base/kubelet/*_pb2.py from the .proto files beside them
	packaging/venv python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. base/kubelet/*.proto

# PLAIN=1 leaves out all start-up optimizations, WITHOUT=a,b only these (docs/develop/packaging.md).  Such a build has a
# directory of its own in dist/.
comma := ,
HPN_WITHOUT := $(if $(PLAIN),all,$(WITHOUT))
VARIANT := $(addsuffix /,$(FOREIGN))$(if $(PLAIN),plain/,$(if $(WITHOUT),without-$(subst $(comma),-,$(WITHOUT))/))
BINARY := dist/$(VARIANT)hpn

binary: $(BINARY) ## build the program as one file, dist/hpn, with its licences and an SBOM beside it

# A static program at a random address, with as little writable memory as possible.  musl-gcc supports no -static-pie, so
# its parts are named here.
LAUNCHER_FLAGS := -Os -std=gnu11 -Wall -Wextra -Werror -fPIE -fstack-protector-strong -fvisibility=hidden -fno-asynchronous-unwind-tables
LAUNCHER_LAYOUT := -Wl,-z,relro,-z,now,-z,noexecstack,-z,text,--hash-style=gnu,--build-id=none,--gc-sections
LAUNCHER_PARTS := $(patsubst packaging/launcher/%.c,build/$(VARIANT)%.o,$(wildcard packaging/launcher/*.c))

# For another architecture a cross compiler makes the launcher; everything else is downloaded.
ifeq ($(FOREIGN),)
LAUNCHER_COMPILER := musl-gcc
LAUNCHER_LINKER := gcc
MUSL := $$(sed -n 's/.*-specs "\(.*\)\/musl-gcc.specs".*/\1/p' "$$(command -v musl-gcc)")
else
ROOT = $$(packaging/foreign $(FOREIGN))
LAUNCHER_COMPILER = aarch64-linux-gnu-gcc-12 -nostdinc -isystem $(ROOT)/usr/include/aarch64-linux-musl
LAUNCHER_LINKER := aarch64-linux-gnu-gcc-12
MUSL = $(ROOT)/usr/lib/aarch64-linux-musl
endif

# The fixed seed and date make two builds of one commit the same file.
$(BINARY): $(SOURCES)
	@netns-fixtures/setup launcher $(if $(FOREIGN),cross)
	@mkdir -p build/$(VARIANT) $(@D)
	for part in $(LAUNCHER_PARTS:build/$(VARIANT)%.o=%); do $(LAUNCHER_COMPILER) $(LAUNCHER_FLAGS) -c -o build/$(VARIANT)$$part.o packaging/launcher/$$part.c || exit; done
	musl=$(MUSL) && \
	$(LAUNCHER_LINKER) -static-pie -s -nostdlib $(LAUNCHER_LAYOUT) -o build/$(VARIANT)launcher $$musl/rcrt1.o $$musl/crti.o $(LAUNCHER_PARTS) \
	-L$$musl -lc -lgcc $$musl/crtn.o
	$(if $(FOREIGN),HPN_ROOT=$(ROOT)) \
	PYTHONHASHSEED=0 SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) PYINSTALLER_CONFIG_DIR=build/$(VARIANT) \
	HPN_WITHOUT=$(HPN_WITHOUT) packaging/venv pyinstaller --log-level ERROR --noconfirm --clean \
	--distpath build/$(VARIANT) --workpath build/$(VARIANT) packaging/hpn.spec
	$(if $(FOREIGN),HPN_ROOT=$(ROOT)) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) \
	packaging/venv python packaging/pack.py build/$(VARIANT)launcher build/$(VARIANT)program $@
	$(if $(FOREIGN),,@CNI_COMMAND=VERSION HPN_AGENT= $@ </dev/null >/dev/null)

deb: binary ## build the Debian package, dist/hpn-cni_VERSION_ARCHITECTURE.deb
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) packaging/venv python packaging/deb/build.py $(BINARY) $(dir $(BINARY))

bench: root binary ## as root: compare ADD, DEL and address allocation with the Go plugins; WRITE=1 updates docs/user/performance.md
	@netns-fixtures/setup net
	@netns-fixtures/setup trace || true
	@peers=$$(netns-fixtures/peers) && \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers packaging/venv python bench/bench.py $(if $(WRITE),--write) && \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers packaging/venv python bench/ipam.py $(if $(WRITE),--write)

bench-lab: binary ## in the lab: compare VFs with RDMA with sriov-cni, host-local and rdma-cni; WRITE=1 as above
	@netns-fixtures/setup net
	@netns-fixtures/setup trace || true
	@peers=$$(netns-fixtures/peers) && vf_peers=$$(netns-fixtures/peers vf) && \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers:$$vf_peers packaging/venv python bench/lab.py $(if $(WRITE),--write)

bench-cluster: root binary ## as root: time pods with eight rails in the cluster until they are Ready; WRITE=1 as above
	@HPN_BINARY=$(CURDIR)/dist/hpn packaging/venv python bench/cluster.py $(if $(WRITE),--write)

bench-blocks: root ## as root: measure one pool for a cluster, on a real etcd and a real API server; WRITE=1 as above
	@netns-fixtures/setup net cluster
	@packaging/venv python bench/blocks.py $(if $(WRITE),--write)
	@packaging/venv python bench/filled.py $(if $(WRITE),--write)

bench-traffic: root binary ## as root: measure TCP between hosts through bridge, macvlan, ipvlan and VF; WRITE=1 as above
	@netns-fixtures/setup net traffic
	@HPN_BINARY=$(CURDIR)/dist/hpn packaging/venv python bench/traffic.py $(if $(WRITE),--write)

bench-rails: root binary ## as root: compare a pod with eight rails, in sequence and at once, with the Go plugins; WRITE=1 as above
	@netns-fixtures/setup net
	@peers=$$(netns-fixtures/peers) && \
	HPN_BINARY=$(CURDIR)/dist/hpn HPN_PEERS=$$peers packaging/venv python bench/rails.py $(if $(WRITE),--write)

bench-size: root binary ## as root: compare commands on an empty node and on one with 1,000 attachments; WRITE=1 as above
	@netns-fixtures/setup net
	@HPN_BINARY=$(CURDIR)/dist/hpn packaging/venv python bench/size.py $(if $(WRITE),--write)

bench-slices: root binary ## as root: measure the ResourceSlices of a large node and of 1,000 nodes on a real API server; WRITE=1 as above
	@netns-fixtures/setup net cluster
	@HPN_BINARY=$(CURDIR)/dist/hpn packaging/venv python bench/slices.py $(if $(WRITE),--write)
	@packaging/venv python bench/herd.py $(if $(WRITE),--write)

clean: ## remove the builds from the tree
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

root:
	@[ "$$(id -u)" = 0 ] || { echo "make $(MAKECMDGOALS) needs root, to make network namespaces: sudo make $(MAKECMDGOALS)" >&2; exit 1; }
