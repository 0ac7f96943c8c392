# sorted.awk: for the reports of measurements, before their own file: awk -f sorted.awk -f report.awk.

# Sorts the first `count` entries of the list, from the least on.
function sorted(list, count,    i, j, value) {
  for (i = 2; i <= count; i++) {
    value = list[i]
    for (j = i - 1; j >= 1 && list[j] > value; j--) list[j + 1] = list[j]
    list[j + 1] = value
  }
}
