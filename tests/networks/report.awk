# report.awk: judges the measurements of `run`: lines of NAME=VALUE, one for each stream. With `check` its exit status
# is 1 if a robust check fails; the targets in the table are for a quiet machine.

function median(key,    i, list) {
  for (i = 1; i <= streams[key]; i++) list[i] = rate[key, i]
  sorted(list, streams[key])
  return list[int(streams[key] / 2) + 1]
}

function kept(at, setting, kind,    base) {
  base = median(at SUBSEP 0 SUBSEP kind)
  return base > 0 ? median(at SUBSEP setting SUBSEP kind) / base : 0
}

function is_tcp(kind) { return kind == "cubic" || kind == "bbr" }

# The fraction that the better TCP keeps.
function tcp_kept(at, setting,    most) {
  most = kept(at, setting, "cubic")
  return (at SUBSEP setting SUBSEP "bbr") in streams && kept(at, setting, "bbr") > most ? kept(at, setting, "bbr") : most
}

# Of the streams whose needed packets are known.
function again_part(key,    lost) {
  lost = sum["data_dropped", key] + sum["overflown", key]
  return lost > 0 ? sum["extra", key] / lost : -1
}

function number(value, format) { return value < 0 ? (json ? "null" : "-") : sprintf(format, value) }

# goal WHAT MET: a target in the table.
function goal(what, met) {
  if (!met) misses = misses (misses == "" ? "" : "; ") what
  goals++
}

function judge(at, setting, kind, key, part) {
  misses = ""
  goals = 0
  if (is_tcp(kind)) return
  goal("a stream failed", sum["failed", key] == 0)
  if (setting == "0") return
  if (at == "loss") {
    if (setting <= 0.1) goal("keeps less than 95 %", part >= 0.95)
    else if (setting <= 1) goal("keeps less than 90 %", part >= 0.9)
    else goal("keeps less than TCP", part >= tcp_kept(at, setting))
    if (setting >= 1) goal("more than 1.5 sent again for a loss", again_part(key) <= 1.5)
  } else if (at == "reorder") {
    goal("keeps less than 95 %", part >= 0.95)
    goal("more than 0.2 % sent again", false_part(key) <= 0.002)
  }
}

function false_part(key) { return sum["needed", key] > 0 ? sum["extra", key] / sum["needed", key] : -1 }

# The conditions of a gate, which also hold on a busy machine.
function demand(what, holds) {
  demands++
  if (holds) return
  failed_demands++
  printf "networks: FAILED: %s\n", what >"/dev/stderr"
}

function check_all(    i, key, words, at, setting, kind, expected, actual, slack, name) {
  for (i = 1; i <= keys; i++) {
    key = order[i]
    split(key, words, SUBSEP)
    at = words[1]; setting = words[2]; kind = words[3]
    name = at " " setting " " kind
    demand(name ": " sum["merged", key] " packets longer than the MTU", sum["merged", key] == 0)
    if (is_tcp(kind)) continue
    demand(name ": " sum["failed", key] " streams failed", sum["failed", key] == 0)
    demand(name ": " sum["data", key] " packets carry what needs " sum["needed", key],
      sum["failed", key] > 0 || sum["data", key] >= sum["needed", key])
    demand(name ": data packets of " sum["bytes", key] / sum["data", key] " bytes instead of about 4140",
      sum["bytes", key] >= 4100 * sum["data", key] && sum["bytes", key] <= 4180 * sum["data", key])
    if (at == "bursts" && setting != "0") demand(name ": no packets of data were lost", sum["data_dropped", key] > 0)
    if (at != "loss") continue
    if (setting >= 1) demand(name ": " again_part(key) " packets sent again for a lost one", again_part(key) <= 1.5)
    if (kind == "write" && setting >= 5)
      demand(name ": " kept(at, setting, kind) " is kept, " tcp_kept(at, setting) " by TCP",
        kept(at, setting, kind) >= tcp_kept(at, setting))
  }
  for (setting in asked) {
    expected = asked[setting] * setting / 100
    actual = dropped_of[setting]
    slack = 4 * sqrt(expected)
    if (slack < 0.1 * expected) slack = 0.1 * expected
    demand("loss " setting ": " actual " packets dropped instead of " expected,
      actual >= expected - slack && actual <= expected + slack)
  }
  printf "networks: %d checks, %d failed\n", demands, failed_demands >"/dev/stderr"
}

