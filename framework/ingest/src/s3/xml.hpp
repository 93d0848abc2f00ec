// SPDX-License-Identifier: Apache-2.0
//
// XML as servers write it: with attributes, namespace prefixes, CDATA, comments, processing instructions and character
// references. It needs no stack for nested elements and expands no entities of a document. Pure.
#pragma once

#include <string>
#include <string_view>

namespace gpurx::ingest::detail::s3 {

class xml_reader {
  public:
    explicit xml_reader(std::string_view xml) noexcept : rest_{xml} {}

    // Goes on to the end of the next element. False: no other element ends. A text that is cut off has the elements
    // before the cut.
    [[nodiscard]] bool next();
    // Returns the names from the root to the element, without prefixes: "/Error/Code".
    [[nodiscard]] std::string_view path() const noexcept { return path_; }
    // Returns its text. Of an element with others inside: the text behind the last of them.
    [[nodiscard]] std::string const& text() const noexcept { return text_; }
    // Returns its attributes, as written. Of an element with others inside: those of the last of them.
    [[nodiscard]] std::string_view attributes() const noexcept { return attributes_; }
    // Returns whether the root has ended and no other content follows. Precondition: next() has returned false.
    [[nodiscard]] bool is_whole() const noexcept { return has_ended_ && path_.empty() && !is_broken_; }

  private:
    // Takes the text before `end` and `end`.
    [[nodiscard]] std::string_view take_before(std::string_view end);
    void take_text();
    void take_cdata();
    void take_start();
    void take_end();
    void leave();
    void stop() noexcept;

    std::string_view rest_;
    std::string path_;
    std::string text_;
    std::string_view attributes_;
    bool at_end_ = false;     // of an element, that of path_
    bool has_ended_ = false;  // the root
    bool is_broken_ = false;
};

}  // namespace gpurx::ingest::detail::s3
