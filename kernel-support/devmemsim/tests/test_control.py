#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What ethtool and netlink set and report."""

import errno
import os
import re

import devmem
import lab
import netlink
from tap import check, equal, main, raises

PAGE = 4096


def ethtool_fails(command: str, text: str) -> None:
    """By its words: not every failure shows in the exit status."""
    out = lab.run(f"ethtool {command}", check=False)
    check(text in out, f"{text!r} is not in {out!r}")


def posted() -> dict[int, int]:
    """Buffers in flight of the pools of dms0, by NAPI id."""
    return {pool["napi-id"]: pool["inflight"] for pool in netlink.page_pools()
            if pool.get("ifindex") == lab.index() and "napi-id" in pool}


def test_identity() -> None:
    check("driver: devmemsim" in lab.run("ethtool -i dms0"), "driver name")
    link = lab.run("ethtool dms0")
    check("Speed: 100000Mb/s" in link, "speed")
    check("Link detected: yes" in link, "link")
    features = lab.run("ethtool -k dms0")
    for name in ("rx-checksumming: on", "tx-checksumming: on",
                 "scatter-gather: on", "tcp-segmentation-offload: on",
                 "ntuple-filters: on", "receive-hashing: on",
                 "rx-gro-hw: on"):
        check(name in features, name)


def test_driver_unbound() -> None:
    driver = "/sys/bus/platform/drivers/devmemsim"
    lab.run(f"echo devmemsim >{driver}/unbind")
    check(not os.path.exists("/sys/class/net/dms0"), "dms0 is left")
    lab.run(f"echo devmemsim >{driver}/bind")
    lab.plug_in()
    lab.transfer(4, 1000)


def test_carrier_needs_both_ends() -> None:
    lab.peer("ip link set dms1 down")
    check("NO-CARRIER" in lab.run("ip link show dms0"), "carrier, peer down")
    lab.peer("ip link set dms1 up")
    check("LOWER_UP" in lab.run("ip link show dms0"), "no carrier, peer up")
    lab.addresses()
    lab.transfer(4, 1000)


def test_channels() -> None:
    napi = [netlink.queue_get(lab.index(), q)["napi-id"] for q in range(4)]
    for count in (16, 1, 2, 5, 4):
        lab.run(f"ethtool -L dms0 combined {count}")
        check(f"with {count} RX ring" in lab.run("ethtool -x dms0"), "rings")
        raises(errno.EINVAL, "", netlink.queue_get, lab.index(), count)
        lab.transfer(4, 1 << 16)
        lab.transfer(6, 1 << 16, inward=False)
    equal([netlink.queue_get(lab.index(), q)["napi-id"] for q in range(4)],
          napi, "NAPI ids after the changes")
    ethtool_fails("-L dms0 combined 17", "exceeds maximum")
    ethtool_fails("-L dms0 combined 0", "no RX or TX channel")


def test_napi_comes_and_goes_with_its_channel() -> None:
    """In threads, too: those of channels that are gone are not waited for."""
    def threads(on: int) -> None:
        lab.run(f"timeout 10 sh -c 'echo {on} >/sys/class/net/dms0/threaded'")

    for on in (0, 1):
        threads(on)
        for count in (8, 1, 4, 2):
            lab.run(f"ethtool -L dms0 combined {count}")
            equal(len(netlink.napis(lab.index())), count, "NAPI instances")
            lab.transfer(4, 1 << 16)
        threads(0)
        threads(on)
        lab.run("ip link set dms0 down")
        equal(netlink.napis(lab.index()), [], "NAPI instances while down")
        lab.addresses()
        threads(0)
        lab.run("ethtool -L dms0 combined 4")
        lab.transfer(4, 1 << 16)


def test_channels_while_down() -> None:
    lab.run("ip link set dms0 down")
    lab.run("ethtool -L dms0 combined 6")
    lab.addresses()
    equal(len(posted()), 6, "queues after the change")
    lab.transfer(4, 1 << 16)