function print_row(key,    words, at, setting, kind, part, text, i, mark) {
  split(key, words, SUBSEP)
  at = words[1]; setting = words[2]; kind = words[3]
  part = kept(at, setting, kind)
  judge(at, setting, kind, key, part)
  if (json) {
    for (i = 1; i <= streams[key]; i++) text = text (i > 1 ? ", " : "") rate[key, i]
    printf "%s    {\"case\": \"%s\", \"setting\": \"%s\", \"stream\": \"%s\", \"gigabytes_per_second\": %.6g, \"kept\": %.4f,\n", \
      rows++ ? ",\n" : "", at, setting, kind, median(key), part
    printf "     \"failed\": %d, \"data_packets\": %d, \"needed_packets\": %s, \"dropped\": %d, \"data_dropped\": %d,\n", \
      sum["failed", key], sum["data", key], is_tcp(kind) ? "null" : sum["needed", key], sum["dropped", key], \
      sum["data_dropped", key]
    printf "     \"sent_again\": %d, \"sent_again_for_a_loss\": %s, \"overflown\": %d, \"detoured\": %d, \"out_of_order\": %d,\n", \
      sum["extra", key], number(again_part(key), "%.3f"), sum["overflown", key], sum["detoured", key], \
      sum["disordered", key]
    printf "     \"missed\": \"%s\", \"repetitions\": [%s]}", misses, text
  } else {
    mark = misses != "" ? misses : goals ? "pass" : ""
    printf "%-8s %-5s %-6s %7.3f %6.1f %9s %9s %10s %6s %6d  %s\n", at, setting, kind, median(key), 100 * part, \
      sum["data_dropped", key], sum["extra", key], number(again_part(key), "%.2f"), \
      false_part(key) < 0 ? "-" : sprintf("%.2f", 100 * false_part(key)), sum["failed", key], mark
    if (kind == "cubic" && at == "reorder")
      disorder = disorder sprintf("%s%s: %d of %d packets of TCP arrived out of order, %d took the detour", \
        disorder == "" ? "" : "; ", setting, sum["disordered", key], sum["data", key], sum["detoured", key])
  }
}

{
  for (i = 1; i <= NF; i++) {
    split($i, word, "=")
    field[word[1]] = word[2]
  }
  key = field["case"] SUBSEP field["setting"] SUBSEP field["kind"]
  if (!(key in streams)) order[++keys] = key
  rate[key, ++streams[key]] = field["rate"] + 0
  field["extra"] = is_tcp(field["kind"]) ? field["again"] : field["needed"] > 0 ? field["data"] - field["needed"] : 0
  for (name in field) if (field[name] ~ /^-?[0-9]+$/) sum[name, key] += field[name]
  if (field["case"] == "loss") {
    asked[field["setting"]] += field["offered"]
    dropped_of[field["setting"]] += field["dropped"]
  }
}

END {
  if (json) {
    printf "{\n  \"machine\": {\"processor\": \"%s\", \"cores\": %d, \"kernel\": \"%s\", \"load\": \"%s\"},\n", processor, \
      cores, kernel, load
    printf "  \"repetitions\": %d, \"bytes\": %d, \"seconds\": %d,\n  \"rows\": [\n", repetitions, bytes, seconds
  } else {
    printf "%s, %d core(s), Linux %s, load %s\n", processor, cores, kernel, load
    printf "Medians of %d alternating repetitions. Lost and again: packets of data, of all repetitions; again/need: in percent.\n", \
      repetitions
    printf "%-8s %-5s %-6s %7s %6s %9s %9s %10s %6s %6s  %s\n", "case", "", "stream", "GB/s", "kept %", "lost", "again", \
      "again/lost", "/need", "failed", "target"
  }
  for (i = 1; i <= keys; i++) print_row(order[i])
  if (json) print "\n  ]\n}"
  else if (disorder != "") print "reorder " disorder
  if (check) {
    check_all()
    if (failed_demands) exit 1
  }
}
