// SPDX-License-Identifier: Apache-2.0
//
// How Beast reads the header of an answer.
#pragma once

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <string>

#include "answer.hpp"

namespace gpurx::ingest::detail {

// Is done when the header is, whatever body that promises.
class answer_parser : public boost::beast::http::response_parser<boost::beast::http::empty_body> {
  public:
    answer_parser();
};

// What `from` has read. `code`: how that ended, as Beast has it. Errors: asio::error::eof, errc::bad_response with
// `why` in words, and what is not of Beast.
[[nodiscard]] answer take_answer(answer_parser const& from, error_code& code, std::string& why);

}  // namespace gpurx::ingest::detail
