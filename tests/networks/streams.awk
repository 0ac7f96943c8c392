# streams.awk: the common part of the reports on streams, to be read after sorted.awk and before the report's own file.
# Lines are NAME=VALUE, one for each measurement, at whose end are the rates of its streams in MB/s. `program` is the
# report's name; `rate_of_link`, in Mbit/s, is that of the link.

# The link's rate in payload, in MB/s: 1,024 of 1,082 bytes of a packet with its Ethernet header, 1,448 of 1,514 of TCP.
function ceiling(name) { return rate_of_link / 8 * (name ~ /tcp/ ? 1448 / 1514 : 1024 / 1082) }

function median(kind, key,    i, list) {
  for (i = 1; i <= measured[key]; i++) list[i] = value[kind, key, i]
  sorted(list, measured[key])
  return list[int(measured[key] / 2) + 1]
}

# Retransmitted packets in percent of those that are needed, of all repetitions; -1: no needed packets are known.
function again_percent(key) { return needed[key] > 0 ? 100 * again[key] / needed[key] : -1 }

function number(value, format) { return value < 0 ? (json ? "null" : "-") : sprintf(format, value) }

# read_line: `field` has the values of the line by their names, and `halves[2]` the rates.
function read_line(    fields, word, i) {
  split($0, halves, " rates=")
  split(halves[1], fields, " ")
  for (i in fields) {
    split(fields[i], word, "=")
    field[word[1]] = word[2]
  }
}

# next_of KEY: the number of this measurement among those of its key.
function next_of(key) {
  if (!(key in measured)) order[++keys] = key
  return ++measured[key]
}

# add_streams KEY AT COUNTS_AGAIN: adds the rates, and the retransmissions if they are known of this measurement.
function add_streams(key, at, counts_again,    rates, streams, sum, squares, i) {
  streams = split(halves[2], rates, " ")
  sum = squares = 0
  for (i = 1; i <= streams; i++) {
    sum += rates[i]
    squares += rates[i] * rates[i]
  }
  value["sum", key, at] = sum
  value["part", key, at] = sum > 0 ? rates[1] / sum : 0
  value["jain", key, at] = squares > 0 ? sum * sum / (streams * squares) : 0
  failed[key] += field["failed"]
  # The needed packets of a measurement with a failed stream are not known.
  if (field["failed"] == 0 && counts_again) {
    again[key] += field["again"]
    needed[key] += field["needed"]
  }
}

function print_head() {
  if (json) printf "{\n  \"rate_megabits\": %d, \"repetitions\": %d, \"seconds\": %d,\n  \"rows\": [\n", rate_of_link, repetitions, seconds
  else {
    printf "%s, %d core(s), Linux %s, load %s; %d Mbit/s\n", processor, cores, kernel, load, rate_of_link
    printf "Medians of %d repetitions. Part: of the first stream. Again: packets of data of all repetitions, in percent.\n", repetitions
  }
}

function demand(what, holds) {
  demands++
  if (holds) return
  failed_demands++
  printf "%s: FAILED: %s\n", program, what >"/dev/stderr"
}

# end_checks: called after all demands.
function end_checks() {
  printf "%s: %d checks, %d failed\n", program, demands, failed_demands >"/dev/stderr"
  if (failed_demands) exit 1
}