def test_channels_in_use() -> None:
    lab.run("ethtool -X dms0 equal 3")
    ethtool_fails("-L dms0 combined 2", "indirection table")
    lab.run("ethtool -X dms0 default")
    with lab.rule("tcp4 dst-port 9 action 3"):
        ethtool_fails("-L dms0 combined 3", "ntuple filter")
    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON)
    with devmem.Binding("dms0", [3], 64 * PAGE):
        ethtool_fails("-L dms0 combined 3", "memory provider")
        lab.run("ethtool -L dms0 combined 5")


def test_rings() -> None:
    for size in (64, 4096, 192):
        netlink.rings_set("dms0", rx=size)
        equal(netlink.rings_get("dms0")["rx"], size, "rx ring")
        equal(set(posted().values()), {size}, "posted buffers")
        lab.transfer(4, 1 << 20)
    netlink.rings_set("dms0", tx=32)
    equal(netlink.rings_get("dms0")["tx"], 32, "tx ring")
    lab.transfer(4, 1 << 20, inward=False)
    for ring in ({"rx": 31}, {"tx": 16}):
        raises(errno.EINVAL, "at least 32", netlink.rings_set, "dms0", **ring)
    raises(errno.EINVAL, "exceeds maximum", netlink.rings_set, "dms0",
           rx=4097)


def test_rings_while_down() -> None:
    lab.run("ip link set dms0 down")
    netlink.rings_set("dms0", rx=256)
    lab.addresses()
    equal(set(posted().values()), {256}, "posted buffers")


def test_header_split() -> None:
    for setting, shown in ((netlink.SPLIT_OFF, netlink.SPLIT_OFF),
                           (netlink.SPLIT_ON, netlink.SPLIT_ON),
                           (netlink.SPLIT_AUTO, netlink.SPLIT_ON)):
        netlink.rings_set("dms0", tcp_data_split=setting)
        equal(netlink.rings_get("dms0")["tcp-data-split"], shown, "split")
        for thresh in (0, 1, 200, 1024):
            netlink.rings_set("dms0", hds_thresh=thresh)
            equal(netlink.rings_get("dms0")["hds-thresh"], thresh, "thresh")
            for size in (1, 300, 100_000):
                lab.transfer(4, size)
    raises(errno.EINVAL, "exceeds maximum", netlink.rings_set, "dms0",
           hds_thresh=1025)


def test_header_split_while_bound() -> None:
    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON)
    with devmem.Binding("dms0", [3], 64 * PAGE):
        for values in ({"tcp_data_split": netlink.SPLIT_OFF},
                       {"tcp_data_split": netlink.SPLIT_AUTO}):
            raises(errno.EINVAL, "can't disable tcp-data-split",
                   netlink.rings_set, "dms0", **values)
        raises(errno.EINVAL, "can't set non-zero hds_thresh",
               netlink.rings_set, "dms0", hds_thresh=1)


def test_rule_ids() -> None:
    ids = [lab.add_rule(f"tcp4 dst-port {port} action 1")
           for port in (1, 2, 3)]
    equal(len(set(ids)), 3, "different ids")
    lab.run(f"ethtool -N dms0 delete {ids[1]}")
    equal(lab.add_rule("tcp6 dst-port 2 action 1"), ids[1], "id used again")
    shown = lab.run("ethtool -n dms0")
    check("Total 3 rules" in shown, shown)
    check(re.search(r"TCP over IPv6", shown), shown)
    ethtool_fails("-N dms0 delete 17", "No such file")


def test_rule_limits() -> None:
    lab.add_rule("tcp4 dst-port 7 action 1")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 7 action 2", "File exists")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 8 action 4", "Invalid")
    ethtool_fails("-N dms0 flow-type ip4 l4data 1 action 1", "not supported")
    ethtool_fails("-N dms0 flow-type ether action 1", "not supported")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 8 tos 1 action 1",
                  "not supported")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 8 action -1",
                  "not supported")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 8 action 1 loc 64",
                  "Invalid")
    for port in range(100, 163):
        lab.add_rule(f"tcp4 dst-port {port} action 1")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 8 action 1", "No space")
    lab.run("ethtool -N dms0 flow-type tcp4 dst-port 8 action 1 loc 5")


