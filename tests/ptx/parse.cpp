// Reads PTX: declarations, parameter layouts, and instructions whose operands become slots.
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

#include "module.hpp"

namespace ptx {
namespace {

[[noreturn]] void refuse(int line, const std::string& message) {
    throw Error("PTX line " + std::to_string(line) + ": " + message);
}

std::string trim(const std::string& text) {
    const auto begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) return "";
    return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(trim(part));
    return parts;
}

// Operands, split at commas that are not inside brackets or braces.
std::vector<std::string> split_operands(const std::string& text) {
    std::vector<std::string> parts;
    std::string current;
    int depth = 0;
    for (const char c : text) {
        depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
        if (c == ',' && depth == 0) {
            parts.push_back(trim(current));
            current.clear();
        } else {
            current += c;
        }
    }
    if (!trim(current).empty()) parts.push_back(trim(current));
    return parts;
}

struct Type {
    int bytes;
    bool is_signed;
};

Type type_of(const std::string& name, int line) {
    if (name == "pred") return {1, false};
    static const std::string kKinds = "busf";
    const int bits = name.size() > 1 ? std::atoi(name.c_str() + 1) : 0;
    if (name.empty() || kKinds.find(name[0]) == std::string::npos ||
        (bits != 8 && bits != 16 && bits != 32 && bits != 64))
        refuse(line, "no type is called ." + name);
    return {bits / 8, name[0] == 's'};
}

// The text with its comments blanked out, read statement by statement.
class Reader {
public:
    explicit Reader(const std::string& text) : text_(text) {
        for (std::size_t i = 0; i + 1 < text_.size(); ++i)
            if (text_[i] == '/' && text_[i + 1] == '/')
                for (; i < text_.size() && text_[i] != '\n'; ++i) text_[i] = ' ';
    }
    bool at_end() { return skip(), at_ >= text_.size(); }
    char peek() { return skip(), text_[at_]; }
    int line() { return skip(), line_; }
    // Up to and without one of `ends`, which is consumed.
    std::string until(const char* ends) {
        std::string out;
        skip();
        for (; at_ < text_.size() && std::strchr(ends, text_[at_]) == nullptr; ++at_) {
            line_ += text_[at_] == '\n';
            out += text_[at_];
        }
        if (at_ >= text_.size()) refuse(line_, "the text ends inside a statement");
        line_ += text_[at_] == '\n';
        ++at_;
        return trim(out);
    }
    // A statement of a body: braces within it are vectors, and a label ends at its colon.
    std::string statement(bool* label) {
        skip();
        const std::size_t begin = at_;
        *label = false;
        for (std::size_t i = at_; i < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[i])) ||
                                                       std::strchr("$_%", text_[i]) != nullptr);
             ++i)
            if (text_[i + 1] == ':' && text_[i + 2] != ':') {
                *label = true;
                at_ = i + 2;
                return text_.substr(begin, i + 1 - begin);
            }
        return until(";");
    }

private:
    void skip() {
        for (; at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])); ++at_)
            line_ += text_[at_] == '\n';
    }
    std::string text_;
    std::size_t at_ = 0;
    int line_ = 1;
};

// A variable: .shared .align 8 .b8 name[4096], .param .u64 name, .global .align 4 .u32 name = 5.
struct Variable {
    std::string name;
    std::size_t alignment, bytes;
    Type element;
    std::string initial;
};

Variable parse_variable(const std::string& text, int line) {
    Variable variable{};
    const auto equals = text.find('=');
    if (equals != std::string::npos) variable.initial = trim(text.substr(equals + 1));
    std::istringstream words(text.substr(0, equals));
    std::string type;
    for (std::string word; words >> word;) {
        if (word == ".align") words >> variable.alignment;
        else if (word == ".visible" || word == ".global" || word == ".shared" || word == ".local" || word == ".param" ||
                 word == ".weak")
            continue;
        else if (word[0] == '.') type = word.substr(1);
        else variable.name = word;
    }
    variable.element = type_of(type, line);
    std::size_t count = 1;
    const auto bracket = variable.name.find('[');
    if (bracket != std::string::npos) {
        count = std::strtoull(variable.name.c_str() + bracket + 1, nullptr, 10);
        variable.name.resize(bracket);
    }
    variable.bytes = count * static_cast<std::size_t>(variable.element.bytes);
    if (variable.alignment == 0) variable.alignment = static_cast<std::size_t>(variable.element.bytes);
    return variable;
}

