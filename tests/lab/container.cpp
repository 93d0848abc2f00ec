// SPDX-License-Identifier: Apache-2.0
#include "container.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "bpf.hpp"
#include "lease/queue_plan.hpp"
#include "nic.hpp"
#include "nic/netlink.hpp"
#include "nic/uapi.hpp"
#include "peer.hpp"
#include "rights.hpp"

namespace gpurx::lab {

namespace nl = detail::netlink;

namespace {

constexpr char host_end[] = "nkhost";
constexpr uid_t nobody = 65534;

// Of no header for programs that every machine has (include/uapi/linux/{netdev,bpf}.h of Linux 7.3).
constexpr std::uint8_t cmd_queue_create = 16;
constexpr std::uint16_t lease_ifindex = 1;
constexpr std::uint16_t lease_queue = 2;
constexpr std::uint32_t tcx_ingress = 46;
constexpr std::int32_t call_redirect_peer = 155;

std::uint16_t netdev_family(nl::socket& via)
{
    std::uint16_t id = 0;
    auto request = nl::family_request(detail::uapi::netdev::family_name);
    (void)via.exchange(request, [&id](nl::generic_message const& answer) {
        if (auto const found = nl::read_family(answer.attrs))
            id = found->id;
    });
    return id;
}

[[noreturn]] void fail_bpf(char const* what)
{
    throw std::system_error{errno, std::generic_category(), what};
}

bpf_insn instruction(int code, unsigned dst, unsigned src, std::int16_t offset, std::int32_t number)
{
    bpf_insn made{};
    made.code = static_cast<std::uint8_t>(code);
    made.dst_reg = dst & 0xF;
    made.src_reg = src & 0xF;
    made.off = offset;
    made.imm = number;
    return made;
}

// IPv4 for `address` goes to the other end of the netkit pair, as if it had arrived there; all else goes on.
detail::unique_fd load_redirection(unsigned ifindex, std::uint32_t address)
{
    constexpr int load_word = BPF_LDX | BPF_MEM | BPF_W;
    constexpr int load_half = BPF_LDX | BPF_MEM | BPF_H;
    constexpr int jump_unless = BPF_JMP32 | BPF_JNE | BPF_K;
    std::array const program{
        instruction(load_word, BPF_REG_2, BPF_REG_1, offsetof(__sk_buff, data), 0),
        instruction(load_word, BPF_REG_3, BPF_REG_1, offsetof(__sk_buff, data_end), 0),
        instruction(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_4, BPF_REG_2, 0, 0),
        instruction(BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_4, 0, 0, 34),
        instruction(BPF_JMP | BPF_JGT | BPF_X, BPF_REG_4, BPF_REG_3, 8, 0),
        instruction(load_half, BPF_REG_4, BPF_REG_2, 12, 0),
        instruction(jump_unless, BPF_REG_4, 0, 6, 0x0008),
        instruction(load_word, BPF_REG_4, BPF_REG_2, 30, 0),
        instruction(jump_unless, BPF_REG_4, 0, 4, static_cast<std::int32_t>(address)),
        instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_1, 0, 0, static_cast<std::int32_t>(ifindex)),
        instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_2, 0, 0, 0),
        instruction(BPF_JMP | BPF_CALL, 0, 0, 0, call_redirect_peer),
        instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
        instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, -1),  // on to the next program
        instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    bpf_attr what{};
    what.prog_type = BPF_PROG_TYPE_SCHED_CLS;
    what.insn_cnt = program.size();
    what.insns = reinterpret_cast<std::uintptr_t>(program.data());
    what.license = reinterpret_cast<std::uintptr_t>("GPL");
    auto made = bpf(BPF_PROG_LOAD, what);
    if (!made)
        fail_bpf("load the program that redirects");
    return made;
}

void write_file(std::string const& path, std::string_view text)
{
    std::ofstream file{path};
    file << text << std::flush;
    if (!file)
        throw std::runtime_error{"cannot write " + path};
}

