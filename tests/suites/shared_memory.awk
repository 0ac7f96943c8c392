# Prints the measurements of `shared_memory`, after figures.awk. Fails if a row has no figures of one setting.

END {
  printf "%-18s %10s %21s %10s %21s  %s\n", "µs a message", "off", "", "auto", "", "off / auto"
  for (row = 1; row <= row_count; row++) {
    columns = compared(rows[row], "off", "auto", 2, 21)
    if (columns != "") printf "%-18s %s  %.2f\n", rows[row], columns, ratio
  }
  exit wrong
}
