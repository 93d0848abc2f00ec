// SPDX-License-Identifier: Apache-2.0
#include <boost/system/error_category.hpp>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest {

namespace {

char const* text_of(errc value) noexcept
{
    switch (value) {
        case errc::bad_url:
            return "the URL cannot be used";
        case errc::bad_response:
            return "the server's answer is not usable HTTP/1.1";
        case errc::http_status:
            return "the server refused";
        case errc::bad_redirect:
            return "the server's redirect cannot be followed";
        case errc::unknown_size:
            return "the server does not announce the length of its answer";
        case errc::wrong_range:
            return "the server sends other bytes than those requested";
        case errc::object_changed:
            return "the object changed while it was being read";
        case errc::gave_up:
            return "the server's answer differs from its announcement";
        case errc::wrong_checksum:
            return "the bytes do not match their checksum";
        case errc::bad_safetensors:
            return "the file is not valid safetensors";
        case errc::bad_frame:
            return "the sender does not send valid frames";
        case errc::stream_cut:
            return "the sender's stream ended before its last frame";
        case errc::wrong_source:
            return "the sender's number is invalid or in use";
        case errc::no_credentials:
            return "there are no credentials";
        case errc::tls_failure:
            return "the secure connection failed";
        case errc::wrong_secret:
            return "the sender has another secret";
        case errc::epoch_ended:
            return "the epoch has ended";
        case errc::mirrors_differ:
            return "the mirrors do not have the same object";
    }
    return "unknown error";
}

class category final : public boost::system::error_category {
  public:
    [[nodiscard]] char const* name() const noexcept override { return "gpurx.ingest"; }
    [[nodiscard]] std::string message(int value) const override { return text_of(static_cast<errc>(value)); }
};

}  // namespace

boost::system::error_category const& ingest_category() noexcept
{
    static category const instance;
    return instance;
}

error_code make_error_code(errc value) noexcept
{
    return {static_cast<int>(value), ingest_category()};
}

}  // namespace gpurx::ingest
