#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Bindings, and TCP that is received through them."""

import contextlib
import errno
import hashlib
import socket
import time
from typing import Any, Iterator

import devmem
import lab
import netlink
from tap import Skip, check, equal, eventually, main, raises

PAGE = 4096
HUGE = 2 << 20
QUEUE = 3
SO_INCOMING_NAPI_ID = 56


def setup() -> None:
    lab.setup()
    # Pages of packets that wait for another CPU to free them may wait for long
    with open("/proc/sys/net/core/skb_defer_max", "w",
              encoding="ascii") as file:
        file.write("0")
    prepare()


def prepare() -> None:
    """What a binding needs, with QUEUE for those flows that a rule names."""
    lab.reset()
    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON)
    lab.run(f"ethtool -X dms0 equal {QUEUE}")


@contextlib.contextmanager
def stream(binding: devmem.Binding, version: int, size: int,
           receive_buffer: int = 0, queue: int = QUEUE,
           ) -> Iterator[tuple[devmem.Receiver, Any, lab.Sender]]:
    """A flow from the peer, steered to the queue: receiver, digest, sender."""
    address = lab.LOCAL[version]
    with lab.listen(address, receive_buffer=receive_buffer) as server:
        port = server.getsockname()[1]
        with lab.rule(f"tcp{version} dst-port {port} action {queue}"):
            sender = lab.Sender(lab.connect(address, port, "peer"), size)
            sock, _ = server.accept()
            digest = hashlib.sha256()
            with sock:
                yield (devmem.Receiver(sock, binding, digest.update), digest,
                       sender)


def receive(binding: devmem.Binding, version: int, size: int,
            **options: int) -> devmem.Receiver:
    """All of a stream, compared."""
    with stream(binding, version, size, **options) as (rx, digest, sender):
        rx.run()
        sender.join(60)
        equal(digest.digest(), sender.sum.digest(), f"bytes of {size}")
    return rx


def gone() -> None:
    """No page pool has a dmabuf any more. One may linger for a second."""
    eventually(lambda: not any("dmabuf" in pool
                               for pool in netlink.page_pools()),
               lambda: str(netlink.page_pools()))


def overruns() -> tuple[int, int]:
    stats = netlink.rx_stats(lab.index())[QUEUE]
    return stats["alloc-fail"], stats["hw-drop-overruns"]


def test_refusals() -> None:
    bind = devmem.Binding
    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_AUTO)
    raises(errno.EINVAL, "tcp-data-split is disabled", bind, "dms0", [QUEUE],
           PAGE)
    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON, hds_thresh=1)
    raises(errno.EINVAL, "hds-thresh is not zero", bind, "dms0", [QUEUE], PAGE)
    netlink.rings_set("dms0", hds_thresh=0)
    raises(errno.EINVAL, "", bind, "dms0", [4], PAGE)
    raises(errno.EINVAL, "not aligned", bind, "dms0", [QUEUE], 3 * PAGE,
           1 << 14)
    with bind("dms0", [QUEUE], PAGE):
        raises(errno.EEXIST, "already memory provider bound", bind, "dms0",
               [QUEUE], PAGE)
    gone()


def test_sizes() -> None:
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        for setting in ("on", "off"):
            lab.run(f"ethtool -K dms0 rx-gro-hw {setting}")
            for version in (4, 6):
                for size in (1, 100, 1448, 4096, 65536, 3_000_000):
                    rx = receive(binding, version, size)
                    equal(rx.device_bytes, size, "bytes in device memory")
    gone()


def test_mtu_9000() -> None:
    lab.set_mtu(9000)
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        for features in ("rx-gro-hw on gro on", "rx-gro-hw off gro on",
                         "rx-gro-hw off gro off"):
            lab.run(f"ethtool -K dms0 {features}")
            rx = receive(binding, 6, 2 << 20)
            equal(rx.device_bytes, 2 << 20, "bytes in device memory")


def huge_pages() -> int:
    """Huge pages there are, after asking for some if there are none."""
    with open("/proc/sys/vm/nr_hugepages", "r+", encoding="ascii") as file:
        if int(file.read()) < 8:
            file.write("32")
        file.seek(0)
        return int(file.read())


def test_page_sizes() -> None:
    if huge_pages() < 8:
        raise Skip("no memory for 8 huge pages")
    raises(errno.ERANGE, "4096..65536", devmem.Binding, "dms0", [QUEUE], HUGE,
           1 << 17, huge=True)
    for shift in (12, 13, 14, 16):
        with devmem.Binding("dms0", [QUEUE], 8 * HUGE, 1 << shift,
                            huge=True) as binding:
            rx = receive(binding, 4, 4 << 20)
            equal(rx.device_bytes, 4 << 20, "bytes in device memory")
            least = (4 << 20) >> shift
            check(least <= rx.fragments < least + 600,
                  f"{rx.fragments} fragments with {1 << shift} byte pages")
        gone()


