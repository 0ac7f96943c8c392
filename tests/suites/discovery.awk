# Judges the measurements of `discovery`, after figures.awk. Fails if a row of a bandwidth is not at least `least` times
# as fast with discovery, or a row has no figures of one setting.

END {
  printf "%-18s %10s %21s %10s %21s  %s\n", "µs a message", "off", "", "on", "", "off / on"
  for (row = 1; row <= row_count; row++) {
    columns = compared(rows[row], "off", "on", 1, 21)
    if (columns == "") continue
    printf "%-18s %s  %.2f\n", rows[row], columns, ratio
    if (rows[row] ~ / bw / && ratio < least) wrong = 1
  }
  exit wrong
}
