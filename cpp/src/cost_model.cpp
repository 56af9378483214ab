#include "dflash/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include "file_io.h"

namespace dflash {

void CostModel::observe(int own_rows, double us) {
    const int n_rows = own_rows + company_.rows;
    if (n_rows < 1 || n_rows > max_rows || !(us > 0.0)) {
        return;
    }
    ++observations_;
    if (cells_[1].n == 0 && n_rows > 1) {
        single_us_ = us / prior_multiple(n_rows);
    }
    Cell & cell = cells_[static_cast<std::size_t>(n_rows)];
    double & mean = n_rows == 1 ? single_us_ : cell.multiple;
    const double seen = n_rows == 1 ? us : us / single_us_;
    if (cell.n == 0) {
        mean = seen;
    } else {
        // A pass that the machine interrupted says nothing about the next one: outliers are cut, until they are the
        // rule.
        cell.surprises = seen > 2.0 * mean ? cell.surprises + 1 : 0;
        mean += (std::min(seen, 2.0 * mean) - mean) * std::max(0.1, 1.0 / (cell.n + 1));
        if (cell.surprises >= 3) {
            mean = seen;
        }
    }
    ++cell.n;
    cell.at = observations_;
}

// The measured multiple; beyond 100 observations without a new one it moves up to half way to a lower prior.
double CostModel::multiple(int n_rows) const {
    if (n_rows == 1) {
        return 1.0;
    }
    const Cell & cell = cells_[static_cast<std::size_t>(n_rows)];
    const double age = static_cast<double>(observations_ - cell.at);
    const double doubt = std::clamp((age - 100.0) / 400.0, 0.0, 0.5);
    return cell.multiple + doubt * std::min(0.0, prior_multiple(n_rows) - cell.multiple);
}

double CostModel::verify_us(int n_rows) const { return pass_us(n_rows + company_.rows - company_.drafted); }

double CostModel::whole_us(int n_rows) const { return pass_us(n_rows + company_.rows); }

double CostModel::pass_us(int n_rows) const {
    const int rows = std::clamp(n_rows, 1, max_rows);
    int below = rows;
    while (!known(below)) {
        --below;
    }
    int above = rows;
    while (above <= max_rows && !known(above)) {
        ++above;
    }
    if (below == rows) {
        return single_us_ * multiple(rows);
    }
    if (above <= max_rows) {
        const double share = static_cast<double>(rows - below) / (above - below);
        return single_us_ * (multiple(below) + share * (multiple(above) - multiple(below)));
    }
    const double slope = multiple(below) / prior_multiple(below) * slope_prior;
    return single_us_ * (multiple(below) + slope * (rows - below));
}

CostModel::Choice CostModel::best_width(const std::vector<float> & probabilities,
                                        const std::function<double(int)> & draft_us, int least) const {
    Choice best;
    if (least > 0) {
        best.gain = 0.0;
    }
    double expected = 1.0 + company_.texts;
    const double plain_rate = expected / verify_us(1);
    double survives = 1.0;
    const int widest = std::min(static_cast<int>(probabilities.size()), max_rows - 1);
    for (int width = 1; width <= widest; ++width) {
        survives *= probabilities[static_cast<std::size_t>(width - 1)];
        expected += survives;
        const double drafting = draft_us ? draft_us(width) : 0.0;
        const double gain = expected / (verify_us(1 + width) + drafting) / plain_rate;
        if (width >= least && gain > best.gain) {
            best = {width, gain};
        }
    }
    return best;
}

std::vector<CostModel::Measurement> CostModel::measurements() const {
    std::vector<Measurement> result;
    for (int rows = 1; rows <= max_rows; ++rows) {
        if (const int n = cells_[static_cast<std::size_t>(rows)].n) {
            result.push_back({rows, pass_us(rows), n});
        }
    }
    return result;
}

CostModel CostModel::of(const std::vector<Measurement> & measurements) {
    CostModel model;
    for (const Measurement & m : measurements) {
        model.observe(m.n_rows, m.us);
        model.cells_[static_cast<std::size_t>(m.n_rows)].n = m.n;
    }
    return model;
}

CostModel & CostCurves::at(int n_context) {
    int bucket = 0;
    while (bucket + 1 < n_buckets && n_context > (512 << bucket)) {
        ++bucket;
    }
    CostModel & here = buckets_[static_cast<std::size_t>(bucket)];
    for (int distance = 1; distance < n_buckets && !here.measured(); ++distance) {
        for (const int other : {bucket - distance, bucket + distance}) {
            if (other >= 0 && other < n_buckets && buckets_[static_cast<std::size_t>(other)].measured()) {
                here = buckets_[static_cast<std::size_t>(other)];
            }
        }
    }
    return here;
}

bool CostCurves::measured() const {
    return std::any_of(buckets_.begin(), buckets_.end(), [](const CostModel & model) { return model.measured(); });
}

namespace {

constexpr std::uint64_t file_magic = 0x31766375'68736664;  // dfshucv1

void put(ByteWriter & writer, const CostModel & model) { writer.put_vector(model.measurements()); }

CostModel get(ByteReader & reader) {
    std::vector<CostModel::Measurement> measurements = reader.get_vector<CostModel::Measurement>();
    for (const CostModel::Measurement & m : measurements) {
        if (m.n_rows < 1 || m.n_rows > CostModel::max_rows || !(m.us > 0.0) || !std::isfinite(m.us) || m.n < 1) {
            throw std::out_of_range("measurement");
        }
    }
    return CostModel::of(measurements);
}

}  // namespace

void CostCurves::save(const std::string & path, const std::string & key, const Others & others) const {
    ByteWriter writer;
    writer.put(file_magic);
    writer.put_vector(std::vector<char>(key.begin(), key.end()));
    for (const CostModel & bucket : buckets_) {
        put(writer, bucket);
    }
    writer.put<std::uint64_t>(others.models.size());
    for (const CostModel & model : others.models) {
        put(writer, model);
    }
    writer.put_vector(others.numbers);
    ByteWriter whole;
    whole.put(checksum(writer.bytes()));
    whole.put_bytes(writer.bytes().data(), writer.bytes().size());
    write_file_atomically(path, whole.bytes());
}

std::string CostCurves::file_in(const std::string & folder, const std::string & key) {
    char name[32];
    std::snprintf(name, sizeof(name), "%016llx.cost", static_cast<unsigned long long>(checksum(key)));
    return folder + "/" + name;
}

bool CostCurves::load(const std::string & path, const std::string & key, Others & others) {
    try {
        const std::string whole = read_file(path);
        ByteReader head(whole);
        const auto sum = head.get<std::uint64_t>();
        const std::string body = whole.substr(head.offset());
        ByteReader reader(body);
        if (sum != checksum(body) || reader.get<std::uint64_t>() != file_magic) {
            return false;
        }
        const std::vector<char> found = reader.get_vector<char>();
        if (std::string(found.begin(), found.end()) != key) {
            return false;
        }
        std::array<CostModel, n_buckets> buckets;
        for (CostModel & bucket : buckets) {
            bucket = get(reader);
        }
        Others read;
        read.models.resize(std::min<std::uint64_t>(reader.get<std::uint64_t>(), 16));
        for (CostModel & model : read.models) {
            model = get(reader);
        }
        read.numbers = reader.get_vector<double>();
        buckets_ = buckets;
        others = std::move(read);
        return true;
    } catch (const std::exception &) {
        return false;
    }
}

}  // namespace dflash
