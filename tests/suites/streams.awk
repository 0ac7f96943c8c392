# Prints the measurements of `streams` as a table, after figures.awk. Fails if a row's ratio is above `limit`, or a row has
# no figures of one setting.

END {
  print "| | on RDMA | on TCP | RDMA / TCP |"
  print "|---|---|---|---|"
  for (row = 1; row <= row_count; row++) {
    if (compared(rows[row], "rdma", "tcp", 1, 1) == "") continue
    rdma_range = weigh(rows[row] ",rdma", 1)
    rdma = median
    tcp_range = weigh(rows[row] ",tcp", 1)
    printf "| %s | %.1f µs %s | %.1f µs %s | %.2f |\n", rows[row], rdma, rdma_range, median, tcp_range, ratio
    if (ratio > limit) wrong = 1
  }
  exit wrong
}
