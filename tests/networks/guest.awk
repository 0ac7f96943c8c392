# guest.awk: judges the measurements of `guest`: see streams.awk. With `check` its exit status is 1 if a check fails.

function used(key) { return median("sum", key) / ceiling(name_of[key]) }

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
  read_line()
  key = field["kernel"] SUBSEP field["case"] SUBSEP field["delay"] SUBSEP field["queue"] SUBSEP field["name"]
  name_of[key] = field["name"]
  at = next_of(key)
  add_streams(key, at, 1)
  marks[key] += field["marks"]
  arrived[key] += field["arrived"]
  drops[key] += field["drops"]
}

END {
  print_head()
  if (!json)
    printf "%-6s %-7s %5s %-12s %-11s %6s %6s %5s %6s %7s %6s %7s %6s %6s\n", "kernel", "case", "ms", "queue", "stream", "MB/s", \
      "used %", "part", "Jain", "again %", "marks", "arrived", "drops", "failed"
  for (i = 1; i <= keys; i++) print_row(order[i])
  if (json) print "\n  ]\n}"
  if (check) {
    for (i = 1; i <= keys; i++) check_row(order[i])
    end_checks()
  }
}
