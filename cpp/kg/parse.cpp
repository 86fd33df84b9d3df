// Triples in text: a line is one triple, and every error names its line.
#include "kg/parse.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>

#include "errors.hpp"

namespace gids::kg {
namespace {

struct Record {
    int32_t head, relation, tail;
    bool operator==(const Record& other) const {
        return head == other.head && relation == other.relation && tail == other.tail;
    }
    bool operator<(const Record& other) const {
        return std::tie(head, relation, tail) < std::tie(other.head, other.relation, other.tail);
    }
};

void skip_spaces(std::string_view& text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
}

std::string shown(std::string_view text) {
    constexpr size_t kShown = 60;
    return "'" + std::string(text.substr(0, kShown)) + (text.size() > kShown ? "...'" : "'");
}

}  // namespace

TripleParser::TripleParser(std::string path, ParseOptions options, NameIndex& entities, NameIndex& relations)
    : path_(std::move(path)), options_(std::move(options)), entities_(entities), relations_(relations) {
    std::string sorted = options_.columns;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != "hrt")
        throw ConfigError("columns must be an order of h, r and t, e.g. 'hrt' (got '" + options_.columns + "')");
}

void TripleParser::malformed(const std::string& rule) const {
    throw DatasetError(path_ + ", line " + std::to_string(line_number_) + " " + rule);
}

void TripleParser::feed(std::string_view text, std::vector<int32_t>& out) {
    while (true) {
        const size_t end = text.find('\n');
        if (end == std::string_view::npos) {
            rest_.append(text);
            return;
        }
        if (rest_.empty()) {
            line(text.substr(0, end), out);
        } else {
            rest_.append(text.substr(0, end));
            line(rest_, out);
            rest_.clear();
        }
        text.remove_prefix(end + 1);
    }
}

void TripleParser::finish(std::vector<int32_t>& out) {
    if (!rest_.empty()) line(rest_, out);
    rest_.clear();
}

void TripleParser::line(std::string_view text, std::vector<int32_t>& out) {
    ++line_number_;
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    if (text.empty() || (line_number_ == 1 && options_.skip_header)) return;
    if (options_.format == TextFormat::kNTriples) n_triples(text, out);
    else separated(text, out);
}

int32_t TripleParser::number(std::string_view field, const char* what) const {
    int32_t value = -1;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc{} || end != field.data() + field.size() || value < 0)
        malformed(std::string("must have a ") + what + " id in [0, 2^31) (got " + shown(field) + ")");
    return value;
}

void TripleParser::separated(std::string_view text, std::vector<int32_t>& out) {
    std::array<std::string_view, 3> fields;
    size_t count = 0;
    std::string_view left = text;
    for (bool more = true; more; ++count) {
        std::string_view field;
        if (options_.separator == ',' && !left.empty() && left.front() == '"') {
            // RFC 4180: a quoted field ends at a quote that is not doubled.
            std::string& plain = unquoted_[std::min<size_t>(count, 2)];
            plain.clear();
            size_t i = 1;
            for (;; ++i) {
                if (i >= left.size()) malformed("must close the quoted field " + shown(left));
                if (left[i] == '"') {
                    if (i + 1 >= left.size() || left[i + 1] != '"') break;
                    ++i;
                }
                plain.push_back(left[i]);
            }
            left.remove_prefix(i + 1);
            if (!left.empty() && left.front() != ',')
                malformed("must have a comma after a quoted field (got " + shown(left) + ")");
            more = !left.empty();
            if (more) left.remove_prefix(1);
            field = plain;
        } else {
            const size_t end = left.find(options_.separator);
            more = end != std::string_view::npos;
            field = left.substr(0, end);
            left.remove_prefix(more ? end + 1 : left.size());
        }
        if (count < 3) fields[count] = field;
    }
    if (count != 3) {
        const std::string name = options_.separator == '\t' ? "tabs" : std::string("'") + options_.separator + "'";
        malformed("must have 3 fields separated by " + name + " (got " + std::to_string(count) + ": " + shown(text) +
                  ")");
    }
    std::array<int32_t, 3> triple{};
    for (size_t i = 0; i < 3; ++i) {
        const char column = options_.columns[i];
        const size_t place = column == 'h' ? 0 : column == 'r' ? 1 : 2;
        if (fields[i].empty()) malformed("must have no empty field (got " + shown(text) + ")");
        if (options_.numeric) triple[place] = number(fields[i], column == 'r' ? "relation" : "entity");
        else triple[place] = (column == 'r' ? relations_ : entities_).find_or_add(fields[i]);
    }
    out.insert(out.end(), triple.begin(), triple.end());
}

void TripleParser::n_triples(std::string_view text, std::vector<int32_t>& out) {
    std::string_view left = text;
    skip_spaces(left);
    if (left.empty() || left.front() == '#') return;
    std::array<std::string_view, 3> terms;
    bool literal = false;
    for (size_t i = 0; i < 3; ++i) {
        skip_spaces(left);
        size_t length = 0;
        if (!left.empty() && left.front() == '<') {
            const size_t end = left.find('>');
            if (end == std::string_view::npos) malformed("must close the IRI " + shown(left));
            terms[i] = left.substr(1, end - 1);
            length = end + 1;
        } else if (left.starts_with("_:") && i != 1) {
            length = std::min(left.find_first_of(" \t"), left.size());
            terms[i] = left.substr(0, length);
        } else if (!left.empty() && left.front() == '"' && i == 2) {
            literal = true;
            size_t end = 1;
            while (end < left.size() && left[end] != '"') end += left[end] == '\\' ? 2 : 1;
            if (end >= left.size()) malformed("must close the literal " + shown(left));
            length = end + 1;
            if (left.substr(length).starts_with("^^<")) {
                const size_t close = left.find('>', length);
                if (close == std::string_view::npos) malformed("must close the datatype of " + shown(left));
                length = close + 1;
            } else if (length < left.size() && left[length] == '@') {
                length = std::min(left.find_first_of(" \t.", length), left.size());
            }
            terms[i] = left.substr(0, length);
        } else {
            static constexpr std::array<const char*, 3> kRules = {
                "an IRI or blank node as subject", "an IRI as predicate", "an IRI, blank node or literal as object"};
            malformed(std::string("must have ") + kRules[i] + " (got " + shown(left) + ")");
        }
        left.remove_prefix(length);
    }
    skip_spaces(left);
    if (left.empty() || left.front() != '.') malformed("must end with a dot (got " + shown(left) + ")");
    left.remove_prefix(1);
    skip_spaces(left);
    if (!left.empty() && left.front() != '#') malformed("must hold one triple (got " + shown(left) + " after the dot)");
    if (literal && !options_.keep_literals) {
        ++skipped_literals_;
        return;
    }
    const int32_t head = entities_.find_or_add(terms[0]);
    const int32_t relation = relations_.find_or_add(terms[1]);
    out.insert(out.end(), {head, relation, entities_.find_or_add(terms[2])});
}

int64_t sort_triples(int32_t* records, int64_t count) {
    auto* begin = reinterpret_cast<Record*>(records);
    std::sort(begin, begin + count);
    return std::unique(begin, begin + count) - begin;
}

}  // namespace gids::kg
