// SPDX-License-Identifier: Apache-2.0
#include "ptx_module.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "ptx_instruction.hpp"
#include "ptx_words.hpp"

namespace ptx {

namespace {

using namespace inside;

class kernel_reader {
  public:
    explicit kernel_reader(reader& from) : from_{from} {}
    kernel read();

  private:
    // "type name" or "type name[count]", as parameters and shared variables are declared.
    struct variable {
        std::string name;
        std::uint64_t width = 0;  // of one element, in bytes
        std::uint64_t bytes = 0;
    };
    variable read_variable(char const* what);
    void read_parameter();
    void read_limits();
    void read_registers();
    void read_shared();
    void read_statement();
    void read_instruction();
    void finish_branches();
    void add_register(std::string name, unsigned width);

    reader& from_;
    kernel made_;
    names known_;
    std::map<std::string, std::size_t, std::less<>> labels_;
    std::vector<std::pair<std::size_t, std::string>> branches_;
};

std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

void kernel_reader::add_register(std::string name, unsigned width)
{
    auto const index = static_cast<std::uint32_t>(made_.registers.size());
    if (!known_.registers.emplace(name, index).second)
        refuse(from_.line(), "a second register " + name);
    made_.registers.push_back({std::move(name), width});
}

// ---- declarations ----

kernel_reader::variable kernel_reader::read_variable(char const* what)
{
    auto const word = from_.take();
    auto const type = type_of(word.substr(1));
    if (!type || type->width == 0)
        refuse(from_.line(), "unknown type of a " + std::string{what} + ": " + std::string{word});
    variable made{std::string{from_.take()}, type->width, type->width};
    if (from_.take_if("[")) {
        made.bytes *= from_.number();
        from_.expect("]");
    }
    return made;
}

// .param .align 8 .b8 name[24], .param .u64 name
void kernel_reader::read_parameter()
{
    from_.expect(".param");
    auto const alignment = from_.take_if(".align") ? from_.number() : 0;
    auto const what = read_variable("parameter");
    auto const begin = round_up(made_.parameter_bytes, std::max(alignment, what.width));
    made_.parameters.push_back({begin, what.bytes});
    made_.parameter_bytes = begin + what.bytes;
    known_.symbols.emplace(what.name, begin);
}

void kernel_reader::read_limits()
{
    while (from_.next() != "{") {
        auto const directive = from_.take();
        auto const first = from_.number();
        auto product = first;
        while (from_.take_if(","))
            product *= from_.number();
        if (directive == ".maxntid" || directive == ".reqntid")
            made_.max_threads = static_cast<unsigned>(product);
        else if (directive != ".minnctapersm" && directive != ".maxnreg")
            refuse(from_.line(), "unknown directive " + std::string{directive});
    }
}

// .reg .b32 %r<393>;
void kernel_reader::read_registers()
{
    auto const word = from_.take();
    auto const type = type_of(word.substr(1));
    if (!type)
        refuse(from_.line(), "unknown type of registers: " + std::string{word});
    do {
        std::string const name{from_.take()};
        if (!from_.take_if("<")) {
            add_register(name, type->width);
            continue;
        }
        auto const count = from_.number();
        from_.expect(">");
        for (std::uint64_t i = 0; i < count; ++i)
            add_register(name + std::to_string(i), type->width);
    } while (from_.take_if(","));
    from_.expect(";");
}

// .shared .align 4 .b8 name[32];
void kernel_reader::read_shared()
{
    auto const alignment = from_.take_if(".align") ? from_.number() : 16;
    auto const what = read_variable("shared variable");
    from_.expect(";");
    auto const begin = round_up(made_.shared_bytes, alignment);
    known_.symbols.emplace(what.name, begin);
    made_.shared_bytes = begin + what.bytes;
}

// ---- statements ----

void kernel_reader::read_instruction()
{
    std::optional<std::string> label;
    made_.code.push_back(instruction_reader{from_, known_, made_.constants}.read(label));
    if (label)
        branches_.emplace_back(made_.code.size() - 1, *std::move(label));
}

void kernel_reader::finish_branches()
{
    for (auto const& [at, name] : branches_) {
        auto& branch = made_.code[at];
        auto const found = labels_.find(name);
        if (found == labels_.end())
            refuse(branch.line, "unknown label " + name);
        if (found->second == made_.code.size())
            refuse(branch.line, "nothing follows the label " + name);
        branch.target = found->second;
    }
}

void kernel_reader::read_statement()
{
    if (from_.take_if(".reg"))
        read_registers();
    else if (from_.take_if(".shared"))
        read_shared();
    else if (from_.take_if(".pragma"))
        from_.expect(";");
    else if (from_.next(1) == ":") {
        labels_.emplace(from_.take(), made_.code.size());
        from_.expect(":");
    } else if (from_.next().starts_with("."))
        refuse(from_.line(), "unknown directive " + std::string{from_.next()});
    else
        read_instruction();
}

kernel kernel_reader::read()
{
    for (auto const* const name : {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x", "%laneid"})
        add_register(name, 4);
    made_.name = from_.take();
    from_.expect("(");
    while (!from_.take_if(")")) {
        read_parameter();
        if (from_.next() != ")")
            from_.expect(",");
    }
    read_limits();
    from_.expect("{");
    while (!from_.take_if("}"))
        read_statement();
    finish_branches();
    if (made_.code.empty() || made_.code.back().guarded ||
        (made_.code.back().does != action::end && made_.code.back().does != action::branch))
        refuse(from_.line(), made_.name + " runs beyond its end");
    return std::move(made_);
}

}  // namespace

kernels parse(std::string_view text)
{
    kernels made;
    reader from{text};
    while (!from.done()) {
        auto const directive = from.take();
        if (directive == ".version" || directive == ".target" || directive == ".address_size") {
            do
                from.take();
            while (from.take_if(","));
        } else if (directive == ".entry") {
            auto kernel = kernel_reader{from}.read();
            auto name = kernel.name;
            made.emplace(std::move(name), std::move(kernel));
        } else if (directive != ".visible" && directive != ".weak") {
            refuse(from.line(), "unknown directive " + std::string{directive});
        }
    }
    return made;
}

}  // namespace ptx
