# Prints the times of the migrations of `storage` as a table, after figures.awk. Fails if a row has no figures of a scheme.

END {
  print "| migration of a guest | over RDMA | over TCP | RDMA / TCP |"
  print "|---|---|---|---|"
  for (row = 1; row <= row_count; row++) {
    if (compared(rows[row], "rdma", "tcp", 0, 1) == "") continue
    rdma_range = weigh(rows[row] ",rdma", 0)
    rdma = median
    tcp_range = weigh(rows[row] ",tcp", 0)
    printf "| %s | %d ms %s | %d ms %s | %.2f |\n", rows[row], rdma, rdma_range, median, tcp_range, ratio
  }
  exit wrong
}