def test_binding_shows() -> None:
    before = netlink.queue_get(lab.index(), QUEUE)
    with devmem.Binding("dms0", [QUEUE], 1 << 20) as binding:
        bound = netlink.queue_get(lab.index(), QUEUE)
        equal(bound["dmabuf"], binding.id, "queue-get")
        equal(bound["napi-id"], before["napi-id"], "NAPI id of the queue")
        pools = [p for p in netlink.page_pools() if "dmabuf" in p]
        equal([p["dmabuf"] for p in pools], [binding.id], "page-pool-get")
        equal(pools[0]["inflight"], 128, "posted buffers")
        with stream(binding, 4, 1000) as (rx, _, _):
            rx.run()
            napi = rx.sock.getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID)
            equal(napi, bound["napi-id"], "NAPI id of the socket")
    gone()
    equal(netlink.queue_get(lab.index(), QUEUE), before, "after unbind")


def in_ring() -> int:
    """Buffers that the idle ring of a queue with a binding has."""
    return sum(p["inflight"] for p in netlink.page_pools() if "dmabuf" in p)


def test_standing_demand() -> None:
    """As mlx5: per frame, the power of two that holds the MTU and 512."""
    for frames, mtu, buffers in ((32, 1500, 32), (64, 3584, 64),
                                 (64, 3585, 128), (64, 9000, 256)):
        netlink.rings_set("dms0", rx=frames)
        lab.set_mtu(mtu)
        with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
            equal(in_ring(), buffers, f"{frames} frames of MTU {mtu}")
            receive(binding, 4, 100_000)
        gone()


def test_standing_demand_while_bound() -> None:
    netlink.rings_set("dms0", rx=64)
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        for mtu, buffers in ((9000, 256), (1500, 64), (4000, 128)):
            lab.set_mtu(mtu)
            # The pool of the ring before may linger
            eventually(lambda want=buffers: in_ring() == want,
                       lambda mtu=mtu: f"64 frames of MTU {mtu}: {in_ring()}")
            receive(binding, 4, 100_000)
    gone()


def test_standing_demand_of_large_pages() -> None:
    if huge_pages() < 8:
        raise Skip("no memory for 8 huge pages")
    lab.set_mtu(9000)
    for shift, buffers in ((13, 256), (14, 128), (16, 128)):
        with devmem.Binding("dms0", [QUEUE], 8 * HUGE, 1 << shift, huge=True):
            equal(in_ring(), buffers, f"128 frames in {1 << shift} byte pages")
        gone()


def test_unbound_queues_are_ordinary() -> None:
    with devmem.Binding("dms0", [QUEUE], 1 << 20):
        for version in (4, 6):
            lab.transfer(version, 1 << 20)
            lab.transfer(version, 1 << 20, inward=False)


def test_other_traffic_on_a_bound_queue() -> None:
    """What is not TCP stays readable wherever it lands."""
    lab.run("ethtool -X dms0 weight 0 0 0 1")
    with lab.namespace("peer"):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with out, sock, devmem.Binding("dms0", [QUEUE], 1 << 20):
        before = netlink.rx_stats(lab.index())[QUEUE]["packets"]
        sock.bind((lab.LOCAL[4], 0))
        sock.settimeout(60)
        for size in (0, 1, 200, 300, 1472, 1473, 20_000, 60_000):
            data = bytes(n * 7 & 0xFF for n in range(size))
            out.sendto(data, sock.getsockname())
            equal(sock.recv(65536), data, f"datagram of {size}")
        lab.transfer(4, 100_000, inward=False)
        after = netlink.rx_stats(lab.index())[QUEUE]["packets"]
        check(after - before > 60, "packets on the bound queue")


def test_copybreak() -> None:
    """Short packets go to the host and can be read as anywhere else."""
    with devmem.Binding("dms0", [QUEUE], 1 << 20) as binding:
        equal(receive(binding, 4, 300).device_bytes, 300, "without it")
        lab.run("ethtool --set-tunable dms0 rx-copybreak 400")
        equal(receive(binding, 4, 300).host_bytes, 300, "a short packet")
        equal(receive(binding, 4, 600).device_bytes, 600, "a longer one")
        with lab.listen(lab.LOCAL[4]) as server:
            port = server.getsockname()[1]
            with lab.rule(f"tcp4 dst-port {port} action {QUEUE}"):
                sender = lab.Sender(lab.connect(lab.LOCAL[4], port, "peer"), 9)
                sock, _ = server.accept()
                with sock:
                    equal(len(sock.recv(100)), 9, "bytes by a plain recv")
                sender.join(60)


def test_two_queues() -> None:
    lab.run("ethtool -X dms0 equal 2")
    with devmem.Binding("dms0", [2, 3], 4 << 20) as binding:
        for queue in (2, 3):
            rx = receive(binding, 4, 1 << 20, queue=queue)
            equal(rx.device_bytes, 1 << 20, "bytes in device memory")
    gone()


