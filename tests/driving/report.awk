# report.awk: prints the figures of `driving/run`, after sorted.awk. Each line of the input has a setting, the build,
# and four figures.

function median(setting, build, field,    list, count) {
  count = split(values[setting, build, field], list, " ")
  sorted(list, count)
  least = list[1]
  most = list[count]
  return (list[int((count + 1) / 2)] + list[int(count / 2) + 1]) / 2
}

{ for (field = 3; field <= 6; field++) values[$1, $2, field] = values[$1, $2, field] " " $field }

END {
  printf "%-12s %23s %23s %23s %23s  %s\n", "setting", "median", "mean", "99 %", "processor", "the tree's medians"
  count = split(settings, names, " ")
  for (index_ = 1; index_ <= count; index_++) {
    line = sprintf("%-12s", names[index_])
    for (field = 6; field >= 3; field--) {
      changed = median(names[index_], "changed", field)
      tree = median(names[index_], "tree", field)
      figures[field] = sprintf(" %8.1f %8.1f %5.2f", changed, tree, tree > 0 ? changed / tree : 0)
    }
    print line figures[3] figures[4] figures[5] figures[6] sprintf("  %.1f to %.1f", least, most)
  }
}