void become(rights what)
{
    if (what == rights::of_nobody_else &&
        (::setgroups(0, nullptr) != 0 || ::setgid(nobody) != 0 || ::setuid(nobody) != 0))
        throw std::runtime_error{"cannot become nobody"};
    // Else its files in /proc are root's.
    ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    if (::unshare(CLONE_NEWNET | (what == rights::of_nobody_else ? CLONE_NEWUSER : 0)) != 0)
        throw std::runtime_error{"cannot have a network namespace"};
    if (what == rights::none_in_network)
        set_net_admin(false);
}

std::string in_namespace_of(pid_t process, std::string_view command)
{
    return fmt::format("nsenter -t {} -n {}", process, command);
}

}  // namespace

std::string why_no_leases()
{
    nl::socket via;
    nl::policy found;
    auto request = nl::policy_request(netdev_family(via), cmd_queue_create);
    auto const said = via.exchange(request, [&found](nl::generic_message const& one) { found.add(one.attrs); });
    if (said.error != 0 || !found.accepted().contains(detail::uapi::netdev::queue_lease))
        return "this kernel leases no queues: Linux 7.1 and later do";
    auto const made = output_of(fmt::format("ip link add {0} type netkit && ip link del {0}", host_end));
    return made.empty() ? "" : "this kernel has no netkit: " + made;
}

leased_queues::leased_queues(std::vector<unsigned> queues) : nic_{near_interface}, queues_{std::move(queues)}
{
    // Else one failure makes each later test fail, too.
    try {
        set_up();
    } catch (...) {
        undo();
        throw;
    }
}

leased_queues::~leased_queues()
{
    undo();
}

void leased_queues::set_up()
{
    auto const table = nic_.rss_table();
    nic_.set_rss_table(detail::avoid_queues(table, nic_.channels().rx_queues(), {queues_.begin(), queues_.end()}));
    split_headers(true);
    run_command(fmt::format("ip link add {} numrxqueues {} type netkit", host_end, queues_.size() + 1));
    for (unsigned const queue : queues_)
        lease(queue);
    run_command(fmt::format("ip link set {} up", host_end));
    run_command(fmt::format("ip route add {}/32 dev {}", leased_address, host_end));
    run_command(fmt::format("ip -n peer route add {}/32 via 10.77.0.1", leased_address));
    write_file("/proc/sys/net/ipv4/ip_forward", "1");
    redirect();
}

void leased_queues::undo()
{
    redirection_.reset();
    for (auto const rule : rules_)
        nic_.remove_rule(rule);
    (void)output_of("ip -n peer route del 10.78.0.2/32");
    (void)output_of(fmt::format("ip link del {}", host_end));
    write_file("/proc/sys/net/ipv4/ip_forward", "0");
    split_headers(false);
    nic_.set_rss_table({});
}

// Within one network namespace; the device is moved afterwards, and keeps the queue.
void leased_queues::lease(unsigned queue)
{
    nl::socket via;
    nl::request request{netdev_family(via), cmd_queue_create, detail::uapi::netdev::version, NLM_F_ACK};
    request.put(detail::uapi::netdev::queue_ifindex, std::uint32_t{::if_nametoindex(leased_interface)});
    request.put(detail::uapi::netdev::queue_type, detail::uapi::netdev::queue_type_rx);
    request.nest(detail::uapi::netdev::queue_lease, [&](nl::request& nest) {
        nest.put(lease_ifindex, std::uint32_t{nic_.index()});
        nest.nest(lease_queue, [&](nl::request& inner) {
            inner.put(detail::uapi::netdev::queue_id, std::uint32_t{queue});
            inner.put(detail::uapi::netdev::queue_type, detail::uapi::netdev::queue_type_rx);
        });
    });
    auto const said = via.exchange(request, [](nl::generic_message const&) {});
    if (said.error != 0)
        throw std::runtime_error{fmt::format("lease queue {}: {} {}", queue, std::strerror(said.error), said.text)};
}