def test_two_bindings() -> None:
    lab.run("ethtool -X dms0 equal 2")
    with devmem.Binding("dms0", [2], 2 << 20) as one:
        with devmem.Binding("dms0", [3], 2 << 20) as two:
            for binding, queue in ((one, 2), (two, 3)):
                receive(binding, 4, 1 << 20, queue=queue)
        receive(one, 4, 1 << 20, queue=2)
    gone()


def test_bind_while_down() -> None:
    lab.run("ip link set dms0 down")
    with devmem.Binding("dms0", [QUEUE], 2 << 20) as binding:
        lab.addresses()
        rx = receive(binding, 6, 1 << 20)
        equal(rx.device_bytes, 1 << 20, "bytes in device memory")
        lab.run("ip link set dms0 down")
    gone()
    lab.addresses()


def test_link_down_in_a_transfer() -> None:
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        with stream(binding, 4, 8 << 20) as (rx, digest, sender):
            while rx.device_bytes < 2 << 20:
                rx.step()
            lab.run("ip link set dms0 down")
            lab.addresses()
            rx.run()
            sender.join(60)
            equal(digest.digest(), sender.sum.digest(), "bytes")
            equal(rx.device_bytes, 8 << 20, "bytes in device memory")
    gone()


def test_settings_in_a_transfer() -> None:
    """Queues restart and come and go around a flow."""
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        with stream(binding, 4, 8 << 20) as (rx, digest, sender):
            for size, channels in ((64, 6), (512, 5), (128, 8), (32, 5)):
                target = rx.device_bytes + (1 << 20)
                while rx.device_bytes < target:
                    rx.step()
                netlink.rings_set("dms0", rx=size)
                lab.run(f"ethtool -L dms0 combined {channels}")
            rx.run()
            sender.join(60)
            equal(digest.digest(), sender.sum.digest(), "bytes")
            equal(rx.device_bytes, 8 << 20, "bytes in device memory")
    gone()


def hold(binding: devmem.Binding, rx: devmem.Receiver) -> list[int]:
    """Read until nothing comes any more, give nothing back."""
    held: list[int] = []
    rx.release = held.extend  # type: ignore
    rx.sock.setblocking(False)
    quiet = 0
    while quiet < 10:
        if rx.step() < 0:
            quiet += 1
            time.sleep(0.1)
        else:
            quiet = 0
    check(len(held) > len(binding.memory.bytes) // PAGE // 2,
          f"{len(held)} pages held")
    del rx.release
    return held


def test_exhaustion() -> None:
    """Without pages packets are dropped and counted; with pages it goes on."""
    before = overruns()
    with devmem.Binding("dms0", [QUEUE], 1 << 20) as binding:
        with stream(binding, 4, 4 << 20) as (rx, digest, sender):
            held = hold(binding, rx)
            after = overruns()
            check(after[0] > before[0], "rx-alloc-fail did not grow")
            check(after[1] > before[1], "rx-hw-drop-overruns did not grow")
            rx.release(held)
            rx.run()
            sender.join(60)
            equal(digest.digest(), sender.sum.digest(), "bytes")
    gone()


def test_small_memory() -> None:
    """Less memory than the ring has buffers, and a window to match."""
    with devmem.Binding("dms0", [QUEUE], 64 * PAGE) as binding:
        rx = receive(binding, 4, 1 << 20, receive_buffer=32 * PAGE // 2)
        equal(rx.device_bytes, 1 << 20, "bytes in device memory")


def test_unbind_with_data_queued() -> None:
    """Data received before stays readable."""
    binding = devmem.Binding("dms0", [QUEUE], 4 << 20)
    # Less than a new connection's window, half of tcp_rmem's default: what the receiver does not read does arrive.
    size = 50_000
    with stream(binding, 4, size) as (rx, digest, sender):
        sender.join(60)
        time.sleep(0.3)
        binding.unbind()
        rx.run()
        equal(digest.digest(), sender.sum.digest(), "bytes")
        equal(rx.device_bytes, size, "bytes in device memory")
    gone()
    binding.close()


def test_bind_in_the_middle_of_a_flow() -> None:
    """Bytes before the binding in host memory, after it in the device's."""
    with lab.listen(lab.LOCAL[4]) as server:
        port = server.getsockname()[1]
        with lab.rule(f"tcp4 dst-port {port} action {QUEUE}"):
            sender = lab.Sender(lab.connect(lab.LOCAL[4], port, "peer"),
                                8 << 20)
            sock, _ = server.accept()
            digest = hashlib.sha256()
            with sock:
                digest.update(sock.recv(1 << 20, socket.MSG_WAITALL))
                with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
                    rx = devmem.Receiver(sock, binding, digest.update)
                    rx.run()
                    sender.join(60)
    equal(digest.digest(), sender.sum.digest(), "bytes")
    check(rx.device_bytes > 4 << 20, f"{rx.device_bytes} in device memory")


if __name__ == "__main__":
    main(globals(), setup, prepare)