def test_rule_types() -> None:
    """What is shown is what was asked for; types do not get in each other's way."""
    for kind in ("tcp4", "tcp6", "udp4", "udp6"):
        lab.add_rule(f"{kind} dst-port 8 action 1")
    for kind in ("ip4", "ip6"):
        lab.add_rule(f"{kind} l4proto 17 action 1")
    shown = lab.run("ethtool -n dms0")
    for name in ("TCP over IPv4", "TCP over IPv6", "UDP over IPv4",
                 "UDP over IPv6", "Raw IPv4", "Raw IPv6"):
        equal(shown.count(f"Rule Type: {name}"), 1, f"{name} in {shown}")


def test_rule_beyond_the_queues() -> None:
    """A rule adds to what the table of its context gives."""
    lab.run("ethtool -X dms0 context new start 1 equal 2")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 8 context 1 action 2",
                  "Invalid")
    lab.add_rule("tcp4 dst-port 8 context 1 action 1")


def test_rules_stay_within_the_queues() -> None:
    """Tables and channels do not change so that a rule leads beyond them."""
    lab.run("ethtool -X dms0 context new equal 1")
    for context in (0, 1):
        name = f"context {context}" if context else ""
        rule = f"tcp4 dst-port 8 context {context} action"
        lab.run(f"ethtool -X dms0 {name} equal 2")
        ethtool_fails(f"-N dms0 flow-type {rule} 3", "Invalid")
        with lab.rule(f"{rule} 2"):
            ethtool_fails(f"-X dms0 {name} equal 3", "Invalid")
            raises(errno.EINVAL, "ntuple", netlink.rss_set, "dms0", context,
                   table=[0, 2])
            equal(table(context), [0, 1] * 64, "table")
            ethtool_fails("-L dms0 combined 3", "Invalid")
            check("with 4 RX ring" in lab.run("ethtool -x dms0"), "rings")
            lab.run(f"ethtool -X dms0 {name} equal 1")
            lab.set_channels(3)
        lab.run(f"ethtool -X dms0 {name} equal 3")
        lab.run(f"ethtool -X dms0 {name} equal 1")
        lab.set_channels(4)
    lab.run("ethtool -X dms0 equal 2")
    with lab.rule("tcp4 dst-port 8 context 0 action 2"):
        ethtool_fails("-X dms0 default", "Invalid")


def test_ntuple_off() -> None:
    lab.add_rule("tcp4 dst-port 7 action 1")
    lab.run("ethtool -K dms0 ntuple off")
    check("Total 0 rules" in lab.run("ethtool -n dms0"), "rules are left")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 7 action 1",
                  "not supported")


def table(context: int = 0) -> list[int]:
    suffix = f" context {context}" if context else ""
    shown = lab.run(f"ethtool -x dms0{suffix}")
    return [int(n) for line in re.findall(r"^ +\d+: +([\d ]+)$", shown, re.M)
            for n in line.split()]


def test_rss_settings() -> None:
    key = ":".join(f"{i:02x}" for i in range(1, 53))
    lab.run(f"ethtool -X dms0 hkey {key} weight 3 1")
    shown = lab.run("ethtool -x dms0")
    check(key in shown, "key")
    now = table()
    equal((len(now), now.count(0), now.count(1)), (128, 96, 32),
          "table, zeros, ones")
    ethtool_fails("-X dms0 hfunc xor", "not supported")
    ethtool_fails("-X dms0 equal 5", "Invalid")


def test_rss_table_size() -> None:
    """It goes with the channels, and what was set is kept."""
    for count, size in ((16, 512), (9, 512), (8, 256), (5, 256), (4, 128),
                        (1, 128)):
        lab.run(f"ethtool -L dms0 combined {count}")
        equal(table(), [i % count for i in range(size)], "default table")
    lab.run("ethtool -L dms0 combined 4")
    lab.run("ethtool -X dms0 weight 1 3")
    lab.run("ethtool -X dms0 context new weight 3 1")
    tables = table(), table(1)
    lab.run("ethtool -L dms0 combined 16")
    equal((table(), table(1)), (tables[0] * 4, tables[1] * 4), "grown")
    lab.run("ethtool -L dms0 combined 4")
    equal((table(), table(1)), tables, "as before")
    for context in ("", "context 1"):
        lab.run("ethtool -L dms0 combined 16")
        lab.run(f"ethtool -X dms0 {context} weight 5 1")
        ethtool_fails("-L dms0 combined 4", "Invalid")
        lab.run(f"ethtool -X dms0 {context} equal 2")
        ethtool_fails("-L dms0 combined 4", "Invalid")
        lab.run("ethtool -X dms0 default")


