// SPDX-License-Identifier: Apache-2.0
//
// The other end of the wire: threads in the network namespace "peer" that send, each one connection.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

namespace gpurx::lab {

namespace asio = boost::asio;
using asio::ip::tcp;

// What a sender sends: the seed, as a header of eight bytes in host order, then so many bytes of its pattern.
struct stream {
    std::uint64_t seed = 0;
    std::uint64_t bytes = 0;
};

enum class family { v4, v6 };

// The addresses of the two ends: dms0 here, dms1 there.
[[nodiscard]] asio::ip::address near_address(family version);
[[nodiscard]] asio::ip::address far_address(family version);

// Moves this thread to the peer's network namespace. Throws std::system_error.
void enter_peer_namespace();

// Sends one stream and closes. Destroying it ends what is left of it.
class peer_sender {
  public:
    static constexpr std::uint64_t no_pause = ~std::uint64_t{0};

    // Connects to `to`, trying for up to a minute while nobody listens there. Pauses as pause_at() says.
    peer_sender(tcp::endpoint to, stream what, std::uint64_t pause_at = no_pause);
    // Listens at the far address until one connection comes.
    peer_sender(family version, stream what);
    peer_sender(peer_sender const&) = delete;
    peer_sender& operator=(peer_sender const&) = delete;
    ~peer_sender();

    // Where the second kind listens.
    [[nodiscard]] tcp::endpoint endpoint() const { return endpoint_; }
    // Without the header.
    [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
    // Whether the receiver has closed the connection, after everything arrived or before; or there never was one.
    [[nodiscard]] bool has_ended() const noexcept { return ended_; }
    [[nodiscard]] bool is_connected();
    // How often in a row what is under way has been sent again since the receiver has acknowledged something.
    [[nodiscard]] unsigned tries_in_vain();
    // Whether it can send nothing until the receiver takes something: what it has is held back, and none of it is under
    // way, or that has been tried in vain more than once.
    [[nodiscard]] bool stands_still();
    // Breaks off, also where it waits for the receiver.
    void stop() noexcept;
    // Holds on, once so many bytes are sent, until resume().
    void pause_at(std::uint64_t bytes) noexcept { pause_at_ = bytes; }
    void resume() noexcept { pause_at_ = no_pause; }
    // What ended it early (the receiver went away); waits until it has ended.
    [[nodiscard]] std::optional<int> error();

  private:
    void run(int socket) noexcept;
    void send_all(int socket) noexcept;

    stream what_;
    tcp::endpoint endpoint_;
    std::atomic<std::uint64_t> sent_{0};
    std::atomic<std::uint64_t> pause_at_ = no_pause;
    std::atomic<bool> stop_{false};
    std::atomic<bool> ended_{false};
    std::mutex mutex_;  // guards socket_
    int socket_ = -1;   // what stop() shuts down
    int error_ = 0;
    std::thread thread_;
};

}  // namespace gpurx::lab