std::size_t aligned(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

class EntryParser {
public:
    EntryParser(Entry& entry, Module& module, const std::map<std::string, std::size_t>& shared,
                std::size_t shared_bytes)
        : entry_(entry), module_(module), shared_(shared) {
        entry_.shared_bytes = shared_bytes;
        for (int i = 0; i < kSpecialCount; ++i) specials_[kSpecials[i]] = entry_.special_slots[i] = entry_.slots++;
        sink_ = entry_.slots++;
    }

    void parameters(const std::string& text, int line) {
        for (const auto& part : split(text, ',')) {
            if (part.empty()) continue;
            const Variable variable = parse_variable(part, line);
            const std::size_t offset = aligned(entry_.parameter_bytes, variable.alignment);
            parameters_[variable.name] = offset;
            entry_.parameters.push_back({offset, variable.bytes, false});
            entry_.parameter_bytes = offset + variable.bytes;
        }
    }

    void body(Reader& reader) {
        while (reader.peek() != '}') {
            line_ = reader.line();
            bool label = false;
            const std::string text = reader.statement(&label);
            if (label) labels_[text] = static_cast<int>(entry_.code.size());
            else if (text[0] == '{') refuse(line_, "a nested scope is not understood");
            else if (text[0] == '.') declare(text);
            else instruction(text);
        }
        reader.until("}");
        for (const auto& [at, name] : branches_) {
            const auto found = labels_.find(name);
            if (found == labels_.end()) refuse(entry_.code[at].line, "no label is called " + name);
            entry_.code[at].target = found->second;
        }
        find_pointers();
        Instruction end;  // code that runs past its last statement returns
        end.kind = Kind::kReturn;
        end.line = line_;
        end.opcode = "ret";
        entry_.code.push_back(end);
    }

private:
    struct Register {
        int slot;
        uint64_t mask;
    };

    // PTX does not say which parameters are pointers. NVRTC's code does: it turns them into global addresses at once,
    // or adds an offset to them (always the second operand) and takes the sum as an address.
    void find_pointers() {
        std::map<int, std::size_t> parameter_in, base_of;  // slot -> parameter
        std::set<std::size_t> used;
        for (const Instruction& i : entry_.code) {
            if (i.kind == Kind::kLoad && i.space == Space::kParam) {
                for (std::size_t n = 0; n < entry_.parameters.size(); ++n)
                    if (entry_.parameters[n].offset == constant_at(i.sources[0]) && i.element_bytes == 8)
                        parameter_in[i.destinations[0]] = n;
            }
            if (i.opcode == "add.s64" && parameter_in.count(i.sources[0]) != 0)
                base_of[i.destinations[0]] = parameter_in[i.sources[0]];
        }
        for (const Instruction& i : entry_.code) {
            const bool memory = (i.kind == Kind::kLoad && i.space != Space::kParam) || i.kind == Kind::kStore ||
                                i.kind == Kind::kAtomic;
            if (!memory && i.opcode != "cvta.to.global.u64") continue;
            for (const auto* slots : {&parameter_in, &base_of})
                if (const auto found = slots->find(i.sources[0]); found != slots->end()) used.insert(found->second);
        }
        for (const std::size_t n : used) entry_.parameters[n].is_pointer = true;
    }

    std::size_t constant_at(int slot) const {
        for (const auto& [at, value] : entry_.constants)
            if (at == slot) return value;
        return ~std::size_t{0};
    }

    void declare(const std::string& text) {
        std::istringstream words(text);
        std::string word, type;
        words >> word;
        if (word == ".pragma" || word == ".loc") return;
        if (word == ".shared" || word == ".local") {
            const Variable variable = parse_variable(text, line_);
            std::size_t& used = word == ".shared" ? entry_.shared_bytes : entry_.local_bytes;
            used = aligned(used, variable.alignment);
            (word == ".shared" ? shared_ : locals_)[variable.name] = used;
            used += variable.bytes;
            return;
        }
        if (word != ".reg") refuse(line_, "the directive " + word + " is not understood");
        words >> type;
        const Type of = type_of(type.substr(1), line_);
        const uint64_t mask = type == ".pred" ? 1 : of.bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * of.bytes)) - 1;
        std::string rest;
        std::getline(words, rest);
        for (const auto& name : split(rest, ',')) {
            const auto angle = name.find('<');
            if (angle == std::string::npos) {
                registers_[name] = {entry_.slots++, mask};
                continue;
            }
            const int count = std::atoi(name.c_str() + angle + 1);
            for (int i = 0; i < count; ++i)
                registers_[name.substr(0, angle) + std::to_string(i)] = {entry_.slots++, mask};
        }
    }

    int constant(uint64_t value) {
        const auto [found, is_new] = constants_.try_emplace(value, entry_.slots);
        if (is_new) entry_.constants.emplace_back(entry_.slots++, value);
        return found->second;
    }

    Register destination(const std::string& name) const {
        if (name == "_") return {sink_, ~uint64_t{0}};
        const auto found = registers_.find(name);
        if (found == registers_.end()) refuse(line_, "no register is called " + name);
        return found->second;
    }

    uint64_t address_of(const std::string& symbol) {
        if (const auto found = shared_.find(symbol); found != shared_.end()) return found->second;
        if (const auto found = locals_.find(symbol); found != locals_.end()) return found->second;
        if (const auto found = parameters_.find(symbol); found != parameters_.end()) return found->second;
        if (const auto found = module_.globals.find(symbol); found != module_.globals.end()) {
            const auto begin = reinterpret_cast<uint64_t>(found->second.data());
            entry_.globals.emplace_back(begin, begin + found->second.size());
            return begin;
        }
        refuse(line_, "no variable is called " + symbol);
    }

    int source(const std::string& text) {
        if (text[0] == '%') {
            if (const auto found = registers_.find(text); found != registers_.end()) return found->second.slot;
            if (const auto found = specials_.find(text); found != specials_.end()) return found->second;
            refuse(line_, "no register is called " + text);
        }
        if (text.rfind("0f", 0) == 0 || text.rfind("0d", 0) == 0)
            return constant(std::strtoull(text.c_str() + 2, nullptr, 16));
        if (text[0] == '-' || std::isdigit(static_cast<unsigned char>(text[0])) != 0) {
            char* end = nullptr;
            const uint64_t value = text[0] == '-' ? static_cast<uint64_t>(std::strtoll(text.c_str(), &end, 0))
                                                  : std::strtoull(text.c_str(), &end, 0);
            if (*end == 'U') ++end;
            if (*end != '\0') refuse(line_, "the number " + text + " is not understood");
            return constant(value);
        }
        return constant(address_of(text));
    }

    void add_destinations(Instruction& instruction, const std::string& text) {
        std::string names = text;
        if (names[0] == '{') names = names.substr(1, names.size() - 2);
        for (const auto& part : split(names, names.find('|') != std::string::npos ? '|' : ',')) {
            const Register found = destination(part);
            instruction.destinations.push_back(found.slot);
            instruction.destination_masks.push_back(found.mask);
        }
    }

    void add_sources(Instruction& instruction, const std::string& text) {
        if (text[0] != '{') {
            instruction.sources.push_back(source(text));
            return;
        }
        for (const auto& part : split(text.substr(1, text.size() - 2), ','))
            instruction.sources.push_back(source(part));
    }

    void add_address(Instruction& instruction, const std::string& text) {
        if (text[0] != '[' || text.back() != ']') refuse(line_, "an address must stand in brackets (got " + text + ")");
        const std::string inside = trim(text.substr(1, text.size() - 2));
        const auto plus = inside.find('+');
        instruction.sources.push_back(source(trim(inside.substr(0, plus))));
        if (plus != std::string::npos) instruction.offset = std::strtoll(inside.c_str() + plus + 1, nullptr, 0);
    }

    // ld, st, atom, red, fence: modifiers may come in several orders, so they are read as a set.
    void memory_modifiers(Instruction& i, const std::vector<std::string>& parts) {
        static const std::map<std::string, Order> kOrders = {
            {"weak", Order::kWeak},       {"nc", Order::kNonCoherent},  {"volatile", Order::kVolatile},
            {"relaxed", Order::kRelaxed}, {"acquire", Order::kAcquire}, {"release", Order::kRelease},
            {"acq_rel", Order::kAcqRel},  {"sc", Order::kSeqCst}};
        static const std::map<std::string, Scope> kScopes = {
            {"cta", Scope::kBlock}, {"gpu", Scope::kGpu}, {"sys", Scope::kSystem}};
        static const std::map<std::string, Space> kSpaces = {
            {"global", Space::kGlobal}, {"shared", Space::kShared}, {"local", Space::kLocal}, {"param", Space::kParam}};
        static const std::map<std::string, Atomic> kAtomics = {
            {"add", Atomic::kAdd},       {"and", Atomic::kAnd},         {"or", Atomic::kOr},   {"xor", Atomic::kXor},
            {"exch", Atomic::kExchange}, {"cas", Atomic::kCompareSwap}, {"min", Atomic::kMin}, {"max", Atomic::kMax}};
        const bool atomic = i.kind == Kind::kAtomic;
        if (atomic) i.order = Order::kRelaxed, i.scope = Scope::kGpu;  // what atom means when it says nothing
        for (std::size_t n = 1; n < parts.size(); ++n) {
            const std::string& part = parts[n];
            if (const auto order = kOrders.find(part); order != kOrders.end()) i.order = order->second;
            else if (const auto scope = kScopes.find(part); scope != kScopes.end()) i.scope = scope->second;
            else if (const auto space = kSpaces.find(part); space != kSpaces.end()) i.space = space->second;
            else if (const auto op = kAtomics.find(part); op != kAtomics.end() && atomic) i.atomic = op->second;
            else if (part == "mmio") i.mmio = true;
            else if (part == "v2" || part == "v4") i.elements = part[1] - '0';
            else if (n + 1 == parts.size() && i.kind != Kind::kFence) {
                const Type type = type_of(part, line_);
                if (atomic && part[0] == 'f')
                    refuse(line_, "the modifier ." + part + " of " + i.opcode + " is not understood");
                i.element_bytes = type.bytes, i.is_signed = type.is_signed;
            } else refuse(line_, "the modifier ." + part + " of " + i.opcode + " is not understood");
        }
        if (i.kind != Kind::kFence && i.element_bytes == 0) refuse(line_, i.opcode + " has no type");
        if (atomic && i.atomic == Atomic::kNone) refuse(line_, i.opcode + " has no operation");
        if (i.order == Order::kVolatile) i.scope = Scope::kSystem;
    }

    bool memory(Instruction& i, const std::vector<std::string>& parts, const std::vector<std::string>& operands) {
        const std::string& base = parts[0];
        if (base == "membar") {  // the older spelling of fence.sc
            static const std::map<std::string, Scope> kScopes = {
                {"cta", Scope::kBlock}, {"gl", Scope::kGpu}, {"sys", Scope::kSystem}};
            const auto scope = kScopes.find(parts.size() > 1 ? parts[1] : "");
            if (scope == kScopes.end() || parts.size() != 2)
                refuse(line_, "the opcode " + i.opcode + " is not understood");
            i.kind = Kind::kFence, i.order = Order::kSeqCst, i.scope = scope->second;
            return true;
        }
        if (base == "fence") i.kind = Kind::kFence, i.order = Order::kAcqRel;
        else if (base == "ld") i.kind = Kind::kLoad;
        else if (base == "st") i.kind = Kind::kStore;
        else if (base == "atom" || base == "red") i.kind = Kind::kAtomic;
        else return false;
        memory_modifiers(i, parts);
        if (i.kind == Kind::kFence) return true;
        std::size_t at = 0;
        if (base == "ld" || base == "atom") add_destinations(i, operands.at(at++));
        add_address(i, operands.at(at++));
        for (; at < operands.size(); ++at) add_sources(i, operands[at]);
        return true;
    }

    bool collective(Instruction& i, const std::vector<std::string>& operands) {
        static const std::map<std::string, Collective> kCollectives = {{"bar.warp.sync", Collective::kSync},
                                                                       {"vote.sync.ballot.b32", Collective::kBallot},
                                                                       {"vote.sync.any.pred", Collective::kAny},
                                                                       {"vote.sync.all.pred", Collective::kAll},
                                                                       {"shfl.sync.idx.b32", Collective::kShuffleIdx},
                                                                       {"shfl.sync.up.b32", Collective::kShuffleUp},
                                                                       {"shfl.sync.down.b32", Collective::kShuffleDown},
                                                                       {"shfl.sync.bfly.b32", Collective::kShuffleXor}};
        const auto found = kCollectives.find(i.opcode);
        if (found == kCollectives.end()) return false;
        i.kind = Kind::kCollective;
        i.collective = found->second;
        std::size_t at = 0;
        if (i.collective != Collective::kSync) add_destinations(i, operands.at(at++));
        for (; at < operands.size(); ++at) add_sources(i, operands[at]);  // the mask is the last
        return true;
    }

    void instruction(std::string text) {
        Instruction i;
        i.line = line_;
        if (text[0] == '@') {
            const auto space = text.find_first_of(" \t");
            i.guard_negated = text[1] == '!';
            i.guard = source(text.substr(i.guard_negated ? 2 : 1, space - (i.guard_negated ? 2 : 1)));
            text = trim(text.substr(space));
        }
        const auto space = text.find_first_of(" \t");
        i.opcode = text.substr(0, space);
        const auto operands = split_operands(space == std::string::npos ? "" : text.substr(space));
        const auto parts = split(i.opcode, '.');
        if (i.opcode == "bra" || i.opcode == "bra.uni") {
            i.kind = Kind::kBranch;
            branches_.emplace_back(entry_.code.size(), operands.at(0));
        } else if (i.opcode == "ret" || i.opcode == "exit") {
            i.kind = Kind::kReturn;
        } else if (i.opcode == "bar.sync" || i.opcode == "barrier.sync") {
            if (operands.size() != 1 || operands[0] != "0")
                refuse(line_, i.opcode + " of a part of the block is not understood");
            i.kind = Kind::kBlockBarrier;
        } else if (i.opcode == "nanosleep.u32") {
            i.kind = Kind::kSleep;
        } else if (operands.size() == 2 && operands[1] == "%globaltimer") {
            i.kind = Kind::kTimer;
            add_destinations(i, operands[0]);
        } else if (!memory(i, parts, operands) && !collective(i, operands)) {
            compute(i, operands);
        }
        entry_.code.push_back(std::move(i));
    }

    void compute(Instruction& i, const std::vector<std::string>& operands) {
        if (operands.empty()) refuse(line_, "the opcode " + i.opcode + " is not understood");
        add_destinations(i, operands[0]);
        for (std::size_t n = 1; n < operands.size(); ++n) add_sources(i, operands[n]);
        if (i.opcode == "cvta.shared.u64" || i.opcode == "cvta.to.shared.u64") {
            i.compute = find_compute(i.opcode == "cvta.shared.u64" ? "add.u64" : "sub.u64");
            i.sources.push_back(specials_[kSharedBase]);
        } else if (i.opcode == "mov.b64" && i.destinations.size() > 1) {
            i.compute = unpack_compute(static_cast<int>(i.destinations.size()));
        } else if (i.opcode == "mov.b64" && i.sources.size() > 1) {
            i.compute = pack_compute(static_cast<int>(i.sources.size()));
        } else if (i.destinations.size() == 1 && i.sources.size() <= 4) {
            i.compute = find_compute(i.opcode);
        }
        if (i.compute == nullptr) refuse(line_, "the opcode " + i.opcode + " is not understood");
    }

    Entry& entry_;
    Module& module_;
    std::map<std::string, std::size_t> shared_, locals_, parameters_;
    std::map<std::string, Register> registers_;
    std::map<std::string, int> specials_;
    std::map<uint64_t, int> constants_;
    std::map<std::string, int> labels_;
    std::vector<std::pair<std::size_t, std::string>> branches_;
    int sink_ = 0;
    int line_ = 0;
};

