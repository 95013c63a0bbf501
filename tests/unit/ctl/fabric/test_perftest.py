"""perftest's reports in both of its forms, its output, and our command lines."""

import json

import pytest

from base.protocol.errors import DecodeFailure
from ctl.fabric import perftest
from ctl.fabric.model import FabricRail, Reached
from ctl.fabric.perftest import Measured, Settings, Stage, Used

RAIL = FabricRail("mlx5_3", 1, "rail3", "10.0.3.7", 3)
# perftest 4.5 of Debian 12, between two soft-RoCE devices.
OLD_BANDWIDTH = """\
{
test_info: {
test: RDMA_Write_BW_Test,
Dual_port: OFF,
Device: "x2",
Number_of_qps: 2,
Transport_type: IB,
Connection_type: RC,
Using_SRQ: OFF,
PCIe_relax_order: ON,
ibv_wr_API: OFF,
TX_depth : 128,
CQ_Moderation: 1,
Mtu: 1024,
Link_type: Ethernet,
GID_index: 1,
Max_inline_data: 0,
rdma_cm_QPs: OFF,
Data_ex_method: Ethernet,
},
results: {
MsgSize: 65536,
n_iterations: 206,
BW_peak: 0.000000,
BW_average: 0.053956,
MsgRate: 0.000103,
},
}
"""
OLD_LATENCY = """\
{
test_info: {
test: RDMA_Write_Latency_Test,
Device: "x2",
Mtu: 1024,
GID_index: 1,
},
results: {
MsgSize: 2,
n_iterations: 200,
t_min: 51.31,
t_typical: 1992.26,
percentile_99.9: 26873.65,
},
}
"""
# perftest 24.01 and later: the source's format strings, filled in.
NEW_BANDWIDTH = """\
{
"test_info": {
"test": "RDMA_Write_BW_Test",
"Dual_port": "OFF",
"Device": "mlx5_0",
"Number_of_qps": 4,
 "PCIe_relax_order": "Unsupported",
"Mtu": 4096,
"Link_type": "IB",
"Max_inline_data": 0,
"rdma_cm_QPs": "OFF",
"Use_ROCm_memory": "OFF",
"Data_ex_method": "Ethernet"
},
"results": {
"MsgSize": 65536,
"n_iterations": 18540,
"BW_peak": 0.00,
"BW_average": 392.13,
"MsgRate": 0.747929
}
}
"""
SERVER = """\

************************************
* Waiting for client to connect... *
************************************
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : x1
 Number of qps   : 1\t\tTransport type : IB
 Mtu             : 1024[B]
 Link type       : Ethernet
 GID index       : 1
 rdma_cm QPs\t : OFF
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        (OLD_BANDWIDTH, Measured(Used("x2", 1024, 1), bandwidth=0.053956)),
        (OLD_LATENCY, Measured(Used("x2", 1024, 1), latency=1992.26)),
        (NEW_BANDWIDTH, Measured(Used("mlx5_0", 4096), bandwidth=392.13)),
    ],
    ids=["old bandwidth", "old latency", "new bandwidth"],
)
def test_reports(text: str, measured: Measured) -> None:
    assert perftest.parse(text) == measured


@pytest.mark.parametrize("text", [OLD_BANDWIDTH, NEW_BANDWIDTH], ids=["old", "new"])
def test_a_report_that_is_cut_short(text: str) -> None:
    whole = text.rstrip()
    for length in range(len(whole)):
        with pytest.raises(DecodeFailure):
            perftest.parse(whole[:length])


@pytest.mark.parametrize("value", ["nan", "inf", "-1.0", "1e9", "", "1,5", "0x10"])
@pytest.mark.parametrize("text", [OLD_BANDWIDTH.replace("0.053956", "@"), NEW_BANDWIDTH.replace("392.13", '"@"')])
def test_a_value_that_is_no_bandwidth(text: str, value: str) -> None:
    with pytest.raises(DecodeFailure):
        perftest.parse(text.replace("@", value))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"test_info": 1, "results": 2}',
        json.dumps({"test_info": {}, "results": {"BW_average": 1.0}}),
        OLD_BANDWIDTH.replace("Mtu: 1024", "Mtu: 1024,\nMtu: 2048"),
        OLD_BANDWIDTH.replace("results: {", "other: {"),
    ],
)
def test_no_report(text: str) -> None:
    with pytest.raises(DecodeFailure):
        perftest.parse(text)


def test_what_a_server_used() -> None:
    assert perftest.used_by_server(SERVER) == Used("x1", 1024, 1)
    assert perftest.used_by_server("IB device nope not found\n") is None


def test_command_lines() -> None:
    known = frozenset({"out_json", "out_json_file", "bind_source_ip", "tclass", "use_cuda"})
    common = "-d mlx5_3 -i 1 -F -p 4000 --bind_source_ip=10.0.3.7 -x 3 -u 14"
    assert perftest.command(Stage.MESSAGE, RAIL, 4000, Settings(), known) == f"ib_write_lat {common} -n 5".split()
    # time: of perftest, which does not run
    chosen = Settings(seconds=3, pairs=2, traffic_class=106, gpu=1)
    words = perftest.command(Stage.BANDWIDTH, RAIL, 4000, chosen, known)
    more = "--tclass=106 --use_cuda=1 -s 65536 -D 3 -q 2 --report_gbits"
    assert words == f"ib_write_bw {common} {more}".split()
    last = ["--out_json", "--out_json_file=/proc/self/fd/5", "10.0.3.8"]
    assert perftest.client(words, "/proc/self/fd/5", "10.0.3.8") == [*words, *last]


def test_an_option_that_this_version_lacks() -> None:
    text = "      --out_json  Save\n      --out_json_file=<file>  Name\n      --source_ip  Source IP\n"
    known = perftest.options(text)
    assert perftest.missing(known, Settings()) == ""
    assert "--source_ip=10.0.3.7" in perftest.command(Stage.LATENCY, RAIL, 1, Settings(), known)
    assert perftest.missing(known, Settings(gpu=0)) == "--use_cuda"
    assert perftest.missing(known, Settings(traffic_class=0)) == "--tclass"
    assert perftest.missing(frozenset(), Settings()) == "--out_json"
    assert perftest.missing(known - {"source_ip"}, Settings()) == "--bind_source_ip"


@pytest.mark.parametrize(
    ("stage", "output", "reached"),
    [
        (Stage.MESSAGE, "Couldn't connect to 10.9.0.1:18515\n", Reached.UNREACHED),
        (Stage.MESSAGE, " Failed to modify QP 18 to RTR\n Unable to Connect the HCA's\n", Reached.UNREACHED),
        (Stage.MESSAGE, " Port number 1 state is Down\n Couldn't set the link layer\n", Reached.UNREACHED),
        (Stage.MESSAGE, "IB device nope not found\n Unable to find the Infiniband/RoCE device\n", Reached.NOT_RUN),
        (Stage.MESSAGE, "Couldn't allocate MR\n failed to create mr\n", Reached.NOT_RUN),
        (Stage.BANDWIDTH, " Completion with error at client\n Failed status 12: wr_id 0\n", Reached.BROKEN),
        (Stage.BANDWIDTH, "", Reached.BROKEN),
    ],
)  # fmt: skip
def test_failures(stage: Stage, output: str, reached: Reached) -> None:
    found, reason = perftest.failure(stage, f"{SERVER}{output}")
    assert (found, "\n" in reason, "Mtu" in reason) == (reached, False, False)
    assert reason


def test_a_warning_is_no_failure_of_this_end() -> None:
    """libibverbs warns of a low limit whenever it is low."""
    text = "libibverbs: Warning: RLIMIT_MEMLOCK is 8192 bytes.\nCouldn't connect to 10.9.0.1:1\n"
    assert perftest.failure(Stage.MESSAGE, text)[0] is Reached.UNREACHED
