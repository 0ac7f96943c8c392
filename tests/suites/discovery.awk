# Judges the measurements of `discovery`: lines of row, setting and microseconds per message, one for each repetition.
# Fails if a row of a bandwidth is not at least `least` times as fast with discovery, or a row has no figures of one
# setting.

# Sets `median` (of an even number the upper one), `fewest` and `most`.
function weigh(key,    list, i) {
  for (i = 1; i <= count[key]; i++) list[i] = value[key, i]
  sorted(list, count[key])
  median = list[int(count[key] / 2) + 1]
  fewest = list[1]
  most = list[count[key]]
}

{
  if (!($1 in known)) rows[++row_count] = $1
  known[$1]
  key = $1 "," $2
  value[key, ++count[key]] = $3 + 0
}

END {
  printf "%-18s %10s %21s %10s %21s  %s\n", "µs a message", "off", "", "on", "", "off / on"
  for (row = 1; row <= row_count; row++) {
    if (!count[rows[row] ",off"] || !count[rows[row] ",on"]) {
      wrong = 1
      continue
    }
    weigh(rows[row] ",off")
    off = median
    off_range = sprintf("(%.1f-%.1f)", fewest, most)
    weigh(rows[row] ",on")
    ratio = off / median
    printf "%-18s %10.1f %21s %10.1f %21s  %.2f\n", rows[row], off, off_range, median, \
      sprintf("(%.1f-%.1f)", fewest, most), ratio
    if (rows[row] ~ / bw / && ratio < least) wrong = 1
  }
  exit wrong
}
