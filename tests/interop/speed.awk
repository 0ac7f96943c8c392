# speed.awk: evaluates the results of `speed`: lines of setting, measurement, side and figure, one for each repetition.

# Sets `median` (the upper one of an even number of values) and `spread`, the range of the values relative to it.
function weigh(key,    i, list) {
  for (i = 1; i <= count[key]; i++) list[i] = value[key, i]
  sorted(list, count[key])
  median = list[int(count[key] / 2) + 1]
  spread = (list[count[key]] - list[1]) / median
}

# row NAME SETTING MEASUREMENT SIDE TARGET: compares this side with rxe; the target is like `>= 1.8`, or empty.
function row(name, setting, measurement, side, target,    own, other, i, one, part, met, mark) {
  own = setting " " measurement " " side
  other = setting " " measurement " rxe"
  if (!(own in count) || !(other in count)) return
  weigh(own)
  own_median = median
  own_spread = spread
  weigh(other)
  ratio = own_median / median
  least = most = value[own, 1] / value[other, 1]
  for (i = 2; i <= count[own]; i++) {
    one = value[own, i] / value[other, i]
    if (one < least) least = one
    if (one > most) most = one
  }
  split(target, part, " ")
  met = part[1] == ">=" ? ratio >= part[2] + 0 : ratio <= part[2] + 0
  if (json) print_json(name, measurement, own, other, part, met)
  else {
    mark = target == "" ? "" : met ? "pass" : "BELOW"
    printf "%-58s %10.3f %10.3f %-5s %6.2f  %-15s %9s  %-7s %s\n", name, own_median, median, unit(measurement), \
      ratio, sprintf("(%.2f-%.2f)", least, most), sprintf("%.0f/%.0f", 100 * own_spread, 100 * spread), target, \
      mark
  }
}

function unit(measurement) { return measurement == "latency" ? "µs" : "GB/s" }

function all(key,    i, text) {
  for (i = 1; i <= count[key]; i++) text = text (i > 1 ? ", " : "") value[key, i]
  return "[" text "]"
}

function print_json(name, measurement, own, other, part, met) {
  printf "%s    {\"row\": \"%s\", \"figure\": \"%s\", \"unit\": \"%s\",\n", rows++ ? ",\n" : "", name, \
    measurement == "latency" ? "p50" : "bandwidth", unit(measurement)
  printf "     \"ours\": %.6g, \"other\": %.6g, \"compared_with\": \"rxe\", \"ratio\": %.4f,\n", own_median, \
    median, ratio
  printf "     \"least_ratio\": %.4f, \"most_ratio\": %.4f, \"own_spread\": %.4f, \"other_spread\": %.4f,\n", least, \
    most, own_spread, spread
  if (part[1] == "") printf "     \"target\": null, \"is_met\": null,\n"
  else printf "     \"target\": {\"%s\": %s}, \"is_met\": %s,\n", part[1] == ">=" ? "at_least" : "at_most", part[2], \
    met ? "true" : "false"
  printf "     \"repetitions\": {\"ours\": %s, \"other\": %s}}", all(own), all(other)
}

{
  key = $1 " " $2 " " $3
  value[key, ++count[key]] = $4
}

END {
  if (json) {
    printf "{\n  \"machine\": {\"processor\": \"%s\", \"cores\": %d, \"kernel\": \"%s\", \"load\": \"%s\"},\n", \
      processor, cores, kernel, load
    printf "  \"guest\": {\"kernel\": \"%s\", \"accelerator\": \"%s\", \"receive_buffer_limit\": %d},\n", guest, \
      accelerator, receive_buffer
    printf "  \"repetitions\": %d,\n  \"rows\": [\n", repetitions
  } else {
    printf "%s, %d core(s), Linux %s, load %s; guests: Linux %s on %s, rmem_max %d\n", processor, cores, kernel, load, \
      guest, accelerator, receive_buffer
    printf "Medians of %d alternating repetitions; in brackets the ratios of single repetitions; noise: how far the " \
      "repetitions lie apart, ours and the other's, in percent of the median. The other is rxe.\n", repetitions
    printf "%-58s %10s %10s %-5s %6s  %-15s %9s  %s\n", "", "ours", "rxe", "", "ratio", "", "noise", "target"
  }
  row("one guest, WRITE 8 B p50", "one", "latency", "ours", "<= 1.4")
  row("one guest, WRITE 64 KiB, MTU 1024 bandwidth", "one", "1024", "ours", ">= 1.8")
  row("one guest, WRITE 64 KiB, MTU 4096 bandwidth", "one", "4096", "ours", ">= 1.6")
  row("one guest, raw UDP instead of ours, 8 B p50", "one", "latency", "raw", "")
  row("one guest, raw UDP instead of ours, MTU 1024 bandwidth", "one", "1024", "raw", "")
  row("one guest, raw UDP instead of ours, MTU 4096 bandwidth", "one", "4096", "raw", "")
  row("two guests, WRITE 8 B p50", "two", "latency", "ours", "<= 1.1")
  row("two guests, WRITE 64 KiB, MTU 1024 bandwidth", "two", "1024", "ours", ">= 1.2")
  row("two guests, WRITE 64 KiB, MTU 4096 bandwidth", "two", "4096", "ours", ">= 1.2")
  row("two guests, raw UDP instead of ours, 8 B p50", "two", "latency", "raw", "")
  if (json) print "\n  ]\n}"
}
