# Judges the measurements of `speed`, after figures.awk. Fails if a row's ratio is above `limit` (except for
# `write lat`), or a row has no figures of one side.

END {
  printf "%-22s %10s %19s %10s %19s  %s\n", "µs a message", "drop-in", "", "native", "", "target at most 1.1"
  for (row = 1; row <= row_count; row++) {
    columns = compared(rows[row], "drop-in", "native", 2, 19)
    if (columns == "") continue
    printf "%-22s %s  ratio  %.2f %s\n", rows[row], columns, ratio, ratio <= 1.1 ? "" : "above"
    # A process that spins on memory depends on the scheduler: some runs take tens of times as long, on either side.
    if (ratio > limit && rows[row] !~ /^write lat/) wrong = 1
  }
  exit wrong
}
