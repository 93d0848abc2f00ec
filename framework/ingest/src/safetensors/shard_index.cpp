// SPDX-License-Identifier: Apache-2.0
#include "shard_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <boost/url/encode.hpp>
#include <boost/url/rfc/pchars.hpp>
#include <stdexcept>

#include "../net/url.hpp"
#include "json.hpp"

namespace gpurx::ingest::detail {

namespace {

[[noreturn]] void refuse_shards(std::string_view object, std::string_view what)
{
    throw system_error{errc::bad_safetensors,
                       {.operation = "read the shards of",
                        .object = is_local(object) ? printable(object, 2000) : redacted_url(object),
                        .kernel_message = {},
                        .advice = printable(what, 1000)}};
}

// Returns the value of a parameter of a query; empty: it has none.
std::string_view parameter(std::string_view query, std::string_view name)
{
    while (!query.empty()) {
        auto const one = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(one.size() + 1, query.size()));
        if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
            return one.substr(name.size() + 1);
    }
    return {};
}

// A shared access signature (SAS) of Azure, of a container, a directory or an account. Another signature or a version
// in the query would be that of the index alone.
bool opens_neighbours(std::string_view query)
{
    auto const of = parameter(query, "sr");
    return !parameter(query, "sig").empty() &&
           (of == "c" || of == "d" || parameter(query, "srt").find('o') != std::string_view::npos);
}

std::string beside(std::string_view where, std::string_view name)
{
    if (!is_name_below(name))
        refuse_shards(where,
                      fmt::format("the index names the file \"{}\", which is not a name in its directory", name));
    if (is_literal(where))
        return fmt::format("{}{}", where.substr(0, where.rfind('/') + 1), name);
    where = where.substr(0, where.find('#'));
    auto const path = where.substr(0, where.find('?'));
    auto const query = where.substr(std::min(path.size() + 1, where.size()));
    auto const written = boost::urls::encode({name.data(), name.size()}, boost::urls::pchars + '/');
    return fmt::format("{}{}{}{}", path.substr(0, path.rfind('/') + 1), written, opens_neighbours(query) ? "?" : "",
                       opens_neighbours(query) ? query : "");
}

}  // namespace

bool is_literal(std::string_view where)
{
    return is_literal_url(where) || (is_local(where) && !where.starts_with("file:"));
}

shard_index parse_index(std::string_view text, std::string_view where)
{
    error_code code;
    std::string twice;
    auto const parsed = parse_json_once(text, code, twice);
    if (code)
        refuse_shards(where, "the index is not JSON: " + code.message());
    if (!twice.empty())
        refuse_shards(where, fmt::format("the index contains the name \"{}\" twice", twice));
    auto const* const all = parsed.is_object() ? parsed.get_object().if_contains("weight_map") : nullptr;
    if (all == nullptr || !all->is_object() || all->get_object().empty())
        refuse_shards(where, "the index has no \"weight_map\" of tensors and their files");
    shard_index index;
    std::map<std::string, std::size_t, std::less<>> known;
    for (auto const& [tensor, file] : all->get_object()) {
        if (!file.is_string())
            refuse_shards(where, "\"weight_map\" must be an object of strings");
        std::string name{file.get_string()};
        auto const [found, is_new] = known.try_emplace(name, index.urls.size());
        if (is_new)
            index.urls.push_back(beside(where, name));
        index.shards.emplace(std::string{tensor}, found->second);
    }
    return index;
}

namespace {

// The same model twice, as some publish it: in Transformers' form, model*, and whole, consolidated*. The first stays.
void leave_one_form(std::vector<std::string>& names)
{
    auto const is_called = [](std::string_view name, std::string_view prefix) {
        return name.substr(name.rfind('/') + 1).starts_with(prefix);
    };
    if (std::ranges::any_of(names, [&](auto const& one) { return is_called(one, "model"); }))
        std::erase_if(names, [&](auto const& one) { return is_called(one, "consolidated"); });
}

}  // namespace

std::vector<std::string> files_among(std::vector<std::string> names, std::string_view where)
{
    std::vector<std::string> indices;
    std::vector<std::string> files;
    for (auto& name : names) {
        if (name.ends_with(".safetensors.index.json"))
            indices.push_back(std::move(name));
        else if (name.ends_with(".safetensors"))
            files.push_back(std::move(name));
    }
    leave_one_form(indices);
    leave_one_form(files);
    if (indices.size() > 1)
        refuse_shards(where, "it has several indices; load one of them by its name");
    if (indices.empty() && files.empty())
        refuse_shards(where, "it has no .safetensors file");
    std::ranges::sort(files);
    return indices.empty() ? files : indices;
}

void check_once(checkpoint const& of)
{
    std::map<std::string_view, checkpoint_shard const*> seen;
    for (auto const& shard : of.shards) {
        for (auto const& tensor : shard.tensors) {
            auto const [found, is_new] = seen.try_emplace(tensor.name, &shard);
            if (!is_new)
                refuse_shards(shard.url, fmt::format("tensor \"{}\" is in {} too", tensor.name,
                                                     is_local(found->second->url) ? found->second->url
                                                                                  : redacted_url(found->second->url)));
        }
    }
}

void check_index(checkpoint const& of, shard_index const& index, std::string_view where)
{
    std::map<std::string_view, std::size_t> found;
    for (std::size_t i = 0; i < of.shards.size(); ++i)
        for (auto const& tensor : of.shards[i].tensors)
            found.emplace(tensor.name, i);
    for (auto const& [name, shard] : index.shards) {
        auto const there = found.find(name);
        if (there == found.end() || there->second != shard)
            refuse_shards(where, fmt::format("tensor \"{}\" is not in {}, although the index places it there", name,
                                             is_local(of.shards[shard].url) ? of.shards[shard].url
                                                                            : redacted_url(of.shards[shard].url)));
    }
}

void check_no_mirrors(fetch_options const& options)
{
    if (!options.mirrors.empty())
        throw std::invalid_argument{"mirrors serve one file, and this checkpoint has several"};
}

}  // namespace gpurx::ingest::detail