void leased_queues::redirect()
{
    auto const address = asio::ip::make_address_v4(leased_address).to_bytes();
    std::uint32_t as_loaded = 0;
    std::memcpy(&as_loaded, address.data(), sizeof as_loaded);
    auto const program = load_redirection(::if_nametoindex(host_end), as_loaded);
    bpf_attr what{};
    what.link_create.prog_fd = static_cast<std::uint32_t>(program.get());
    what.link_create.target_ifindex = nic_.index();
    what.link_create.attach_type = tcx_ingress;
    redirection_ = bpf(BPF_LINK_CREATE, what);
    if (!redirection_)
        fail_bpf("attach the program that redirects");
}

void leased_queues::split_headers(bool on)
{
    nic_.set_data_split(on ? detail::ethtool::data_split::on : detail::ethtool::data_split::automatic);
}

void leased_queues::steer(std::uint16_t port)
{
    tcp::endpoint const anywhere{asio::ip::address_v4::any(), port};
    for (auto const& match : detail::match_listener(anywhere, false))
        rules_.push_back(nic_.add_rule({match, detail::rule_target::queue, queues_.front()}));
}

void leased_queues::move_to(pid_t process)
{
    run_command(fmt::format("ip link set {} netns {}", leased_interface, process));
    for (auto const& step : {fmt::format("ip address add {}/24 dev {}", leased_address, leased_interface),
                             std::string{"ip link set lo up"}, fmt::format("ip link set {} up", leased_interface),
                             fmt::format("ip route add default dev {}", leased_interface)})
        run_command(in_namespace_of(process, step));
}

container::container(rights what, std::function<void(test::child_report&)> body)
{
    std::array<int, 2> ready{};
    std::array<int, 2> go{};
    std::array<int, 2> said{};
    if (::pipe(ready.data()) != 0 || ::pipe(go.data()) != 0 || ::pipe(said.data()) != 0)
        throw std::runtime_error{"no pipe"};
    detail::unique_fd const is_ready{ready[0]};
    detail::unique_fd says_ready{ready[1]};
    detail::unique_fd may_go{go[0]};
    detail::unique_fd writes{said[1]};
    go_.reset(go[1]);
    reads_.reset(said[0]);
    // Memory of a session inside is nobody's, too.
    ::chmod("/dev/udmabuf", 0666);
    pid_ = ::fork();
    if (pid_ < 0)
        throw std::runtime_error{"cannot fork"};
    char byte = 0;
    if (pid_ == 0) {
        go_.reset();
        ::signal(SIGALRM, SIG_DFL);
        ::alarm(120);
        test::child_report found;
        try {
            become(what);
            (void)!::write(says_ready.get(), &byte, 1);
            if (::read(may_go.get(), &byte, 1) == 1)
                body(found);
        } catch (std::exception const& failure) {
            found.expect(false, failure.what());
        }
        auto const& text = found.text();
        (void)!::write(writes.get(), text.data(), text.size());
        ::_exit(0);
    }
    says_ready.reset();
    if (::read(is_ready.get(), &byte, 1) != 1)
        return;  // report() says why
    if (what == rights::of_nobody_else) {
        write_file(fmt::format("/proc/{}/setgroups", pid_), "deny");
        write_file(fmt::format("/proc/{}/uid_map", pid_), fmt::format("0 {} 1", nobody));
        write_file(fmt::format("/proc/{}/gid_map", pid_), fmt::format("0 {} 1", nobody));
    }
}

container::~container()
{
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    ::chmod("/dev/udmabuf", 0600);
}

void container::enter(leased_queues& leased)
{
    leased.move_to(pid_);
    char const byte = 0;
    (void)!::write(go_.get(), &byte, 1);
}

std::string container::report()
{
    std::string text;
    std::array<char, 512> part{};
    for (ssize_t count = 0; (count = ::read(reads_.get(), part.data(), part.size())) > 0;)
        text.append(part.data(), static_cast<std::size_t>(count));
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFSIGNALED(status))
        text += fmt::format("ended by signal {}\n", WTERMSIG(status));
    return text;
}

}  // namespace gpurx::lab
