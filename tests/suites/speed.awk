# Judges the measurements of `speed`: lines of row, side and microseconds per message, one for each repetition. Fails if
# a row's ratio is above `limit` (except for `write lat`), or a row has no figures of one side.

# Sets `median` (of an even number the upper one), `least` and `most`.
function weigh(key,    list, i) {
  for (i = 1; i <= count[key]; i++) list[i] = value[key, i]
  sorted(list, count[key])
  median = list[int(count[key] / 2) + 1]
  least = list[1]
  most = list[count[key]]
}

{
  if (!($1 in known)) rows[++row_count] = $1
  known[$1]
  key = $1 "," $2
  value[key, ++count[key]] = $3 + 0
}

END {
  printf "%-22s %10s %19s %10s %19s  %s\n", "µs a message", "drop-in", "", "native", "", "target at most 1.1"
  for (row = 1; row <= row_count; row++) {
    if (!count[rows[row] ",drop-in"] || !count[rows[row] ",native"]) {
      wrong = 1
      continue
    }
    weigh(rows[row] ",drop-in")
    drop_in = median
    drop_in_range = sprintf("(%.2f-%.2f)", least, most)
    weigh(rows[row] ",native")
    ratio = drop_in / median
    printf "%-22s %10.2f %19s %10.2f %19s  ratio  %.2f %s\n", rows[row], drop_in, drop_in_range, median, \
      sprintf("(%.2f-%.2f)", least, most), ratio, ratio <= 1.1 ? "" : "above"
    # A process that spins on memory depends on the scheduler: some runs take tens of times as long, on either side.
    if (ratio > limit && rows[row] !~ /^write lat/) wrong = 1
  }
  exit wrong
}
