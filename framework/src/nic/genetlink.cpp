// SPDX-License-Identifier: Apache-2.0
#include "genetlink.hpp"

#include "uapi.hpp"

namespace gpurx::detail::netlink {

namespace nlctrl = uapi::nlctrl;

request family_request(std::string_view name)
{
    request result{nlctrl::family_id, nlctrl::cmd_getfamily, nlctrl::version, NLM_F_ACK};
    result.put(nlctrl::attr_family_name, name);
    return result;
}

std::optional<family> read_family(attributes const& answer)
{
    auto const id = answer.find(nlctrl::attr_family_id);
    if (!id || !id->u16())
        return std::nullopt;
    family result{*id->u16(), {}};
    // An array: each entry is a nest whose type is its place.
    answer.nested(nlctrl::attr_mcast_groups).for_each([&result](attribute const& entry) {
        attributes const group{entry.value()};
        auto const name = group.find(nlctrl::group_name);
        auto const number = group.u32(nlctrl::group_id);
        if (name && number)
            result.groups.emplace(name->text(), *number);
    });
    return result;
}

request policy_request(std::uint16_t family, std::uint8_t command)
{
    request result{nlctrl::family_id, nlctrl::cmd_getpolicy, nlctrl::version, NLM_F_DUMP};
    result.put(nlctrl::attr_family_id, family);
    result.put(nlctrl::attr_op, std::uint32_t{command});
    return result;
}

namespace {

attribute_rule read_rule(attributes const& rule)
{
    return {rule.u32(nlctrl::rule_type).value_or(0), rule.uint(nlctrl::rule_max_unsigned)};
}

}  // namespace

void policy::add(attributes const& answer)
{
    // {command: {do: index, dump: index}}, in the first answer
    answer.nested(nlctrl::attr_op_policy).for_each([this](attribute const& command) {
        if (auto const index = attributes{command.value()}.u32(nlctrl::policy_do))
            index_ = *index;
    });
    // {index: {attribute: {what it must be}}}, one attribute an answer
    answer.nested(nlctrl::attr_policy).for_each([this](attribute const& index) {
        attributes{index.value()}.for_each([this, &index](attribute const& one) {
            policies_[index.type()].insert_or_assign(one.type(), read_rule(attributes{one.value()}));
        });
    });
}

attribute_rules policy::accepted() const
{
    auto const found = index_ ? policies_.find(*index_) : policies_.end();
    return found != policies_.end() ? found->second : attribute_rules{};
}

}  // namespace gpurx::detail::netlink
