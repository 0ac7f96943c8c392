# bottleneck.awk: judges what `bottleneck` has measured: lines of NAME=VALUE, one for each measurement, at whose end are
# the rates of its streams in MB/s. With `check` its exit status is 1 if a check fails.

# The link's rate in payload, in MB/s: 1,024 of 1,082 bytes of a packet with its Ethernet header, 1,448 of 1,514 of TCP.
function ceiling(name) { return rate_of_link / 8 * (name ~ /tcp/ ? 1448 / 1514 : 1024 / 1082) }

function median(kind, key,    i, list) {
  for (i = 1; i <= measured[key]; i++) list[i] = value[kind, key, i]
  sorted(list, measured[key])
  return list[int(measured[key] / 2) + 1]
}

# Packets sent again in percent of those that are needed, of all repetitions.
function again_percent(key) { return needed[key] > 0 ? 100 * again[key] / needed[key] : -1 }

function number(value, format) { return value < 0 ? (json ? "null" : "-") : sprintf(format, value) }

function print_row(key,    words, used) {
  split(key, words, SUBSEP)
  used = median("sum", key) / ceiling(words[3])
  if (json)
    printf "%s    {\"case\": \"%s\", \"queue_bytes\": %d, \"stream\": \"%s\", \"megabytes_per_second\": %.4g, \"used\": %.4f,\n     \"first_part\": %.4f, \"jain\": %.4f, \"sent_again_percent\": %s, \"failed\": %d}", \
      rows++ ? ",\n" : "", words[1], words[2], words[3], median("sum", key), used, median("part", key), \
      median("jain", key), number(again_percent(key), "%.3f"), failed[key]
  else
    printf "%-7s %8d %-10s %7.1f %6.1f %6.2f %6.3f %7s %6d\n", words[1], words[2], words[3], median("sum", key), \
      100 * used, median("part", key), median("jain", key), number(again_percent(key), "%.2f"), failed[key]
}

# A time of an incast, of what the link needs for all bytes.
function times_ideal(name, key) { return median(name, key) / median("ideal", key) }

function print_incast(key,    words) {
  split(key, words, SUBSEP)
  if (json)
    printf "%s    {\"case\": \"incast\", \"queue_bytes\": %d, \"operation\": \"%s\", \"ideal_milliseconds\": %.4g, \"first\": %.3f,\n     \"median\": %.3f, \"longest\": %.3f}", \
      rows++ ? ",\n" : "", words[2], words[3], median("ideal", key), times_ideal("first", key), \
      times_ideal("median", key), times_ideal("longest", key)
  else
    printf "%-7s %8d %-10s last byte after %.2f times %.1f ms, in the first round %.2f, at most %.2f\n", words[1], \
      words[2], words[3], times_ideal("median", key), median("ideal", key), times_ideal("first", key), \
      times_ideal("longest", key)
}

function demand(what, holds) {
  demands++
  if (holds) return
  failed_demands++
  printf "bottleneck: FAILED: %s\n", what >"/dev/stderr"
}

function check_row(key,    words, name, used, part) {
  split(key, words, SUBSEP)
  if (words[3] == "tcp") return
  if (words[1] == "incast") {
    demand(words[3] " incast " words[2] ": the last byte comes after " times_ideal("median", key), times_ideal("median", key) <= 2)
    return
  }
  name = words[1] " " words[2] " " words[3]
  demand(name ": " failed[key] " streams failed", failed[key] == 0)
  used = median("sum", key) / ceiling(words[3])
  if (words[1] != "many") demand(name ": " used " of the link is used", used >= 0.9)
  if (words[1] == "four") demand(name ": " again_percent(key) " % sent again", again_percent(key) < 2)
  part = median("part", key)
  if (words[1] == "beside") demand(name ": the part of both is " part, part >= 0.2 && part <= 0.8)
}

{
  split($0, halves, " rates=")
  split(halves[1], fields, " ")
  for (i in fields) {
    split(fields[i], word, "=")
    field[word[1]] = word[2]
  }
  key = field["case"] SUBSEP field["queue"] SUBSEP field["name"]
  if (!(key in measured)) order[++keys] = key
  at = ++measured[key]
  if (field["case"] == "incast") {
    for (i in times) value[times[i], key, at] = field[times[i]]
    next
  }
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
  # Of a measurement with a failed stream, what was needed is not known.
  if (field["failed"] == 0 && field["name"] != "write+tcp") {
    again[key] += field["again"]
    needed[key] += field["needed"]
  }
}

BEGIN { split("ideal first median longest", times, " ") }

END {
  if (json) printf "{\n  \"rate_megabits\": %d, \"repetitions\": %d, \"seconds\": %d,\n  \"rows\": [\n", rate_of_link, repetitions, seconds
  else {
    printf "%s, %d core(s), Linux %s, load %s; %d Mbit/s\n", processor, cores, kernel, load, rate_of_link
    printf "Medians of %d repetitions. Part: of the first stream. Again: packets of data of all repetitions, in percent.\n", repetitions
    printf "%-7s %8s %-10s %7s %6s %6s %6s %7s %6s\n", "case", "queue", "stream", "MB/s", "used %", "part", "Jain", "again %", "failed"
  }
  for (i = 1; i <= keys; i++) if (order[i] ~ /^incast/) print_incast(order[i]); else print_row(order[i])
  if (json) print "\n  ]\n}"
  if (check) {
    for (i = 1; i <= keys; i++) check_row(order[i])
    printf "bottleneck: %d checks, %d failed\n", demands, failed_demands >"/dev/stderr"
    if (failed_demands) exit 1
  }
}