void define_global(Module& module, const Variable& variable, int line) {
    if (variable.alignment > 16) refuse(line, "a global variable aligned to more than 16 bytes is not understood");
    std::vector<char> memory(aligned(variable.bytes, 16));
    std::string values = variable.initial;
    if (!values.empty() && values[0] == '{') values = values.substr(1, values.size() - 2);
    std::size_t at = 0;
    for (const auto& value : split(values, ',')) {
        char* end = nullptr;
        const uint64_t bits = value[0] == '-' ? static_cast<uint64_t>(std::strtoll(value.c_str(), &end, 0))
                                              : std::strtoull(value.c_str(), &end, 0);
        if (*end != '\0') return;  // an initial value that no kernel here uses: a use of the variable is an error
        std::memcpy(memory.data() + at, &bits, static_cast<std::size_t>(variable.element.bytes));
        at += static_cast<std::size_t>(variable.element.bytes);
    }
    module.globals[variable.name] = std::move(memory);
}

}  // namespace

void parse(const std::string& text, Module& module) {
    Reader reader(text);
    std::map<std::string, std::size_t> shared;
    std::size_t shared_bytes = 0;
    while (!reader.at_end()) {
        const int line = reader.line();
        std::string head = reader.until(" \t\n");
        if (head == ".visible" || head == ".weak") head = reader.until(" \t\n");
        if (head == ".version" || head == ".address_size") {
            reader.until("\n");
        } else if (head == ".target") {
            module.target = reader.until("\n");
        } else if (head == ".entry") {
            const std::string name = reader.until("(");
            Entry& entry = module.entries[name];
            entry = Entry{};
            entry.name = name;
            EntryParser parser(entry, module, shared, shared_bytes);
            parser.parameters(reader.until(")"), line);
            std::istringstream directives(reader.until("{"));
            for (std::string word; directives >> word;)
                if (word == ".maxntid") directives >> entry.max_threads;
            parser.body(reader);
        } else if (head == ".global") {
            define_global(module, parse_variable(reader.until(";"), line), line);
        } else if (head == ".shared") {
            const Variable variable = parse_variable(reader.until(";"), line);
            shared_bytes = aligned(shared_bytes, variable.alignment);
            shared[variable.name] = shared_bytes;
            shared_bytes += variable.bytes;
        } else {
            refuse(line, "the directive " + head + " is not understood");
        }
    }
}

}  // namespace ptx