def hash_fields(kind: str, context: int = 0) -> set[str]:
    suffix = f" context {context}" if context else ""
    shown = lab.run(f"ethtool -n dms0 rx-flow-hash {kind}{suffix}")
    names = {"IP SA": "s", "IP DA": "d", "IPv6 Flow Label": "l",
             "L4 bytes 0 & 1 [TCP/UDP src port]": "f",
             "L4 bytes 2 & 3 [TCP/UDP dst port]": "n"}
    return {names[line] for line in shown.splitlines() if line in names}


def test_hash_field_settings() -> None:
    kinds = ("tcp4", "udp4", "tcp6", "udp6")
    lab.run("ethtool -X dms0 context new")
    for kind in kinds:
        equal(hash_fields(kind), set("sdfn"), f"{kind} by default")
        lab.run(f"ethtool -N dms0 rx-flow-hash {kind} sd")
        for other in kinds:
            equal(hash_fields(other), set("sd" if other == kind else "sdfn"),
                  f"{other} after {kind} was set")
        equal(hash_fields(kind, 1), set("sdfn"), "of a context")
        lab.run(f"ethtool -N dms0 rx-flow-hash {kind} sdfn")
        lab.run(f"ethtool -N dms0 rx-flow-hash {kind} s context 1")
        equal(hash_fields(kind), set("sdfn"), "of the default context")
        equal(hash_fields(kind, 1), set("s"), "of a context")
    ethtool_fails("-N dms0 rx-flow-hash tcp4 sdv", "not supported")
    ethtool_fails("-N dms0 rx-flow-hash tcp4 s context 2", "No such file")
    lab.run("ethtool -X dms0 context 1 delete")
    ethtool_fails("-N dms0 rx-flow-hash tcp4 s context 1", "No such file")


def test_symmetric_hash_settings() -> None:
    """Only with fields that are symmetric themselves, whoever comes first."""
    for xfrm in (netlink.SYM_XOR, netlink.SYM_OR_XOR):
        for context in (0, 1):
            if context:
                lab.run("ethtool -X dms0 context new")
            equal(netlink.rss_get("dms0", context)["xfrm"], 0, "xfrm at first")
            netlink.rss_set("dms0", context, xfrm=xfrm)
            equal(netlink.rss_get("dms0", context)["xfrm"], xfrm, "xfrm")
            suffix = f" context {context}" if context else ""
            ethtool_fails(f"-N dms0 rx-flow-hash tcp4 s{suffix}", "Invalid")
            netlink.rss_set("dms0", context, xfrm=0)
            lab.run(f"ethtool -N dms0 rx-flow-hash tcp4 s{suffix}")
            raises(errno.EINVAL, "symmetric", netlink.rss_set, "dms0", context,
                   xfrm=xfrm)
            lab.run(f"ethtool -N dms0 rx-flow-hash tcp4 sdfn{suffix}")
        lab.run("ethtool -X dms0 context 1 delete")


def test_rss_contexts() -> None:
    made = [lab.run("ethtool -X dms0 context new start 2 equal 2")
            for _ in range(15)]
    equal([int(out.split()[-1]) for out in made], list(range(1, 16)), "ids")
    ethtool_fails("-X dms0 context new equal 2", "busy")
    with lab.rule("tcp4 dst-port 7 context 3"):
        ethtool_fails("-X dms0 context 3 delete", "busy")
        # Before ethtool 6.14 the context's line was another one
        check(re.search(r"RSS Context (ID: )?3\n", lab.run("ethtool -n dms0")),
              "context")
    lab.run("ethtool -X dms0 context 3 delete")
    ethtool_fails("-N dms0 flow-type tcp4 dst-port 7 context 3", "Invalid")


if __name__ == "__main__":
    main(globals(), lab.setup, lab.reset)
