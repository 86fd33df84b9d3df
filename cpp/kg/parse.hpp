// Triples in text, block by block: fields with a separator, quoted or not, and N-Triples.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kg/names.hpp"

namespace gids::kg {

enum class TextFormat { kSeparated, kNTriples };

struct ParseOptions {
    TextFormat format = TextFormat::kSeparated;
    char separator = '\t';
    bool numeric = false;         // fields are ids; nothing is named
    bool skip_header = false;     // the first line names the columns
    bool keep_literals = false;   // N-Triples: literal objects become entities
    std::string columns = "hrt";  // which field is head, relation, tail
};

// One file. Names go to the indexes; a malformed line is a DatasetError that names file and line.
class TripleParser {
public:
    TripleParser(std::string path, ParseOptions options, NameIndex& entities, NameIndex& relations);

    // Appends the triples of every whole line to out as (head, relation, tail); the last piece of text stays for the
    // next call.
    void feed(std::string_view text, std::vector<int32_t>& out);
    // The file has ended: parses what is left.
    void finish(std::vector<int32_t>& out);

    int64_t skipped_literals() const { return skipped_literals_; }

private:
    void line(std::string_view text, std::vector<int32_t>& out);
    void separated(std::string_view text, std::vector<int32_t>& out);
    void n_triples(std::string_view text, std::vector<int32_t>& out);
    int32_t number(std::string_view field, const char* what) const;
    [[noreturn]] void malformed(const std::string& rule) const;

    std::string path_;
    ParseOptions options_;
    NameIndex& entities_;
    NameIndex& relations_;
    std::string rest_;
    std::string unquoted_[3];
    int64_t line_number_ = 0;
    int64_t skipped_literals_ = 0;
};

// Sorts records (head, relation, tail) and drops repeated ones; returns how many are left at the front.
int64_t sort_triples(int32_t* records, int64_t count);

}  // namespace gids::kg
