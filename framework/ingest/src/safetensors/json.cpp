// SPDX-License-Identifier: Apache-2.0
#include "json.hpp"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <unordered_set>
#include <vector>

namespace gpurx::ingest::detail {

namespace {

namespace json = boost::json;

// Looks at names only.
struct name_watcher {
    static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
    static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
    static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
    static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);

    std::vector<std::unordered_set<std::string>> open;  // the names of each object that is not closed yet
    std::string name;
    std::string twice;

    bool on_object_begin(error_code& /*code*/)
    {
        open.emplace_back();
        return true;
    }
    bool on_object_end(std::size_t /*count*/, error_code& /*code*/)
    {
        open.pop_back();
        return true;
    }
    bool on_key_part(json::string_view part, std::size_t /*size*/, error_code& /*code*/)
    {
        name.append(part.data(), part.size());
        return true;
    }
    bool on_key(json::string_view part, std::size_t /*size*/, error_code& /*code*/)
    {
        name.append(part.data(), part.size());
        if (!open.back().insert(name).second && twice.empty())
            twice = name;
        name.clear();
        return true;
    }

    bool on_document_begin(error_code& /*code*/) { return true; }
    bool on_document_end(error_code& /*code*/) { return true; }
    bool on_array_begin(error_code& /*code*/) { return true; }
    bool on_array_end(std::size_t /*count*/, error_code& /*code*/) { return true; }
    bool on_string_part(json::string_view /*part*/, std::size_t /*size*/, error_code& /*code*/) { return true; }
    bool on_string(json::string_view /*part*/, std::size_t /*size*/, error_code& /*code*/) { return true; }
    bool on_number_part(json::string_view /*part*/, error_code& /*code*/) { return true; }
    bool on_int64(std::int64_t /*value*/, json::string_view /*text*/, error_code& /*code*/) { return true; }
    bool on_uint64(std::uint64_t /*value*/, json::string_view /*text*/, error_code& /*code*/) { return true; }
    bool on_double(double /*value*/, json::string_view /*text*/, error_code& /*code*/) { return true; }
    bool on_bool(bool /*value*/, error_code& /*code*/) { return true; }
    bool on_null(error_code& /*code*/) { return true; }
    bool on_comment_part(json::string_view /*part*/, error_code& /*code*/) { return true; }
    bool on_comment(json::string_view /*part*/, error_code& /*code*/) { return true; }
};

}  // namespace

json::value parse_json_once(std::string_view text, error_code& code, std::string& twice)
{
    json::basic_parser<name_watcher> watcher{json::parse_options{}};
    watcher.write_some(false, text.data(), text.size(), code);
    if (code)
        return {};
    twice = watcher.handler().twice;
    return json::parse({text.data(), text.size()}, code);
}

}  // namespace gpurx::ingest::detail
