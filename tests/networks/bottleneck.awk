# bottleneck.awk: judges the measurements of `bottleneck`: see streams.awk. With `check` its exit status is 1 if a check
# fails.

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

# The time of an incast, relative to the link's time for all bytes.
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

function check_row(key,    words, name, used, part) {
  split(key, words, SUBSEP)
  if (words[3] == "tcp") return
  if (words[1] == "incast") {
    demand(words[3] " incast " words[2] ": the last byte comes after " times_ideal("median", key), times_ideal("median", key) <= 1.5)
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
  read_line()
  key = field["case"] SUBSEP field["queue"] SUBSEP field["name"]
  at = next_of(key)
  if (field["case"] == "incast") {
    for (i in times) value[times[i], key, at] = field[times[i]]
    next
  }
  add_streams(key, at, field["name"] != "write+tcp")
}

BEGIN { split("ideal first median longest", times, " ") }

END {
  print_head()
  if (!json)
    printf "%-7s %8s %-10s %7s %6s %6s %6s %7s %6s\n", "case", "queue", "stream", "MB/s", "used %", "part", "Jain", "again %", "failed"
  for (i = 1; i <= keys; i++) if (order[i] ~ /^incast/) print_incast(order[i]); else print_row(order[i])
  if (json) print "\n  ]\n}"
  if (check) {
    for (i = 1; i <= keys; i++) check_row(order[i])
    end_checks()
  }
}
