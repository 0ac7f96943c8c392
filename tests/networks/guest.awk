# guest.awk: judges what `guest` has measured: lines of NAME=VALUE, one for each measurement, at whose end are the rates of
# its streams in MB/s. With `check` its exit status is 1 if a check fails.

# The link's rate in payload, in MB/s: 1,024 of 1,082 bytes of a packet with its Ethernet header, 1,448 of 1,514 of TCP.
function ceiling(name) { return rate_of_link / 8 * (name ~ /tcp/ ? 1448 / 1514 : 1024 / 1082) }

function median(kind, key,    i, list) {
  for (i = 1; i <= measured[key]; i++) list[i] = value[kind, key, i]
  sorted(list, measured[key])
  return list[int(measured[key] / 2) + 1]
}

function used(key) { return median("sum", key) / ceiling(name_of[key]) }

# Packets sent again in percent of those that are needed, of all repetitions; -1: a stream failed.
function again_percent(key) { return needed[key] > 0 ? 100 * again[key] / needed[key] : -1 }

function number(value, format) { return value < 0 ? (json ? "null" : "-") : sprintf(format, value) }

function print_row(key,    words) {
  split(key, words, SUBSEP)
  if (json)
    printf "%s    {\"kernel\": \"%s\", \"case\": \"%s\", \"round_trip_milliseconds\": %d, \"queue\": \"%s\", \"stream\": \"%s\",\n     \"megabytes_per_second\": %.4g, \"used\": %.4f, \"first_part\": %.4f, \"jain\": %.4f, \"sent_again_percent\": %s,\n     \"marks\": %d, \"marks_arrived\": %d, \"drops\": %d, \"failed\": %d}", \
      rows++ ? ",\n" : "", words[1], words[2], words[3], words[4], words[5], median("sum", key), used(key), \
      median("part", key), median("jain", key), number(again_percent(key), "%.3f"), marks[key], arrived[key], drops[key], \
      failed[key]
  else
    printf "%-6s %-7s %5d %-12s %-11s %6.3f %6.1f %5.2f %6.3f %7s %6d %7d %6d %6d\n", words[1], words[2], words[3], words[4], \
      words[5], median("sum", key), 100 * used(key), median("part", key), median("jain", key), \
      number(again_percent(key), "%.2f"), marks[key], arrived[key], drops[key], failed[key]
}

function demand(what, holds) {
  demands++
  if (holds) return
  failed_demands++
  printf "guest: FAILED: %s\n", what >"/dev/stderr"
}

function check_row(key,    words, name, part) {
  split(key, words, SUBSEP)
  name = words[1] " " words[2] " " words[3] " ms " words[4] " " words[5]
  demand(name ": " failed[key] " streams failed", failed[key] == 0)
  if (words[5] !~ (words[2] == "marks" ? "write|read" : "write")) return
  if (words[2] ~ /delay|marks|two/) demand(name ": " used(key) " of the link is used", used(key) >= 0.9)
  if (words[2] == "marks") {
    demand(name ": " again_percent(key) " % sent again", again_percent(key) < 1)
    demand(name ": the queue marks " marks[key] " packets", marks[key] > 0)
    demand(name ": " arrived[key] " marked packets arrive", arrived[key] > 0)
  }
  if (words[2] == "two") demand(name ": Jain's index is " median("jain", key), median("jain", key) >= 0.8)
  part = median("part", key)
  if (words[2] == "beside") demand(name ": the part of both is " part, part >= 0.2 && part <= 0.8)
}

{
  split($0, halves, " rates=")
  split(halves[1], fields, " ")
  for (i in fields) {
    split(fields[i], word, "=")
    field[word[1]] = word[2]
  }
  key = field["kernel"] SUBSEP field["case"] SUBSEP field["delay"] SUBSEP field["queue"] SUBSEP field["name"]
  name_of[key] = field["name"]
  if (!(key in measured)) order[++keys] = key
  at = ++measured[key]
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
  marks[key] += field["marks"]
  arrived[key] += field["arrived"]
  drops[key] += field["drops"]
  # Of a measurement with a failed stream, what was needed is not known.
  if (field["failed"] == 0) {
    again[key] += field["again"]
    needed[key] += field["needed"]
  }
}

END {
  if (json) printf "{\n  \"rate_megabits\": %d, \"repetitions\": %d, \"seconds\": %d,\n  \"rows\": [\n", rate_of_link, repetitions, seconds
  else {
    printf "%s, %d core(s), Linux %s, load %s; %d Mbit/s\n", processor, cores, kernel, load, rate_of_link
    printf "Medians of %d repetitions. Part: of the first stream. Again: packets of data of all repetitions, in percent.\n", repetitions
    printf "%-6s %-7s %5s %-12s %-11s %6s %6s %5s %6s %7s %6s %7s %6s %6s\n", "kernel", "case", "ms", "queue", "stream", "MB/s", \
      "used %", "part", "Jain", "again %", "marks", "arrived", "drops", "failed"
  }
  for (i = 1; i <= keys; i++) print_row(order[i])
  if (json) print "\n  ]\n}"
  if (check) {
    for (i = 1; i <= keys; i++) check_row(order[i])
    printf "guest: %d checks, %d failed\n", demands, failed_demands >"/dev/stderr"
    if (failed_demands) exit 1
  }
}
