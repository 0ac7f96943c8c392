# Prints figures over RDMA and over TCP as a table, after figures.awk: those of `streams`, and the migrations of `storage`.
# `what` heads the rows, `unit` and `digits` are those of the figures. Fails if a row has no figures of one setting, or,
# with `limit`, if a ratio is above it.

END {
  print "| " (what ? what " " : "") "| over RDMA | over TCP | RDMA / TCP |"
  print "|---|---|---|---|"
  for (row = 1; row <= row_count; row++) {
    if (compared(rows[row], "rdma", "tcp", digits, 1) == "") continue
    rdma_range = weigh(rows[row] ",rdma", digits)
    rdma = median
    tcp_range = weigh(rows[row] ",tcp", digits)
    printf "| %s | %." digits "f %s %s | %." digits "f %s %s | %.2f |\n", rows[row], rdma, unit, rdma_range, median, unit, tcp_range, ratio
    if (limit && ratio > limit) wrong = 1
  }
  exit wrong
}
