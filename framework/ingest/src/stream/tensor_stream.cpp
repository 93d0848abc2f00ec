// SPDX-License-Identifier: Apache-2.0
#include <gpurx/ingest/tensor_stream.hpp>

#include "stream_state.hpp"

namespace gpurx::ingest {

namespace detail {

std::shared_ptr<ready_batches> batches_of(std::shared_ptr<stream_state> const& stream) noexcept
{
    return {stream, &stream->ready()};
}

}  // namespace detail

tensor_stream::tensor_stream(executor_type executor, rx_session& session, tensor_stream_options options)
    : state_{std::make_shared<detail::stream_state>(std::move(executor), session, std::move(options))}
{
    state_->start();
}

tensor_stream::tensor_stream(tensor_stream&&) noexcept = default;

tensor_stream& tensor_stream::operator=(tensor_stream&& other) noexcept
{
    if (this != &other) {
        close();
        state_ = std::move(other.state_);
    }
    return *this;
}

tensor_stream::~tensor_stream()
{
    close();
}

tensor_stream::executor_type tensor_stream::get_executor() const noexcept
{
    return state_->executor();
}

std::vector<asio::ip::tcp::endpoint> tensor_stream::local_endpoints() const
{
    return state_->local_endpoints();
}

std::vector<source_error> tensor_stream::errors() const
{
    return state_->errors();
}

tensor_stream_stats tensor_stream::stats() const
{
    return state_->stats();
}

void tensor_stream::acknowledge(stream_position const& until)
{
    state_->acknowledge(until);
}

void tensor_stream::close() noexcept
{
    if (state_)
        state_->close();
}

}  // namespace gpurx::ingest
